"""The two figures of a run: what they show, and what they leave out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from zorplex_rl.run.plots import KIND_COLOURS, learning_curve, timeline_chart
from zorplex_rl.run.timeline import KINDS, Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def step_row(step: int, accuracy: float, **more) -> dict:
    return {"event": "step", "step": step, "seconds": 0.9 * step, "accuracy": accuracy, "reward": accuracy} | more


def eval_row(step: int, greedy: float, sampled: float) -> dict:
    return {
        "event": "eval",
        "step": step,
        "seconds": 0.9 * step + 0.5,
        "greedy_accuracy": greedy,
        "sampled_accuracy": sampled,
    }


ROWS = [
    {"event": "start", "task": "compositional"},
    eval_row(0, 0.41, 0.22),
    *(step_row(step, 0.3 + step / 100) for step in range(1, 61)),
    eval_row(60, 0.98, 0.93),
]
TIMELINE = Timeline(
    [
        Span("generator 0", "generate", 100.0, 107.0),
        Span("generator 0", "pull", 106.0, 108.0),
        Span("trainer", "idle", 100.0, 105.0),
        Span("trainer", "train", 105.0, 110.0),
    ]
)


def texts(svg: str) -> list[str]:
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_learning_curve_shows_steps_below_seconds_above_and_percent_at_the_side():
    shown = texts(learning_curve(ROWS))
    assert {"training step", "seconds since training began", "accuracy", "0%", "100%"} <= set(shown)
    assert {"training episodes", "held-out, greedy (last: 98%)", "held-out, sampled (last: 93%)"} <= set(shown)


def test_long_runs_count_minutes():
    slow = [row | {"seconds": 600.0 * row["step"] / 60} for row in ROWS[1:]]
    assert "minutes since training began" in texts(learning_curve(slow))


def test_of_a_step_that_stands_twice_the_later_row_counts():
    resumed = [*ROWS, eval_row(60, 0.55, 0.5)]
    assert "held-out, greedy (last: 55%)" in texts(learning_curve(resumed))


def test_rows_without_the_number_or_with_none_that_is_finite_are_left_out():
    broken = [step_row(61, float("nan")), {"event": "step", "step": 62}, {"event": "step"}]
    assert "training accuracy 31% at step 1, 90% at step 60" in learning_curve(ROWS[2:-1] + broken)


def test_a_timeline_chart_has_a_row_for_every_actor_and_a_colour_for_every_kind():
    svg = timeline_chart(TIMELINE)
    assert {"generator 0", "trainer", "generate", "pull", "idle", "train", "seconds"} <= set(texts(svg))
    assert {"80%", "50%"} <= set(texts(svg))
    for kind in ("generate", "pull", "train"):
        assert KIND_COLOURS[kind].lower() in svg.lower()
    assert KIND_COLOURS["evaluate"].lower() not in svg.lower()


def test_no_two_kinds_look_alike():
    assert set(KIND_COLOURS) == set(KINDS)
    assert len(set(KIND_COLOURS.values())) == len(KINDS)


def test_a_window_shows_only_what_happened_in_it():
    shown = texts(timeline_chart(TIMELINE, window=(100.0, 104.0)))
    assert {"generate", "trainer", "100%", "0%"} <= set(shown)
    assert "pull" not in shown
    assert "train" not in shown


def test_a_span_far_shorter_than_a_pixel_is_still_drawn():
    svg = timeline_chart(Timeline([Span("a", "train", 0.0, 3600.0), Span("a", "publish", 10.0, 10.001)]))
    bars = [p for p in ElementTree.fromstring(svg).iter(f"{SVG}path") if "#e69f00" in p.get("style", "")]
    xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", bars[0].get("d"))]
    assert 0.9 < max(xs) - min(xs) < 1.5


@pytest.mark.slow
def test_a_hundred_thousand_spans_make_a_figure_that_a_page_can_hold():
    spans = [Span("generator 0", "generate", i * 0.01, i * 0.01 + 0.008) for i in range(100_000)]
    assert len(timeline_chart(Timeline(spans))) < 200_000


def test_names_are_shown_as_they_are_written():
    svg = timeline_chart(Timeline([Span('a <b> & "c" $x$', "train", 0.0, 1.0)]))
    assert 'a <b> & "c" $x$' in texts(svg)
    assert 'a <b> & "c" $x$' in ElementTree.fromstring(svg).get("aria-label")


@pytest.mark.slow
def test_nothing_is_said_where_the_library_cannot_keep_its_cache():
    program = "from zorplex_rl.run.plots import learning_curve; learning_curve([])"
    environment = {k: v for k, v in os.environ.items() if k not in ("MPLCONFIGDIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment | {"HOME": "/proc/none"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
