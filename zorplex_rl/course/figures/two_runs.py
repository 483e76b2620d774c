"""Draw a run and what it would have been with one thing changed, beside one another.

held-out accuracy     both runs, a thin line for each seed and a thick one for their mean
same episodes         which share of the changed run's episodes the run itself has, token for token
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zorplex_rl.simulation.execute import Trained
    from zorplex_rl.simulation.what_if import Pair, PairedRuns

COLOURS = {"as it was": style.BLUE, "changed": style.VERMILION}


def tokens_of(step: Trained) -> dict[tuple[int, int], list[int]]:
    """Return the tokens of a step's episodes, by group and seed of the place in the group."""
    size = len(step.episodes) // len(step.groups)
    return {
        (step.groups[i // size], i % size): episode.token_ids
        for i, episode in enumerate(step.episodes)
    }


def why_parted(pair: Pair) -> str:
    """Say where the two runs of ``pair`` part, and why."""
    if (step := pair.parted) is None:
        return "the two runs do not part: all weights are the same, bit for bit"
    before, after = pair.original.steps[step - 1], pair.changed.steps[step - 1]
    first, second = tokens_of(before), tokens_of(after)
    lags = [found.metrics["lag_mean"] for found in (before, after)]
    if first.keys() != second.keys():
        what = "the changed run is trained on other groups"
    elif lags[0] != lags[1]:
        what = f"the mean lag of its groups is {lags[0]:g} versions, and in the changed run {lags[1]:g}"
    elif first != second:
        what = f"its groups are the same, and {sum(first[k] != second[k] for k in first)} of its episodes are not"
    else:
        what = "both learn from the same episodes, under different settings"
    return f"they part in step {step}: {what}"


def same_episodes(pair: Pair) -> list[float]:
    """Return for each step of the changed run the share of its episodes that the original has, too."""
    others = {
        key: tokens for step in pair.original.steps for key, tokens in tokens_of(step).items()
    }
    return [
        fmean(others.get(key) == found for key, found in tokens_of(step).items())
        for step in pair.changed.steps
    ]


def two_runs(found: PairedRuns, why: str) -> str:
    """Draw the pairs of ``found``, one for each seed. ``why`` says where they part."""
    pairs = found.pairs
    sides = [[pair.original for pair in pairs], [pair.changed for pair in pairs]]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        for run, (name, colour) in enumerate(COLOURS.items()):
            mark: dict[str, Any] = {"color": colour, "marker": "so"[run], "markersize": 4}
            versions = [evaluated.version for evaluated in sides[run][0].evaluations]
            curves = [
                [evaluated.sampled for evaluated in trace.evaluations] for trace in sides[run]
            ]
            for curve in curves:
                panels[0].plot(versions, curve, color=colour, linewidth=0.8, alpha=0.5)
            means = _means(curves)
            panels[0].plot(
                versions, means, linewidth=2, label=f"{name} (last: {means[-1]:.0%})", **mark
            )
        same = _means([same_episodes(pair) for pair in pairs])
        panels[1].fill_between(
            range(1, len(same) + 1), same, step="mid", color=style.GREY, alpha=0.4, linewidth=0
        )
        if (parted := pairs[0].parted) is not None:
            for panel in panels:
                panel.axvline(parted, color=style.TEXT, linewidth=0.8, linestyle=":")
        for panel, name in zip(
            panels, ("held-out accuracy, sampled", "same episodes"), strict=True
        ):
            style.bare_axes(panel, grid="y", keep=("left", "bottom"))
            panel.set_ylabel(name)
            panel.set_ylim(-0.02, 1.05)
            style.show_percent(panel.yaxis)
        panels[1].set_xlabel("training step")
        panels[0].set_title(textwrap.fill(why, 100), loc="left", fontsize=10)
        panels[0].legend(loc="best", frameon=False)

    ends = found.means("sampled, at the end")
    said = f"held-out accuracy at the end {ends[0]:.0%} as it was, {ends[1]:.0%} changed, over {len(pairs)} seeds; {why}"
    return render(draw, 430, f"A run, and the same with {found.change}", said)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=False)]
