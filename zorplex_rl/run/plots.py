"""Draw the learning curve of a run: rows of ``metrics.jsonl`` ──► SVG text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "training": ("step", "accuracy", {"color": style.GREY, "marker": ".", "linewidth": 1}),
    "held-out greedy": ("eval", "greedy_accuracy", {"color": style.BLUE, "marker": "o", "linewidth": 2}),
    "held-out sampled": ("eval", "sampled_accuracy", {"color": style.VERMILION, "marker": "s", "linewidth": 2}),
}
"""Of each curve the event of its rows, the number in them, and the look of the line."""


def learning_curve(rows: list[dict[str, Any]]) -> str:
    """Draw accuracy over steps: held-out greedy and sampled; in grey, of training episodes. The
    ``seconds`` of the rows give the upper axis. If a step occurs twice, the later row counts."""
    found = {}
    for name, (event, key, _) in CURVES.items():
        values = {row["step"]: row[key] for row in rows if row.get("event") == event and key in row}
        found[name] = sorted(values.items())
    curves = {name: points for name, points in found.items() if points}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, points in curves.items():
            label = f"{name} (last: {points[-1][1]:.0%})"
            axes.plot(*zip(*points, strict=True), label=label, markersize=4, clip_on=False, **CURVES[name][2])
        axes.set(ylim=(-0.02, 1.02), ylabel="accuracy", xlabel="training step")
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, grid="both", keep=("left", "bottom"))
        if curves:
            _show_seconds(axes, sorted({step for points in curves.values() for step, _ in points}), rows)
            axes.legend(loc="best", frameon=False)

    held_out = [name for name in curves if name != "training"]
    said = [f"{name} accuracy {_from_to(curves[name])}" for name in held_out or curves]
    return render(draw, 360, "Learning curve", "; ".join(said) or "no step was trained yet")


def _from_to(points: list[tuple[int, float]]) -> str:
    (first, before), (last, after) = points[0], points[-1]
    return f"{before:.0%} at step {first}" + (f", {after:.0%} at step {last}" if last > first else "")


def _show_seconds(axes: Axes, steps: list[int], rows: list[dict[str, Any]]) -> None:
    """Let the lower axis end with the last of ``steps``, and the upper show when each was reached."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    # Evaluation takes time but no steps, so the earliest row of a step gives its time.
    reached = {row["step"]: row["seconds"] for row in reversed(rows) if {"step", "seconds"} <= row.keys()}
    seconds = [reached[step] for step in steps if step in reached]
    if len(seconds) == len(steps) > 1 and seconds[-1] > seconds[0]:
        unit, name = (60, "minutes") if seconds[-1] > 300 else (1, "seconds")
        # Goes on at the mean pace at both ends: a tick may lie beyond them.
        at, when = (np.array([2 * v[0] - v[-1], *v, 2 * v[-1] - v[0]]) for v in (steps, seconds))
        both = (lambda step: np.interp(step, at, when / unit)), (lambda time: np.interp(time, when / unit, at))
        top = axes.secondary_xaxis("top", functions=both)
        top.set_xlabel(f"{name} since training began")
        top.spines["top"].set_visible(False)
