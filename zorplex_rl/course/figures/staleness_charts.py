"""Draw stale data: how far their ratios are from 1, what each loss does with such a ratio, how runs
go.

    ratios of the tokens, for each age      ──► ratio_chart
    weight of a token's gradient, by ratio  ──► push_chart
    accuracy over steps, live and recorded  ──► runs_chart

All return SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^"
LOSSES = {"plain": style.BLUE, "clipped": style.VERMILION, "masked": style.GREEN}
"""The colour of each loss."""
DOTS = 120
"""Dots in a row of ``ratio_chart``: each stands for the same share of the tokens."""
FURTHEST = 32.0
"""Ratios beyond this (or below its inverse) are drawn at the edge."""


def ratio_chart(ratios: Mapping[str, Sequence[float]], sizes: Mapping[str, float]) -> str:
    """Draw the ratios π/μ of tokens, one row for each age of the data, and their effective sample
    size (a share) at the right."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter

        axes = figure.subplots()
        for row, (name, found) in enumerate(ratios.items()):
            drawn = [min(max(ratio, 1 / FURTHEST), FURTHEST) for ratio in quantiles(found, DOTS)]
            # The golden ratio spreads neighbours evenly over the height of the row.
            heights = [row - 0.34 + 0.68 * ((index * 0.618) % 1) for index in range(len(drawn))]
            axes.plot(drawn, heights, linestyle="", marker="o", markersize=3.5, alpha=0.7, color=style.BLUE)
            at = axes.get_yaxis_transform()
            axes.text(1.14, row, f"{sizes[name]:.0%}", ha="right", va="center", transform=at)
        axes.set_xscale("log", base=2)
        axes.axvline(1.0, color=style.GREY, linewidth=1)
        axes.set(xlim=(0.8 / FURTHEST, 1.25 * FURTHEST), xlabel="ratio π/μ of a token (each mark doubles)")
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda ratio, _: f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}")
        )
        style.name_rows(axes, list(ratios))
        style.bare_axes(axes, grid="x")
        axes.minorticks_off()
        axes.set_title("sample size", loc="right", fontsize=12)

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


def push_chart(ratios: Sequence[float], pushes: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Draw by what factor each loss multiplies the gradient of a token, over its ratio: for a good
    token and for a bad one.

    ``pushes`` maps a loss to its factors at ``ratios``, for an advantage of 1 and of −1.
    """
    highest = max(factor for both in pushes.values() for factors in both for factor in factors)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, sign, title in zip(panels, (0, 1), ("good token, A = 1", "bad token, A = −1"), strict=True):
            for number, (name, both) in enumerate(pushes.items()):
                dashes = ("-", "--", "-", ":")[number % 4]
                axes.plot(ratios, both[sign], dashes, color=LOSSES[name], linewidth=2.2, label=name)
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
            axes.set(xlabel="ratio π/μ", ylim=(-0.1, 1.08 * highest), xlim=(0, max(ratios)))
            style.bare_axes(axes, grid="both")
        panels[0].set_ylabel("weight of ∇ log π")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False)

    said = "; ".join(
        f"{name}: good token {good[0]:.2g} at ratio {ratios[0]:.2g}, {good[-1]:.2g} at ratio {ratios[-1]:.2g}, "
        f"bad token {bad[0]:.2g} and {bad[-1]:.2g}"
        for name, (good, bad) in pushes.items()
    )
    return render(draw, 300, "What a loss does with a token, by its ratio", said)


def runs_chart(
    runs: Mapping[str, Sequence[tuple[int, float]]],
    before: float,
    recorded: Mapping[str, Sequence[Sequence[tuple[int, float]]]] | None = None,
    height: int = 300,
) -> str:
    """Draw the accuracy of runs over their steps: thick what was trained now, thin what was
    recorded, a line for each seed.

    ``runs`` maps a name to its (step, share); ``recorded`` maps names to such lines. A name begins
    with its loss, which has its colour; a run on fresh data, the control, is dashed. ``before`` is
    a dotted line.
    """
    names = dict.fromkeys([*runs, *(recorded or {})])
    colours = {name: LOSSES.get(name.partition(",")[0], style.GREY) for name in names}
    styles = {name: "--" if "fresh" in name else "-" for name in names}

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        for name, lines in (recorded or {}).items():
            for line in lines:
                axes.plot(*zip(*line, strict=True), styles[name], color=colours[name], linewidth=1, alpha=0.6)
        for number, (name, line) in enumerate(runs.items()):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(
                *zip(*line, strict=True), styles[name], color=colours[name], linewidth=3, marker=marker, label=name
            )
        axes.axhline(before, color=style.GREY, linestyle=":", linewidth=1.2)
        axes.text(1, before, "before training", ha="right", va="bottom", transform=axes.get_yaxis_transform())
        axes.set(xlabel="training step", ylabel="held-out accuracy", ylim=(-0.02, 1.04))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, grid="y")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    said = "; ".join(
        f"{name} {line[0][1]:.0%} at step {line[0][0]}, {line[-1][1]:.0%} at step {line[-1][0]}"
        for name, line in runs.items()
    )
    for name, lines in (recorded or {}).items():
        ends = ", ".join(f"{line[-1][1]:.0%}" for line in lines)
        said += f"; recorded, {name}: {ends} at step {lines[0][-1][0]}"
    return render(draw, height, "Accuracy of runs", said)
