"""Draw the learning curve of a run: rows of ``metrics.jsonl`` ──► SVG text."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def learning_curve(rows: list[dict[str, Any]]) -> str:
    """Draw accuracy over steps: held-out greedy and sampled; in grey, of training episodes.

    ``rows`` are the lines of a run's ``metrics.jsonl``. ``step`` rows give ``accuracy``; ``eval``
    rows give ``greedy_accuracy`` and ``sampled_accuracy``; ``seconds`` of both give the upper axis.
    If a step occurs twice (a resumed run), the later row counts.
    """
    training = _curve(rows, "step", "accuracy")
    held_out = {name: _curve(rows, "eval", f"{name}_accuracy") for name in ("greedy", "sampled")}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if len(training) == 1 else {}
        if training:
            axes.plot(
                *zip(*training, strict=True), label="training episodes", color=style.GREY, alpha=0.8, linewidth=1, **dot
            )
        styles = {"greedy": (style.BLUE, "o"), "sampled": (style.VERMILION, "s")}
        for name, points in held_out.items():
            if points:
                label = f"held-out, {name} (last: {points[-1][1]:.0%})"
                colour, marker = styles[name]
                axes.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, linewidth=2, markersize=5, label=label
                )
        axes.set(ylim=(-0.02, 1.02), ylabel="accuracy")
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, grid="both", keep=("left", "bottom"))
        _set_step_axes(axes, sorted({step for p in (training, *held_out.values()) for step, _ in p}), rows)
        if axes.lines:
            axes.legend(loc="best", frameon=False)
        else:
            axes.text(0.5, 0.5, "no step was trained yet", ha="center", va="center", transform=axes.transAxes)

    said = [f"held-out {name} accuracy {_from_to(points)}" for name, points in held_out.items() if points]
    if not said:
        said = [f"training accuracy {_from_to(training)}"] if training else ["no step was trained yet"]
    return render(draw, 360, "Learning curve", "; ".join(said))


def _curve(rows: list[dict[str, Any]], event: str, key: str) -> list[tuple[int, float]]:
    """Return (step, value) of ``event`` rows with ``key``, by step; a step's last row counts."""
    values = {r["step"]: r.get(key) for r in rows if r.get("event") == event and "step" in r}
    return sorted((step, value) for step, value in values.items() if value is not None and math.isfinite(value))


def _from_to(points: list[tuple[int, float]]) -> str:
    (first, before), (last, after) = points[0], points[-1]
    return f"{before:.0%} at step {first}" + (f", {after:.0%} at step {last}" if last > first else "")


def _set_step_axes(axes: Axes, steps: list[int], rows: list[dict[str, Any]]) -> None:
    """Label the lower axis with training steps, the upper with the seconds of reaching them."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
    if len(steps) < 2:
        axes.set_xticks(steps)
    else:
        margin = 0.02 * (steps[-1] - steps[0])
        axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    # Evaluation takes time but no steps, so the earliest row of a step gives its time.
    reached = dict(sorted(((r["step"], r["seconds"]) for r in rows if {"step", "seconds"} <= r.keys()), reverse=True))
    known = [(step, reached[step]) for step in steps if step in reached]
    if len(known) < 2 or known[-1][1] <= known[0][1]:
        return
    low, high = known[0][1], known[-1][1]
    unit, name = (60, "minutes") if high > 300 else (1, "seconds")
    ticks = [
        t
        for t in MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low / unit, high / unit)
        if low <= t * unit <= high
    ]
    top = axes.secondary_xaxis("top")
    top.set_ticks([_step_at(t * unit, known) for t in ticks], [f"{t:g}" for t in ticks])
    top.set_xlabel(f"{name} since training began")
    top.spines["top"].set_visible(False)


def _step_at(seconds: float, known: list[tuple[int, float]]) -> float:
    """Return the fractional step at ``seconds``, linear between ``known`` (step, seconds)."""
    for (step, before), (next_step, after) in pairwise(known):
        if before <= seconds <= after and after > before:
            return step + (next_step - step) * (seconds - before) / (after - before)
    return known[-1][0]
