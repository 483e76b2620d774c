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

from zorplex_rl.task.rewards import OUTCOMES
from zorplex_rl.viz import look
from zorplex_rl.viz.svg import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zorplex_rl.policy.evaluate import Report
    from zorplex_rl.task.episode import Episode

OUTCOME_COLOURS = dict(zip(OUTCOMES, (look.GREEN, look.VERMILION, look.ORANGE, look.SKY, look.GREY), strict=True))
DECODING, TOOLS, DONE = look.BLUE, look.PURPLE, look.GREY + "40"


def accuracy_chart(reports: Sequence[Report]) -> str:
    """Accuracy of each kind with its 95 % interval."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            low, high = report.interval
            axes.plot([low, high], [row, row], color=look.BLUE, linewidth=2.5, solid_capstyle="butt")
            axes.plot(report.accuracy, row, color=look.BLUE, marker="o", markersize=8)
            axes.text(high + 0.015, row, f"{report.accuracy:.0%}", va="center")
        _name_shares(axes, [report.name for report in reports], "accuracy on held-out tasks")

    said = "; ".join(f"{r.name} {r.accuracy:.0%}, interval {r.interval[0]:.0%} to {r.interval[1]:.0%}" for r in reports)
    return render(draw, 60 + 36 * len(reports), "Accuracy with 95 % intervals", said, look.NARROW)


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
                    look.write_in_bar(axes, left + share / 2, row, f"{share:.0%}")
                left += share
        _name_shares(axes, [report.name for report in reports], "share of episodes")
        look.draw_legend(figure, {outcome: OUTCOME_COLOURS[outcome] for outcome in seen}, columns=3)

    said = "; ".join(f"{r.name}: " + ", ".join(f"{o} {r.outcomes[o]:.0%}" for o in seen) for r in reports)
    return render(draw, 90 + 36 * len(reports), "How episodes end", said, look.NARROW)


def density_chart(seconds: Mapping[str, Sequence[float]]) -> str:
    """The density of each series' times (a Gaussian kernel estimate), with a mark at each series' slowest."""
    # A single straggler far out would squeeze all the rest: the axis ends behind the slowest hundredth, and its mark stands at the end.
    end = 1.15 * max(sorted(times)[int(0.99 * (len(times) - 1))] for times in seconds.values())

    def draw(figure: Figure) -> None:
        import numpy as np
        from scipy.stats import gaussian_kde

        axes = figure.subplots()
        at = np.linspace(0, end, 300)
        for (name, times), colour in zip(seconds.items(), look.SERIES, strict=False):
            axes.plot(min(max(times), end), 0, color=colour, marker="v", markersize=8, clip_on=False)
            if min(times) == max(times):
                axes.axvline(times[0], color=colour, linewidth=2, label=name)
                continue
            height = gaussian_kde(times)(at)
            axes.plot(at, height, color=colour, linewidth=2, label=name)
            axes.fill_between(at, height, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlim=(0, end), ylim=(0, None), xlabel="seconds for one episode (▾ the slowest)", yticks=[])
        axes.set_ylabel("density")
        look.bare_axes(axes)
        axes.legend(frameon=False)

    said = "; ".join(f"{name}: median {_median(t):.3g} s, slowest {max(t):.3g} s" for name, t in seconds.items())
    return render(draw, 260, "How long an episode takes", said, look.NARROW)


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
        for end, colour in zip(ends, (DECODING, TOOLS, DONE), strict=True):
            axes.stairs(end, baseline=before, orientation="horizontal", fill=True, color=colour, linewidth=0)
            before = end
        axes.set(xlim=(0, slowest), ylim=(len(ordered), 0), yticks=[], xlabel="seconds")
        axes.set_ylabel(f"{len(ordered)} episodes")
        look.bare_axes(axes)
        colours = {"decoding": DECODING} | ({"waiting for tools": TOOLS} if tools else {})
        look.draw_legend(figure, colours | {"done, waiting for the slowest": DONE}, columns=3)

    said = (
        f"{len(ordered)} episodes, the slowest {slowest:.3g} s; {waiting:.0%} of all slots' time goes in waiting for it"
    )
    return render(draw, 250, "One batch", said, look.NARROW)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _name_shares(axes: Axes, names: Sequence[str], label: str) -> None:
    """A named row for each share, and an axis from 0 to 100 %."""
    look.name_rows(axes, names)
    axes.set(xlim=(0, 1), xlabel=label)
    look.show_percent(axes.xaxis)
    look.bare_axes(axes, grid="x")
