"""Figures of what a policy does: how often it is right, how it fails, how long it takes, and what waiting for the slowest costs.

    Report (evaluate.py)        ──► accuracy_chart, outcome_chart
    seconds of episodes         ──► density_chart
    Episodes of one batch       ──► batch_chart

All are SVG text (``svg.py``), narrow enough to be read on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from zorplex_rl.policy.evaluate import Report
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import OUTCOMES
from zorplex_rl.viz.svg import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 560
# After Okabe and Ito, as in plots.py: told apart with any colour vision, on white and on black.
SERIES = ("#2484CE", "#D55E00", "#009E73", "#CC79A7")
OUTCOME_COLOURS = dict(zip(OUTCOMES, ("#009E73", "#D55E00", "#E69F00", "#56B4E9", "#808080"), strict=True))
COMPUTE, TOOL, GREY = "#2484CE", "#CC79A7", "#808080"


def accuracy_chart(reports: Sequence[Report]) -> str:
    """Accuracy of each kind with its 95 % interval."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            low, high = report.interval
            axes.plot([low, high], [row, row], color=SERIES[0], linewidth=2.5, solid_capstyle="butt")
            axes.plot(report.accuracy, row, color=SERIES[0], marker="o", markersize=8)
            axes.text(high + 0.015, row, f"{report.accuracy:.0%}", va="center")
        _rows(axes, [report.name for report in reports])
        _share_axis(axes, "accuracy on held-out tasks")

    said = "; ".join(f"{r.name} {r.accuracy:.0%}, interval {r.interval[0]:.0%} to {r.interval[1]:.0%}" for r in reports)
    return render(draw, 60 + 36 * len(reports), "Accuracy with 95 % intervals", said, WIDTH)


def outcome_chart(reports: Sequence[Report]) -> str:
    """How the episodes of each kind ended, as shares that add up to 1."""
    seen = [outcome for outcome in OUTCOMES if any(report.outcomes[outcome] for report in reports)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            left = 0.0
            for outcome in seen:
                share = report.outcomes[outcome]
                axes.barh(row, share, left=left, height=0.66, color=OUTCOME_COLOURS[outcome])
                if share >= 0.08:
                    axes.text(left + share / 2, row, f"{share:.0%}", ha="center", va="center", color="#000001")
                left += share
        _rows(axes, [report.name for report in reports])
        _share_axis(axes, "share of episodes")
        _legend(figure, {outcome: OUTCOME_COLOURS[outcome] for outcome in seen})

    said = "; ".join(f"{r.name}: " + ", ".join(f"{o} {r.outcomes[o]:.0%}" for o in seen) for r in reports)
    return render(draw, 90 + 36 * len(reports), "How episodes end", said, WIDTH)


def density_chart(seconds: Mapping[str, Sequence[float]]) -> str:
    """The density of each series' times (a Gaussian kernel estimate), with a mark at each series' slowest."""
    # A single straggler far out would squeeze all the rest: the axis ends behind the slowest hundredth, and its mark stands at the end.
    end = 1.15 * max(sorted(times)[int(0.99 * (len(times) - 1))] for times in seconds.values())

    def draw(figure: Figure) -> None:
        import numpy as np
        from scipy.stats import gaussian_kde

        axes = figure.subplots()
        at = np.linspace(0, end, 300)
        for (name, times), colour in zip(seconds.items(), SERIES, strict=False):
            axes.plot(min(max(times), end), 0, color=colour, marker="v", markersize=8, clip_on=False)
            if min(times) == max(times):
                axes.axvline(times[0], color=colour, linewidth=2, label=name)
                continue
            height = gaussian_kde(times)(at)
            axes.plot(at, height, color=colour, linewidth=2, label=name)
            axes.fill_between(at, height, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlim=(0, end), ylim=(0, None), xlabel="seconds for one episode (▾ the slowest)", yticks=[])
        axes.set_ylabel("density")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.legend(frameon=False)

    said = "; ".join(f"{name}: median {_median(t):.3g} s, slowest {max(t):.3g} s" for name, t in seconds.items())
    return render(draw, 260, "How long an episode takes", said, WIDTH)


def batch_chart(episodes: Sequence[Episode]) -> str:
    """One batch, a line per episode, the fastest on top: time spent decoding, time spent on tools, time until the slowest has ended.

    The first two alternate in truth and are added up here.
    """
    ordered = sorted(episodes, key=lambda episode: episode.seconds)
    slowest = ordered[-1].seconds
    waiting = 1 - fmean(episode.seconds for episode in ordered) / slowest
    tools = any(episode.tool_seconds > 0.01 * slowest for episode in ordered)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        total = [episode.seconds for episode in ordered]
        decoding = [episode.seconds - episode.tool_seconds for episode in ordered]
        ends, before = [decoding, total, [slowest] * len(total)], [0.0] * len(total)
        for end, colour in zip(ends, (COMPUTE, TOOL, GREY + "40"), strict=True):
            axes.stairs(end, baseline=before, orientation="horizontal", fill=True, color=colour, linewidth=0)
            before = end
        axes.set(xlim=(0, slowest), ylim=(len(ordered), 0), yticks=[], xlabel="seconds")
        axes.set_ylabel(f"{len(ordered)} episodes")
        axes.spines[["top", "right", "left"]].set_visible(False)
        colours = {"decoding": COMPUTE} | ({"waiting for tools": TOOL} if tools else {})
        _legend(figure, colours | {"done, waiting for the slowest": GREY + "40"})

    said = (
        f"{len(ordered)} episodes, the slowest {slowest:.3g} s; {waiting:.0%} of all slots' time goes in waiting for it"
    )
    return render(draw, 250, "One batch", said, WIDTH)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _share_axis(axes: Axes, label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set(xlim=(0, 1), xlabel=label)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.8)
    axes.set_axisbelow(True)


def _legend(figure: Figure, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(3, len(handles)), frameon=False)
