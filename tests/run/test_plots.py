"""The learning curve of a run: what it shows, and what it leaves out."""

from __future__ import annotations

from xml.etree import ElementTree

from zorplex_rl.run.plots import learning_curve


def step_row(step: int, accuracy: float) -> dict:
    return {
        "event": "step",
        "step": step,
        "seconds": 0.9 * step,
        "accuracy": accuracy,
        "reward": accuracy,
    }


def eval_row(step: int, greedy: float, sampled: float) -> dict:
    found = {"greedy_accuracy": greedy, "sampled_accuracy": sampled}
    return {"event": "eval", "step": step, "seconds": 0.9 * step + 0.5} | found


ROWS = [
    {"event": "started", "step": 0, "seconds": 0.0},
    eval_row(0, 0.41, 0.22),
    *(step_row(step, 0.3 + step / 100) for step in range(1, 61)),
    eval_row(60, 0.98, 0.93),
]


def texts(svg: str) -> list[str]:
    return [
        text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_a_learning_curve_shows_seconds_below_and_percent_at_the_side():
    shown = texts(learning_curve(ROWS))
    assert {"seconds of training", "accuracy", "0%", "100%"} <= set(shown)
    assert {
        "training (last: 90%)",
        "held-out greedy (last: 98%)",
        "held-out sampled (last: 93%)",
    } <= set(shown)
    # The run took 54.5 seconds.
    assert "50" in shown and "60" not in shown


def test_a_run_without_a_step_has_axes_and_no_warning(recwarn):
    assert "accuracy" in texts(learning_curve([]))
    assert list(recwarn) == []


def test_equal_rows_give_equal_bytes_on_a_white_ground_that_is_readable_in_a_dark_viewer():
    svg = learning_curve(ROWS)
    assert svg == learning_curve(ROWS)
    root = ElementTree.fromstring(svg)
    background = next(root.iter("{http://www.w3.org/2000/svg}path"))
    assert "fill: #ffffff" in background.get("style")


def test_of_a_step_that_stands_twice_the_later_row_counts_and_a_row_without_the_number_does_not():
    resumed = [*ROWS, eval_row(60, 0.55, 0.5), {"event": "step", "step": 61}]
    assert {"held-out greedy (last: 55%)", "training (last: 90%)"} <= set(
        texts(learning_curve(resumed))
    )
