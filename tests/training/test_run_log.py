"""What a run writes down: after a resume its clock and its timeline go on where the checkpoint left
them."""

from __future__ import annotations

from itertools import pairwise

from zorplex_rl.config import Config
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Span
from zorplex_rl.training.run_log import RunLog


def span(step: int, start: float) -> Span:
    return Span("trainer", "train", start, start + 1.0, {"step": step})


def test_a_resumed_log_goes_on_where_the_checkpoint_left_it(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("zorplex_rl.training.run_log.now", lambda: now)
    folder = RunFolder.create(tmp_path / "run", Config())
    first = RunLog(folder)
    first.start_clock()
    now += 3.0
    first.write("resume", 1)
    first.add_spans([span(0, now - 2.0), span(1, now - 1.0)])
    state = first.state()
    # What comes after the state, though it is on the disk as well, is no part of the run that goes on.
    now += 20.0
    first.add_spans([span(2, now - 1.0)])
    folder.save_timeline(first.timeline)

    now = 5000.0
    second = RunLog(folder)
    second.resume(state)
    now += 5.0
    second.start_clock()
    now += 1.0
    second.write("resume", 2)
    second.add_spans([span(2, now - 1.0)])
    assert [row["seconds"] for row in folder.metrics()] == [3.0, 4.0]
    spans = sorted(second.timeline.spans, key=lambda one: one.start)
    assert [one.args["step"] for one in spans] == [0, 1, 2]
    assert all(before.end <= after.start for before, after in pairwise(spans))
