"""Draw accuracy, or any other number, during training.

    curve = LiveCurve(total_steps=config.steps)
    curve                                                    # show it in its own cell, above the cell that trains
    run_training(config, folder, show=curve.add_row)         # or curve.add("held-out, greedy", step, accuracy)
    curve.show_rows(rows)                                    # or all rows of a run at once (course/lesson/live.py)

An exported page keeps the last state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import traitlets

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.widgets.widget import Widget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES = {
    ("step", "accuracy"): "training episodes",
    ("eval", "greedy_accuracy"): "held-out, greedy",
    ("eval", "sampled_accuracy"): "held-out, sampled",
}


class LiveCurve(Widget, script="live_curve.js"):
    """Draw lines over training steps. With ``percent``, values are shares of 1."""

    series: Any = traitlets.List().tag(sync=True)
    """[name, [[step, value], …]] of every line; a page notices only assignments."""
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, total_steps: int, title: str = "Accuracy", percent: bool = True) -> None:
        super().__init__(look={"total_steps": total_steps, "title": title, "percent": percent})

    def add(self, name: str, step: int, value: float) -> None:
        """Add a point to the line ``name``. Ignores infinite and NaN values."""
        if math.isfinite(value):
            lines = dict(self.series)
            self.series = list(
                (lines | {name: [*lines.get(name, []), [step, round(value, 5)]]}).items()
            )

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add the accuracies in a row of ``metrics.jsonl``."""
        for (event, key), name in SERIES.items():
            if row.get("event") == event and key in row:
                self.add(name, row["step"], row[key])

    def show_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Show the accuracies in ``rows``, and nothing else; the page hears of it once."""
        with self.hold_trait_notifications():
            self.clear()
            for row in rows:
                self.add_row(row)

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        shown = state["look"]

        def draw(figure: Figure) -> None:
            axes = figure.subplots()
            for (name, points), colour in zip(state["series"], cycle(style.SERIES), strict=False):
                axes.plot(
                    *zip(*points, strict=True), color=colour, marker="o", markersize=3, label=name
                )
            axes.set(xlim=(0, shown["total_steps"]), xlabel="training step", ylabel=shown["title"])
            if shown["percent"]:
                axes.set_ylim(-0.02, 1.02)
                style.show_percent(axes.yaxis)
            style.bare_axes(axes, grid="both", keep=("left", "bottom"))
            if state["series"]:
                axes.legend(loc="best", frameon=False)

        last = [
            f"{name} {points[-1][1]:.3g} at step {points[-1][0]}"
            for name, points in state["series"]
        ]
        return render(draw, 300, shown["title"], "; ".join(last) or "no step was trained yet")

    def clear(self) -> None:
        """Remove all lines."""
        self.series = []
