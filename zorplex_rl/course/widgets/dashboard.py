"""Draw several metrics of a training run while it goes on: a small panel for each, with a line for each run.

    dashboard = Dashboard(config.steps, {"reward": "mean reward", "entropy": "entropy"})
    dashboard                                       # show it in its own cell, above the cell that trains
    dashboard.add("this run", step, metrics)        # metrics: the diagnostics of a step, or a row of metrics.jsonl

An exported page keeps the last state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import traitlets

from zorplex_rl.course.widgets.widget import Widget
from zorplex_rl.drawing import look
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3


class Dashboard(Widget, script="dashboard.js"):
    """Draw a panel for each metric in ``panels``, which maps its name to the panel's title; every axis includes 0."""

    series: Any = traitlets.List().tag(sync=True)
    """[metric, run, [[step, value], …]] of every line. Every step assigns a new list: the page notices only assignments."""
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, total_steps: int, panels: Mapping[str, str], title: str = "Dashboard") -> None:
        shown = {"total_steps": total_steps, "title": title, "panels": [list(panel) for panel in panels.items()]}
        super().__init__(look=shown)

    def add(self, run: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a point to the line of ``run`` in the panel of every metric that ``metrics`` has. Ignores infinite and NaN values."""
        lines = {(metric, name): points for metric, name, points in self.series}
        for metric, _ in self.look["panels"]:
            if math.isfinite(value := metrics.get(metric, math.nan)):
                lines[metric, run] = [*lines.get((metric, run), []), [step, round(value, 5)]]
        self.series = [[metric, name, points] for (metric, name), points in lines.items()]

    def clear(self, run: str | None = None) -> None:
        """Remove the lines of ``run``, or all."""
        self.series = [line for line in self.series if run is not None and line[1] != run]

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        shown = state["look"]
        rows = math.ceil(len(shown["panels"]) / COLUMNS)

        def draw(figure: Figure) -> None:
            for axes, panel in zip(
                figure.subplots(rows, COLUMNS, squeeze=False).flat, [*shown["panels"], None, None], strict=False
            ):
                if panel is None:
                    axes.set_visible(False)
                    continue
                own = [(run, points) for metric, run, points in state["series"] if metric == panel[0]]
                for (run, points), colour, style in zip(own, cycle(look.SERIES), cycle(("-", "--", ":")), strict=False):
                    axes.plot(*zip(*points, strict=True), style, color=colour, label=run)
                axes.set_title(panel[1], loc="left", fontsize=12)
                axes.set(xlim=(0, shown["total_steps"]))
                axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
                look.bare_axes(axes, grid="y", keep=("left", "bottom"))

        last = [
            f"{metric} of {run} {points[-1][1]:.3g} at step {points[-1][0]}" for metric, run, points in state["series"]
        ]
        return render(draw, 150 * rows, shown["title"], "; ".join(last) or "no step was trained yet")
