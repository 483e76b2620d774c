"""Draw lines in panels beside each other, and the ratios of tokens as dots.

    losses of some runs                        ──► loss_chart      02
    what models have learned of a curve        ──► fits_chart      03
    {policy: {k: share}}                       ──► pass_chart      05c
    shares of runs, before and after           ──► seeds_chart     05c
    factor of a token's gradient, by ratio     ──► push_chart      09
    accuracy over steps                        ──► runs_chart      09
    accuracy over seconds, for each lag        ──► seconds_chart   09
    ratios of the tokens, for each age         ──► ratio_chart     09

Each returns SVG text (``course/figures/figure.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import TYPE_CHECKING

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSSES = {
    "plain": style.BLUE,
    "clipped": style.VERMILION,
    "corrected": style.PURPLE,
    "masked": style.GREEN,
}
"""The colour of each loss."""
FAILING = {"run A": style.ORANGE, "run B": style.DEEP_BLUE, "run C": style.OLIVE}
"""The colour of each run whose loss nobody knows yet."""
DOTS = 120
"""Dots in a row of ``ratio_chart``: each stands for the same share of the tokens."""
FURTHEST = 32.0
"""Ratios beyond this (or below its inverse) are drawn at the edge."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line through ``points``. A legend names it, unless the name begins with an underscore."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = "-"
    width: float = 2.2
    marker: str = ""


def line_panels(
    panels: Mapping[str, Sequence[Line]],
    title: str,
    said: str,
    height: int,
    finish: Callable[[int, Axes], None],
) -> str:
    """Draw the lines of each panel; ``finish`` sets the axes of a panel by its number."""

    def draw(figure: Figure) -> None:
        found = figure.subplots(1, len(panels), squeeze=False)[0]
        for number, (axes, (name, lines)) in enumerate(zip(found, panels.items(), strict=True)):
            for line in lines:
                x, y = zip(*line.points, strict=True)
                axes.plot(
                    x,
                    y,
                    line.dashes,
                    color=line.colour,
                    linewidth=line.width,
                    marker=line.marker,
                    label=line.name,
                )
            if len(panels) > 1:
                axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
            style.bare_axes(axes, grid="y")
            finish(number, axes)
        handles, labels = found[0].get_legend_handles_labels()
        if handles:
            figure.legend(
                handles, labels, loc="outside upper left", ncols=min(len(labels), 4), frameon=False
            )

    return render(draw, height, title, said)


