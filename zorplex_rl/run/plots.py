"""Draw the learning curve of a run: rows of ``metrics.jsonl`` ──► SVG text.

White stands behind the curve, so that it is readable in a dark viewer, too. Equal rows give equal bytes.
"""

import io
from dataclasses import dataclass
from typing import Any

Point = tuple[float, float]
"""Seconds since training began, and a value."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of the learning curve."""

    name: str
    event: str
    """The event of its rows in ``metrics.jsonl``."""
    key: str
    """The entry of these rows that the line shows."""
    colour: str
    marker: str
    linewidth: int

    def points(self, rows: list[dict[str, Any]]) -> list[Point]:
        """Return its points in the order of their steps. If a step occurs twice, the later row counts."""
        points: dict[int, Point] = {}
        for row in rows:
            if row.get("event") == self.event and self.key in row:
                points[row["step"]] = (row["seconds"], row[self.key])
        return [points[step] for step in sorted(points)]


CURVES = (
    Curve("training", "step", "accuracy", "#808080", ".", 1),
    Curve("held-out greedy", "eval", "greedy_accuracy", "#2484CE", "o", 2),
    Curve("held-out sampled", "eval", "sampled_accuracy", "#D55E00", "s", 2),
)


def learning_curve(rows: list[dict[str, Any]]) -> str:
    """Draw accuracy over time: held-out greedy and sampled, and in grey that of training episodes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for curve in CURVES:
        points = curve.points(rows)
        if points:
            seconds, values = zip(*points, strict=True)
            axes.plot(
                seconds,
                values,
                label=f"{curve.name} (last: {values[-1]:.0%})",
                color=curve.colour,
                marker=curve.marker,
                linewidth=curve.linewidth,
                markersize=4,
            )
    if axes.lines:
        axes.legend(frameon=False)
    axes.set(ylim=(-0.02, 1.02), ylabel="accuracy", xlabel="seconds of training")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.grid(alpha=0.25)
    file = io.StringIO()
    # Text stays text; ids are made from this word instead of by chance.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "zorplex_rl"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
