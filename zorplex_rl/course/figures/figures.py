"""Draw how a policy performs: kinds of failure, tasks solved in k attempts.

    Report (evaluate.py)        ──► outcome_chart
    {policy: {k: share}}        ──► pass_chart

Each returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import render
from zorplex_rl.task.episode import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zorplex_rl.policy.evaluate import Report

OUTCOME_COLOURS = dict(zip(OUTCOMES, (style.GREEN, style.VERMILION, style.ORANGE, style.SKY, style.GREY), strict=True))


def pass_chart(passes: Mapping[str, Mapping[int, float]]) -> str:
    """Draw the share of tasks solved in k attempts over k, a line for each policy. ``passes`` maps
    its name to {k: share}."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import NullLocator

        axes = figure.subplots()
        for (name, found), colour, marker in zip(passes.items(), style.SERIES, "os^D", strict=False):
            axes.plot(list(found), list(found.values()), color=colour, marker=marker, linewidth=2, label=name)
        ticks = sorted({k for found in passes.values() for k in found})
        axes.set_xscale("log", base=2)
        axes.set(ylim=(0, 1.03), xlabel="k attempts (each mark doubles)", ylabel="pass@k")
        axes.set_xticks(ticks, labels=[str(k) for k in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, grid="both")
        axes.legend(loc="lower right", frameon=False)

    said = "; ".join(
        f"{name}: " + ", ".join(f"{share:.0%} at k {k}" for k, share in f.items()) for name, f in passes.items()
    )
    return render(draw, 300, "Tasks solved in k attempts", said)


def outcome_chart(reports: Sequence[Report]) -> str:
    """Draw the shares of outcomes of each report as a stacked bar; each bar adds up to 1."""
    seen = [outcome for outcome in OUTCOMES if any(report.outcomes[outcome] for report in reports)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            left = 0.0
            for outcome in seen:
                share = report.outcomes[outcome]
                axes.barh(row, share, left=left, height=0.66, color=OUTCOME_COLOURS[outcome])
                if share >= 0.08:
                    style.write_in_bar(axes, left + share / 2, row, f"{share:.0%}")
                left += share
        _name_shares(axes, [report.name for report in reports], "share of episodes")
        style.draw_legend(figure, {outcome: OUTCOME_COLOURS[outcome] for outcome in seen}, columns=5)

    said = "; ".join(f"{r.name}: " + ", ".join(f"{o} {r.outcomes[o]:.0%}" for o in seen) for r in reports)
    return render(draw, 78 + 36 * len(reports), "How episodes end", said)


def _name_shares(axes: Axes, names: Sequence[str], label: str) -> None:
    """Name the rows and set the axis to 0 to 100 %."""
    style.name_rows(axes, names)
    axes.set(xlim=(0, 1), xlabel=label)
    style.show_percent(axes.xaxis)
    style.bare_axes(axes, grid="x")
