"""Draw several runs side by side: their timelines, the staleness of their data, and accuracy against staleness.

{name: Timeline}     ──► paired_timelines     the same number of seconds of each, on one axis
{name: {lag: n}}     ──► lag_chart
Outcomes of a study  ──► staleness_chart      a dot for every seed, a line through the means
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from zorplex_rl.analysis.timeline import Timeline
from zorplex_rl.viz import look
from zorplex_rl.viz.plots import kind_colours
from zorplex_rl.viz.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zorplex_rl.learning.staleness import TrialResult

WIDTH = 600
MARKERS = "osD^"


def lags_of(timeline: Timeline) -> dict[int, int]:
    """Count the groups that a real run trained on at each lag (in versions)."""
    lags: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind == "train":
            for _, version, *_ in span.args["groups"]:
                lags[span.args["step"] - version] = lags.get(span.args["step"] - version, 0) + 1
    return dict(sorted(lags.items()))


def paired_timelines(windows: Mapping[str, Timeline], seconds: float, actors: Sequence[str]) -> str:
    """Draw one panel for each of ``windows``: the first ``seconds`` from its first span, with a row and a busy share for each of ``actors``."""
    colours = kind_colours({s.kind for timeline in windows.values() for s in timeline.spans if s.actor in actors})
    busy = {
        name: {actor: timeline.busy_share(actor, (timeline.start, timeline.start + seconds)) for actor in actors}
        for name, timeline in windows.items()
    }

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(windows), sharex=True, squeeze=False)[:, 0]
        for axes, (name, timeline) in zip(panels, windows.items(), strict=True):
            for span in timeline.between(timeline.start, timeline.start + seconds).spans:
                if span.actor in actors:
                    left, row = span.start - timeline.start, actors.index(span.actor)
                    width = max(span.end - span.start, seconds / WIDTH)
                    axes.broken_barh([(left, width)], (row - 0.36, 0.72), facecolor=colours[span.kind], linewidth=0)
            for row, actor in enumerate(actors):
                at = axes.get_yaxis_transform()
                axes.text(1.09, row, f"{busy[name][actor]:.0%}", ha="right", va="center", transform=at)
            look.name_rows(axes, actors, margin=0.6)
            axes.set_xlim(0, seconds)
            axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
            look.bare_axes(axes, grid="x")
        panels[0].set_title("busy", loc="right", fontsize=12)
        panels[-1].set_xlabel("seconds")
        look.draw_legend(figure, colours, columns=5)

    shares = (f"{name}: " + ", ".join(f"{a} {share:.0%}" for a, share in found.items()) for name, found in busy.items())
    height = 70 + (44 + 30 * len(actors)) * len(windows)
    said = f"the same {seconds:.3g} seconds of each, and how much of them every actor was busy: {'; '.join(shares)}"
    return render(draw, height, "Timelines on one axis", said, WIDTH)


def lag_chart(lags: Mapping[str, Mapping[int, int]]) -> str:
    """Draw for each run the share of its training groups at each lag."""
    highest = max(lag for counts in lags.values() for lag in counts)
    shares = {name: {lag: n / sum(counts.values()) for lag, n in counts.items()} for name, counts in lags.items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.8 / len(lags)
        colours = dict(zip(lags, look.SERIES, strict=False))
        for number, (name, share) in enumerate(shares.items()):
            offset = (number - (len(lags) - 1) / 2) * width
            heights = [share.get(lag, 0.0) for lag in range(highest + 1)]
            at = [lag + offset for lag in range(highest + 1)]
            axes.bar(at, heights, 0.92 * width, color=colours[name])
            for x, height in zip(at, heights, strict=True):
                axes.text(x, height + 0.02, f"{height:.0%}", ha="center", va="bottom")
        axes.set(xticks=range(highest + 1), ylim=(0, 1.15), yticks=[], xlabel="lag in versions")
        axes.set_ylabel("share of groups")
        look.bare_axes(axes)
        look.draw_legend(figure, colours, columns=len(lags))

    said = "; ".join(
        f"{name}: " + ", ".join(f"lag {lag} {s:.0%}" for lag, s in f.items()) for name, f in shares.items()
    )
    return render(draw, 230, "How stale the training data were", said, WIDTH)


def staleness_chart(outcomes: Sequence[TrialResult], names: Mapping[str, str], before: float) -> str:
    """Draw accuracy against lag: a line through the means of each loss, and a dot for every seed.

    ``names`` maps a loss to its label. ``before`` is the accuracy before training, drawn as a dashed line. The label of a lag also states
    the mean lag of its trials if that differs: the first steps of a trial have no data of that age yet.
    """
    lags = sorted({outcome.trial.lag for outcome in outcomes})
    found = {
        loss: [[o.accuracy for o in outcomes if (o.trial.loss, o.trial.lag) == (loss, lag)] for lag in lags]
        for loss in names
    }
    labels = [_lag_label(lag, fmean(o.mean_lag for o in outcomes if o.trial.lag == lag)) for lag in lags]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(before, color=look.GREY, linestyle="--", linewidth=1)
        axes.text(len(lags) - 0.55, before, "before", ha="right", va="bottom")
        for number, (loss, by_lag) in enumerate(found.items()):
            # Shift each loss a little, so that dots do not hide each other.
            at = [place + (number - (len(found) - 1) / 2) * 0.13 for place in range(len(lags))]
            style: dict[str, Any] = {"color": look.SERIES[number], "marker": MARKERS[number]}
            drawn = [(x, values) for x, values in zip(at, by_lag, strict=True) if values]
            axes.plot(
                [x for x, _ in drawn],
                [fmean(v) for _, v in drawn],
                linewidth=1.5,
                markersize=9,
                label=names[loss],
                **style,
            )
            for x, values in drawn:
                axes.plot([x] * len(values), values, linestyle="", markersize=4.5, alpha=0.6, **style)
        axes.set(xticks=range(len(lags)), xticklabels=[label.replace(", ", "\n") for label in labels], ylim=(0, 1.03))
        axes.set(xlim=(-0.45, len(lags) - 0.55), ylabel="held-out accuracy")
        look.show_percent(axes.yaxis)
        look.bare_axes(axes, grid="y")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    said = "; ".join(
        f"{names[loss]}: " + ", ".join(f"{at} {fmean(v):.0%}" for at, v in zip(labels, by_lag, strict=True) if v)
        for loss, by_lag in found.items()
    )
    return render(draw, 340, "Accuracy against lag", said, WIDTH)


def _lag_label(lag: int, mean: float) -> str:
    return f"lag {lag}" if math.isclose(lag, mean) else f"lag {lag}, mean {mean:.1f}"


def spread(values: Sequence[float]) -> str:
    """Return mean ± sample standard deviation (n − 1) as text, or the mean alone if there is only one value.

    >>> spread([0.9, 0.8, 1.0]), spread([0.5])
    ('0.90 ± 0.10', '0.50')
    """
    mean = fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {stdev(values):.2f}"