def whole_steps(axes: Axes) -> None:
    """Name the axis of training steps, with marks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step")


def loss_chart(curves: Mapping[str, Sequence[float]], label: str) -> str:
    """Draw losses over steps on a log axis; the first is wide, since others may lie on it."""
    looks = [
        (style.GREY, "-", 7),
        (style.BLUE, "-", 2),
        (style.ORANGE, "--", 2),
        (style.VERMILION, ":", 2),
    ]
    lines = [
        Line(name.replace("`", ""), list(enumerate(losses, 1)), colour, dashes, width)
        for (name, losses), (colour, dashes, width) in zip(curves.items(), looks, strict=False)
    ]

    def finish(number: int, axes: Axes) -> None:
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
        axes.minorticks_off()
        axes.set(xlabel="step", ylabel=label)

    ends = "; ".join(f"{line.name} ends at {line.points[-1][1]:.2g}" for line in lines)
    return line_panels({"": lines}, "Losses over the steps", ends, 320, finish)


def fits_chart(
    at: Sequence[float], target: Sequence[float], fits: Mapping[str, Sequence[float]], shares: int
) -> str:
    """Draw the target in grey and what each model has learned; dots bound the ``shares``."""
    goal, width = (
        Line("_", list(zip(at, target, strict=True)), style.GREY, width=4),
        (at[-1] - at[0]) / shares,
    )
    panels = {
        name: [goal, Line("_", list(zip(at, values, strict=True)), colour)]
        for (name, values), colour in zip(fits.items(), style.SERIES, strict=False)
    }

    every = [*target, *(value for values in fits.values() for value in values)]

    def finish(number: int, axes: Axes) -> None:
        axes.set(ylim=(1.1 * min(every), 1.1 * max(every)))
        for edge in range(1, shares):
            axes.axvline(at[0] + edge * width, color=style.GREY, linewidth=1, linestyle=":")
        axes.set(xticks=[at[0] + (share + 0.5) * width for share in range(shares)])
        axes.set_xticklabels([f"{share}" for share in range(shares)])
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("the learner whose data these are")

    return line_panels(
        panels, "What was learned", f"grey the target; {', '.join(fits)}", 230, finish
    )


def pass_chart(passes: Mapping[str, Mapping[int, float]]) -> str:
    """Draw the share of tasks solved in k attempts over k, a line for each policy."""
    looks = zip(passes.items(), style.SERIES, "os^D", strict=False)
    lines = [
        Line(name, list(found.items()), colour, marker=marker)
        for (name, found), colour, marker in looks
    ]

    def finish(number: int, axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set(ylim=(0, 1.03), xlabel="k attempts (each mark doubles)", ylabel="pass@k")
        ticks = sorted({k for found in passes.values() for k in found})
        axes.set_xticks(ticks, labels=[str(k) for k in ticks])
        axes.minorticks_off()
        style.show_percent(axes.yaxis)

    said = "; ".join(
        f"{name}: " + ", ".join(f"{share:.0%} at k {k}" for k, share in f.items())
        for name, f in passes.items()
    )
    return line_panels({"": lines}, "Tasks solved in k attempts", said, 300, finish)


def seeds_chart(before: Sequence[float], after: Sequence[float]) -> str:
    """Draw each run as a point at its share of right answers, before training and after it; equal ones above each other."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (shares, colour) in enumerate(((before, style.GREY), (after, style.BLUE))):
            heights = [row + 0.3 - 0.1 * shares[:n].count(x) for n, x in enumerate(shares)]
            axes.plot(shares, heights, "o", color=colour, markersize=4.5)
        style.name_rows(axes, ["before", "after"], margin=0.55)
        axes.set(xlim=(0, 1), xlabel="right answers")
        style.show_percent(axes.xaxis)
        style.bare_axes(axes, grid="x")

    said = f"before training {min(before):.0%} to {max(before):.0%}; after training {min(after):.0%} to {max(after):.0%}"
    return render(draw, 190, "Runs that differ in their seed", said)


