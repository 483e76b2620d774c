"""Draw several runs side by side: their timelines, and what a shaped reward did to them.

{name: Timeline}     ──► paired_timelines     the same number of seconds of each, on one axis
{name: numbers}      ──► shaped_chart         what a shaped reward did to right answers and to tool calls
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.plots import kind_colours
from zorplex_rl.drawing.svg import WIDTH, render
from zorplex_rl.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lags_of(timeline: Timeline) -> dict[int, int]:
    """Count the groups that a real run trained on at each lag (in versions)."""
    lags: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind == "train":
            for _, version, *_ in span.args["groups"]:
                lags[span.args["step"] - version] = lags.get(span.args["step"] - version, 0) + 1
    return dict(sorted(lags.items()))


def paired_timelines(windows: Mapping[str, Timeline], seconds: float, actors: Sequence[str]) -> str:
    """Draw one panel for each of ``windows``: the first ``seconds`` from its first span, with a row
    and a busy share for each of ``actors``."""
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
            style.name_rows(axes, actors, margin=0.6)
            axes.set_xlim(0, seconds)
            axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
            style.bare_axes(axes, grid="x")
        panels[0].set_title("busy", loc="right", fontsize=12)
        panels[-1].set_xlabel("seconds")
        style.draw_legend(figure, colours, columns=5)

    shares = (f"{name}: " + ", ".join(f"{a} {share:.0%}" for a, share in found.items()) for name, found in busy.items())
    height = 70 + (44 + 30 * len(actors)) * len(windows)
    said = f"the same {seconds:.3g} seconds of each, and how much of them every actor was busy: {'; '.join(shares)}"
    return render(draw, height, "Timelines on one axis", said)


def shaped_chart(accuracies: Sequence[float], calls: Sequence[float], most_calls: float) -> str:
    """Draw the share of right answers and the tool calls of an episode over training steps, on axes
    that are the same for every run."""
    steps = range(1, len(accuracies) + 1)

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        right, used = figure.subplots(1, 2)
        right.plot(steps, accuracies, color=style.BLUE, linewidth=2.2)
        used.plot(steps, calls, color=style.PURPLE, linewidth=2.2)
        right.set_title("right answers", loc="left", fontsize=12, fontweight="bold")
        used.set_title("tool calls of an episode", loc="left", fontsize=12, fontweight="bold")
        right.set(ylim=(0, 1.03), xlabel="training step")
        used.set(ylim=(0, 1.05 * most_calls), xlabel="training step")
        style.show_percent(right.yaxis)
        for axes in (right, used):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.bare_axes(axes, grid="y")

    said = f"right answers from {accuracies[0]:.0%} to {accuracies[-1]:.0%}, tool calls from {calls[0]:.1f} to {calls[-1]:.1f}"
    return render(draw, 220, "What a shaped reward did", said)
