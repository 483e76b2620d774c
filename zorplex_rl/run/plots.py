"""Draw the learning curve of a run: rows of ``metrics.jsonl`` ──► SVG text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[int, float]
"""A step and a value."""


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
        """Return its points in order. If a step occurs twice, the later row counts."""
        values: dict[int, float] = {}
        for row in rows:
            if row.get("event") == self.event and self.key in row:
                values[row["step"]] = row[self.key]
        return sorted(values.items())


TRAINING = Curve("training", "step", "accuracy", style.GREY, ".", 1)
GREEDY = Curve("held-out greedy", "eval", "greedy_accuracy", style.BLUE, "o", 2)
SAMPLED = Curve("held-out sampled", "eval", "sampled_accuracy", style.VERMILION, "s", 2)


def learning_curve(rows: list[dict[str, Any]]) -> str:
    """Draw accuracy over steps: held-out greedy and sampled, and in grey that of training episodes. The
    upper axis shows the ``seconds`` of the rows."""
    curves: dict[Curve, list[Point]] = {}
    for curve in (TRAINING, GREEDY, SAMPLED):
        points = curve.points(rows)
        if points:
            curves[curve] = points

    def draw(figure: Figure) -> None:
        _draw_curves(figure.subplots(), curves, rows)

    described = [curve for curve in curves if curve is not TRAINING] or list(curves)
    sentences = [f"{curve.name} accuracy {_from_to(curves[curve])}" for curve in described]
    return render(
        draw,
        height=360,
        title="Learning curve",
        description="; ".join(sentences) or "no step was trained yet",
    )


def _draw_curves(
    axes: Axes,
    curves: dict[Curve, list[Point]],
    rows: list[dict[str, Any]],
) -> None:
    all_steps = set[int]()
    for curve, points in curves.items():
        steps, values = zip(*points, strict=True)
        all_steps.update(steps)
        axes.plot(
            steps,
            values,
            label=f"{curve.name} (last: {values[-1]:.0%})",
            color=curve.colour,
            marker=curve.marker,
            linewidth=curve.linewidth,
            markersize=4,
            clip_on=False,
        )
    axes.set(ylim=(-0.02, 1.02), ylabel="accuracy", xlabel="training step")
    style.show_percent(axes.yaxis)
    style.bare_axes(axes, grid="both", keep=("left", "bottom"))
    if curves:
        _set_steps(axes, sorted(all_steps))
        _add_seconds(axes, sorted(all_steps), rows)
        axes.legend(loc="best", frameon=False)


def _from_to(points: list[Point]) -> str:
    """Return the first and the last of ``points`` in words."""
    first_step, first = points[0]
    last_step, last = points[-1]
    words = f"{first:.0%} at step {first_step}"
    if last_step > first_step:
        words += f", {last:.0%} at step {last_step}"
    return words


def _set_steps(axes: Axes, steps: list[int]) -> None:
    """Make the lower axis go from the first to the last of ``steps``."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True)
    axes.xaxis.set_major_locator(locator)
    first = steps[0]
    axes.set_xlim(first, max(steps[-1], first + 1))


def _add_seconds(axes: Axes, steps: list[int], rows: list[dict[str, Any]]) -> None:
    """Show on an upper axis when each of ``steps`` was reached, if all rows say so."""
    import numpy as np

    reached: dict[int, float] = {}
    for row in rows:
        if "step" in row and "seconds" in row:
            # Evaluation takes time but no steps, so the earliest row of a step gives its time.
            reached.setdefault(row["step"], row["seconds"])
    seconds = [reached[step] for step in steps if step in reached]
    if len(steps) < 2 or len(seconds) < len(steps):
        return
    if seconds[-1] <= seconds[0]:
        return
    in_minutes = seconds[-1] > 300
    # A tick may lie beyond either end: there, time goes on at the mean pace.
    known_steps = np.array(_extended(steps))
    known_times = np.array(_extended(seconds)) / (60 if in_minutes else 1)

    def time_of(step: Any) -> Any:
        return np.interp(step, known_steps, known_times)

    def step_of(time: Any) -> Any:
        return np.interp(time, known_times, known_steps)

    top = axes.secondary_xaxis("top", functions=(time_of, step_of))
    unit = "minutes" if in_minutes else "seconds"
    top.set_xlabel(f"{unit} since training began")
    top.spines["top"].set_visible(False)


def _extended(values: list[Any]) -> list[Any]:
    """Return ``values`` with one more at either end, as far away as the other end is."""
    first = values[0]
    last = values[-1]
    return [2 * first - last, *values, 2 * last - first]