def push_chart(
    ratios: Sequence[float], pushes: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> str:
    """Draw by what each loss multiplies a token's gradient, by ratio: for A = 1 and A = −1."""
    highest = max(factor for both in pushes.values() for factors in both for factor in factors)
    panels = {
        title: [
            Line(name, list(zip(ratios, both[sign], strict=True)), LOSSES[name], dashes)
            for (name, both), dashes in zip(pushes.items(), ("-", "--", "-.", ":"), strict=False)
        ]
        for sign, title in enumerate(("good token, A = 1", "bad token, A = −1"))
    }

    def finish(number: int, axes: Axes) -> None:
        axes.set(xlabel="ratio π/μ", ylim=(-0.1, 1.08 * highest), xlim=(0, max(ratios)))
        axes.set_ylabel("" if number else "factor at A ∇ log π")

    said = "; ".join(
        f"{name}: good token {good[0]:.2g} at ratio {ratios[0]:.2g}, {good[-1]:.2g} at ratio {ratios[-1]:.2g}, "
        f"bad token {bad[0]:.2g} and {bad[-1]:.2g}"
        for name, (good, bad) in pushes.items()
    )
    return line_panels(panels, "What a loss does with a token, by its ratio", said, 300, finish)


def runs_chart(
    runs: Mapping[str, Sequence[tuple[int, float]]],
    before: float,
    height: int = 300,
) -> str:
    """Draw the accuracy of ``runs`` over steps.

    A name begins with its loss, which has its colour. Fresh data are dashed, wrong records dash-dotted; the accuracy
    ``before`` training, on more tasks than a point has, is a dotted line.
    """

    drawn = []
    for (name, points), marker in zip(runs.items(), cycle("osD^v"), strict=False):
        colour = (LOSSES | FAILING).get(name.partition(",")[0], style.GREY)
        dash = "--" if "fresh" in name else "-." if "wrong" in name else "-"
        drawn.append(Line(name, points, colour, dash, 3, marker))

    def finish(number: int, axes: Axes) -> None:
        axes.axhline(
            before,
            color=style.GREY,
            linestyle=":",
            linewidth=1.2,
            label="before training, all tasks",
        )
        axes.set(ylabel="held-out accuracy", ylim=(-0.02, 1.04))
        whole_steps(axes)
        style.show_percent(axes.yaxis)

    said = "; ".join(
        f"{name} {points[0][1]:.0%} at step {points[0][0]}, {points[-1][1]:.0%} at step {points[-1][0]}"
        for name, points in runs.items()
    )
    return line_panels({"": drawn}, "Accuracy of runs", said, height, finish)


def seconds_chart(dots: Mapping[str, tuple[float, Sequence[float]]]) -> str:
    """Draw accuracy over seconds: under each name a second, and the shares of which the dot is the mean."""
    colour = LOSSES["clipped"]
    points = [(second, fmean(shares)) for second, shares in dots.values()]
    line = Line("clipped", points, colour, marker="o")

    def finish(number: int, axes: Axes) -> None:
        pairs = zip(dots.items(), points, strict=True)
        # Ranges that lie on each other are told apart by their caps.
        for width, ((mark, (_, shares)), point) in enumerate(pairs, 2):
            ends = [min(shares), max(shares)]
            axes.plot(
                [point[0]] * 2, ends, color=colour, linewidth=1, marker="_", markersize=3 * width
            )
            place, side = ((6, -13), "left") if point[0] > points[-1][0] else ((-7, -4), "right")
            axes.annotate(mark, point, place, textcoords="offset points", ha=side, fontsize=10)
        axes.set(xlabel="seconds of the run", ylabel="right answers")
        axes.margins(x=0.12, y=0.2)
        style.show_percent(axes.yaxis)

    said = "; ".join(
        f"{mark}: {fmean(shares):.0%} after {second:.1f} s"
        for mark, (second, shares) in dots.items()
    )
    return line_panels({"": [line]}, "Right answers over seconds", said, 340, finish)


def ratio_chart(ratios: Mapping[str, Sequence[float]], sizes: Mapping[str, float]) -> str:
    """Draw the ratios of tokens, a row for each age, and their effective sample size."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter

        axes = figure.subplots()
        for row, (name, found) in enumerate(ratios.items()):
            drawn = [min(max(ratio, 1 / FURTHEST), FURTHEST) for ratio in quantiles(found, DOTS)]
            heights = [height_of(number, row) for number in range(len(drawn))]
            axes.plot(
                drawn,
                heights,
                linestyle="",
                marker="o",
                markersize=3.5,
                alpha=0.7,
                color=style.BLUE,
            )
            at = axes.get_yaxis_transform()
            axes.text(1.14, row, f"{sizes[name]:.0%}", ha="right", va="center", transform=at)
        axes.set_xscale("log", base=2)
        axes.axvline(1.0, color=style.GREY, linewidth=1)
        axes.set(
            xlim=(0.8 / FURTHEST, 1.25 * FURTHEST),
            xlabel="ratio π₀/μ of a token (from mark to mark four times as much)",
        )
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda ratio, _: f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}")
        )
        style.name_rows(axes, list(ratios))
        style.bare_axes(axes, grid="x")
        axes.minorticks_off()
        axes.set_title("sample\nsize", x=1.14, loc="right", fontsize=12)

    said = "; ".join(
        f"{name}: from {min(found):.2g} to {max(found):.2g}, effective sample size {sizes[name]:.0%}"
        for name, found in ratios.items()
    )
    return render(draw, 90 + 56 * len(ratios), "Ratios of tokens", said)


def quantiles(values: Sequence[float], count: int) -> list[float]:
    """Return ``count`` of ``values``, evenly spaced by rank; all of them if there are fewer.

    >>> quantiles([5.0, 1.0, 3.0, 2.0, 4.0], 3)
    [1.0, 3.0, 5.0]
    """
    ordered = sorted(values)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def height_of(number: int, row: float) -> float:
    """Return where dot ``number`` of ``row`` stands. The golden ratio spreads neighbours evenly
    over the height of the row."""
    return row - 0.32 + 0.64 * (0.618 * number % 1)
