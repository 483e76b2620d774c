"""Draw a run and what it would have been with one thing changed, beside one another.

held-out accuracy     both runs, a thin line for each seed and a thick one for their mean
same episodes         which share of the changed run's episodes the run itself has, token for token
lag                   how many versions before a step its episodes were sampled
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"as it was": style.BLUE, "changed": style.VERMILION}


@dataclass(frozen=True, slots=True)
class Curves:
    """Both runs of one seed. ``accuracy`` holds (version, sampled accuracy), ``lags`` the mean lag
    of every step, of each run; ``same`` is the share of the same episodes in every step; in step
    ``parted`` the weights part."""

    accuracy: tuple[Sequence[tuple[int, float]], Sequence[tuple[int, float]]]
    lags: tuple[Sequence[float], Sequence[float]]
    same: Sequence[float]
    parted: int | None


def two_runs(pairs: Sequence[Curves], change: str, why: str) -> str:
    """Draw the ``pairs``, one for each seed. ``why`` says where they part."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(3, 1, sharex=True, height_ratios=[3, 1, 1])
        for run, (name, colour) in enumerate(COLOURS.items()):
            mark: dict[str, Any] = {"color": colour, "marker": "so"[run], "markersize": 4}
            for pair in pairs:
                panels[0].plot(*zip(*pair.accuracy[run], strict=True), color=colour, linewidth=0.8, alpha=0.5)
            versions = [version for version, _ in pairs[0].accuracy[run]]
            means = _means([[value for _, value in pair.accuracy[run]] for pair in pairs])
            panels[0].plot(versions, means, linewidth=2, label=f"{name} (last: {means[-1]:.0%})", **mark)
            lags = _means([pair.lags[run] for pair in pairs])
            panels[2].step(range(1, len(lags) + 1), lags, where="mid", color=colour, linewidth=2 - 0.8 * run)
        same = _means([pair.same for pair in pairs])
        panels[1].fill_between(range(1, len(same) + 1), same, step="mid", color=style.GREY, alpha=0.4, linewidth=0)
        if (parted := pairs[0].parted) is not None:
            for panel in panels:
                panel.axvline(parted, color=style.TEXT, linewidth=0.8, linestyle=":")
        for panel, name in zip(panels, ("held-out accuracy, sampled", "same episodes", "lag"), strict=True):
            style.bare_axes(panel, grid="y", keep=("left", "bottom"))
            panel.set_ylabel(name)
        for panel in panels[:2]:
            panel.set_ylim(-0.02, 1.05)
            style.show_percent(panel.yaxis)
        panels[2].set(xlabel="training step", ylim=(0, None))
        panels[0].set_title(textwrap.fill(why, 100), loc="left", fontsize=10)
        panels[0].legend(loc="best", frameon=False)

    ends = [fmean(pair.accuracy[run][-1][1] for pair in pairs) for run in range(2)]
    said = (
        f"held-out accuracy at the end {ends[0]:.0%} as it was, {ends[1]:.0%} changed, over {len(pairs)} seeds; {why}"
    )
    return render(draw, 520, f"A run, and the same with {change}", said)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=False)]
