"""Long work: a bar that counts what happens in any thread; a result that is there tomorrow; a run followed live."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import marimo as mo
import pytest

from zorplex_rl.course.lesson import lesson, waiting
from zorplex_rl.course.widgets import LiveCurve


@pytest.fixture
def bars(monkeypatch):
    """The bars that were shown, each with all that was counted on it."""
    shown = []

    class Bar:
        def __init__(self, total, **looks):
            self.total, self.looks, self.count = total, looks, 0
            shown.append(self)

        def update(self, subtitle, increment=0):
            self.count += increment
            self.since = subtitle

        def __enter__(self):
            return self

        def __exit__(self, *raised):
            self.closed = True

    monkeypatch.setattr(mo.status, "progress_bar", Bar)
    monkeypatch.setattr(mo.status, "spinner", lambda **looks: Bar(None, **looks))
    monkeypatch.setattr(waiting, "EVERY_S", 0.01)
    return shown


def test_a_bar_is_there_before_anything_is_counted_and_counts_in_every_thread(bars):
    before, a_moment = threading.active_count(), threading.Event()
    with lesson.counting(8, "questions", title="Asking") as one_more:
        (bar,) = bars
        assert (bar.total, bar.count, bar.looks["title"], bar.looks["remove_on_exit"]) == (
            8,
            0,
            "Asking",
            True,
        )
        one_more("whatever", a="callback gets")
        for number in (1, 3):
            thread = threading.Thread(target=one_more, kwargs={"number": number})
            thread.start()
            thread.join()
        while bar.count < 5:
            a_moment.wait(0.01)
    assert bar.count == 5 and bar.closed
    assert threading.active_count() == before


def test_where_nothing_can_be_counted_the_seconds_are(bars):
    a_moment = threading.Event()
    with lesson.counting(None, "two processes import torch"):
        (bar,) = bars
        while not hasattr(bar, "since"):
            a_moment.wait(0.01)
    assert bar.since == "two processes import torch, since 0 s" and bar.closed


@pytest.mark.parametrize("raised", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupted_cell_says_how_to_go_on(bars, raised):
    with pytest.raises(mo.MarimoStopError) as stopped, lesson.counting(8, "steps"):
        raise raised
    assert "The button above starts it again" in stopped.value.output.text


def test_what_is_kept_does_not_wait_for_the_button_and_a_press_forgets_it(monkeypatch):
    forgotten = []
    kept = SimpleNamespace(there=False, forget=lambda: forgotten.append(True))
    released, pressed = SimpleNamespace(value=False), SimpleNamespace(value=True)
    with pytest.raises(mo.MarimoStopError):
        lesson.wait_for(released, unless=kept)
    kept.there = True
    lesson.wait_for(released, unless=kept)
    assert forgotten == []
    lesson.wait_for(pressed, unless=kept)
    assert forgotten == [True]


KEEPS = """
import marimo

app = marimo.App()

with app.setup:
    import sys
    import threading

    from zorplex_rl.course.lesson import kept, lesson

    # A script keeps nothing; this one plays somebody who works in `marimo edit`.
    kept.unattended = lambda: "edit" not in sys.argv


@app.cell
def _():
    lock = threading.Lock()
    result = lesson.Kept(__file__, "numbers", steps=3, rate=float(sys.argv[1]))

    def compute():
        with lock:
            print("computed", end=" ")
            return [1, 2, 3]

    print(result.there, result.get(compute), result.there)
    if "forget" in sys.argv:
        result.forget()
    return


if __name__ == "__main__":
    app.run()
"""


@pytest.mark.long
def test_a_result_is_found_again_by_its_settings_until_it_is_forgotten(tmp_path):
    notebook = tmp_path / "keeps.py"
    notebook.write_text(KEEPS)

    def run(*arguments):
        command = [sys.executable, str(notebook), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert run("0.1") == "computed False [1, 2, 3] False", "a script keeps nothing"
    assert not (tmp_path / "__marimo__").exists()
    assert run("0.1", "edit") == "computed False [1, 2, 3] True"
    assert run("0.2", "edit") == "computed False [1, 2, 3] True", "another setting"
    assert (tmp_path / "__marimo__" / "cache" / "numbers").is_dir()
    assert run("0.1", "edit", "forget") == "True [1, 2, 3] True"
    assert run("0.1", "edit") == "computed False [1, 2, 3] True"


def test_a_run_in_a_terminal_is_drawn_as_far_as_it_has_come(tmp_path):
    metrics = lesson.follow(tmp_path / "run")
    curve = LiveCurve(total_steps=40)
    assert "No step yet in the run in <code>" in lesson.show_run(metrics, curve).text
    (tmp_path / "run").mkdir()
    rows = [
        {"event": "eval", "step": 0, "greedy_accuracy": 0.3},
        {"event": "step", "step": 1, "accuracy": 0.25},
    ]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st')
    assert "Step 1 of the run in" in lesson.show_run(metrics, curve).text
    assert dict(curve.series) == {"held-out, greedy": [[0, 0.3]], "training episodes": [[1, 0.25]]}
    lesson.show_run(metrics, curve)
    assert len(curve.series[0][1]) == 1, "drawn again, not added"
