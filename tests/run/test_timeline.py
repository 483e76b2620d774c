"""Timelines: what is recorded, how busy time is counted, and that a trace on disk is the timeline
again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from zorplex_rl.run import timeline
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Span, SpanRecorder, Timeline

RUN = [
    Span("trainer", "train", 1000.0, 1004.0, {"step": 1, "loss": 0.5}),
    Span("generator 0", "generate", 1000.5, 1006.0),
    Span("generator 0", "tool", 1002.0, 1007.0, {"word": "blip"}),
    Span("trainer", "idle", 1004.0, 1010.0),
]


def test_a_span_is_recorded_also_when_its_body_raises(monkeypatch):
    monkeypatch.setattr(timeline, "now", iter([1.0, 1.5]).__next__)
    recorder = SpanRecorder("generator 0")
    with pytest.raises(RuntimeError, match="out of memory"), recorder.span("generate"):
        raise RuntimeError("out of memory")
    assert recorder.drain() == [Span("generator 0", "generate", 1.0, 1.5)]


def test_memory_is_bounded_and_the_oldest_spans_are_dropped(monkeypatch):
    monkeypatch.setattr(timeline, "CAPACITY", 3)
    recorder = SpanRecorder("trainer")
    for step in range(5):
        with recorder.span("train", step=step):
            pass
    assert [span.args["step"] for span in recorder.drain()] == [2, 3, 4]


@pytest.mark.parametrize(
    ("actor", "window", "share"),
    [
        ("generator 0", None, 0.65),
        ("trainer", None, 0.4),
        ("trainer", (1003.0, 1005.0), 0.5),
        ("trainer", (1005.0, 1010.0), 0.0),
        ("trainer", (1003.0, 1003.0), 0.0),
        ("tools", None, 0.0),
    ],
)
def test_busy_time_is_that_in_which_any_span_but_an_idle_one_runs(actor, window, share):
    assert Timeline(RUN).busy_share(actor, window) == pytest.approx(share)


def test_between_cuts_spans_at_the_window_and_leaves_out_what_lies_outside():
    cut = Timeline(RUN).between(1003.0, 1004.5)
    assert [(span.kind, span.start, span.end) for span in cut.spans] == [
        ("train", 1003.0, 1004.0), ("generate", 1003.0, 1004.5), ("tool", 1003.0, 1004.5), ("idle", 1004.0, 1004.5),
    ]  # fmt: skip
    assert cut.spans[0].args == {"step": 1, "loss": 0.5}
    assert Timeline(RUN).between(1008.0, 1010.0).actors == ["trainer"]


def test_a_chrome_trace_counts_microseconds_from_the_timelines_start_and_names_the_actors():
    events = Timeline(RUN).to_chrome_trace()["traceEvents"]
    generate = next(event for event in events if event["name"] == "generate")
    assert (generate["ph"], generate["ts"], generate["dur"]) == ("X", 500_000, 5_500_000)
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    assert names[generate["pid"]] == "generator 0"
    assert set(names.values()) == {"trainer", "generator 0"}


def test_spans_that_overlap_never_share_a_lane_of_the_trace():
    spans = [Span("a", "tool", float(start), start + 2.5) for start in range(6)]
    events = [
        event for event in Timeline(spans).to_chrome_trace()["traceEvents"] if event["ph"] == "X"
    ]
    for lane in {event["tid"] for event in events}:
        in_lane = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == lane
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(in_lane))
    assert len({event["tid"] for event in events}) == 3


@pytest.mark.parametrize("spans", [RUN, [], [Span("a", "train", 12345.678901, 12346.0)]])
def test_a_saved_timeline_loads_as_an_equal_one(tmp_path, spans):
    RunFolder(tmp_path).save_timeline(Timeline(spans))
    assert Timeline.load(tmp_path / "timeline.json") == Timeline(spans)
