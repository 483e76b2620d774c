"""Draw what happened when: a named row for each actor, its states along the seconds.

    what supervisors found and did              ──► fates_chart         03
    {name: Timeline}                            ──► paired_timelines    07, 08
    moments at which trainers wrote, by trial   ──► lives_chart         10
    steps and evaluations of a run, its kill    ──► lost_host_chart     10

Each returns SVG text (``course/figures/figure.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.bars import draw_legend
from zorplex_rl.course.figures.figure import WIDTH, render
from zorplex_rl.course.figures.loop_drawing import ROLES
from zorplex_rl.run.timeline import KINDS, Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND_COLOURS = {
    "generate": style.BLUE,
    "train": style.VERMILION,
    "publish": style.ORANGE,
    "pull": style.SKY,
    "tool": style.PURPLE,
    "evaluate": style.GREEN,
    "reward": style.OLIVE,
    "checkpoint": style.DEEP_BLUE,
    "restart": style.TEXT,
    "idle": style.GREY + "40",
}
"""The colour of each kind of span."""
FOUND = {
    "idle": style.GREY,
    "busy": style.BLUE,
    "slow": style.PURPLE,
    "stuck": style.ORANGE,
    "dead": style.VERMILION,
}
"""Colours of what a supervisor finds."""


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Return kind → colour, in the order of a legend. Kinds that are not in ``KINDS`` are grey and last.

    >>> kind_colours({"train", "nap", "generate"})
    {'generate': '#2484CE', 'train': '#D55E00', 'nap': '#808080'}
    """
    ordered = sorted(kinds, key=lambda kind: (*KINDS, kind).index(kind))
    return {kind: KIND_COLOURS.get(kind, style.GREY) for kind in ordered}


def fates_chart(decisions: Mapping[str, Sequence[tuple[float, str, str]]]) -> str:
    """Draw what each supervisor found and did, one row for each worker; its fault strikes at 0.

    A decision is (seconds, found: a key of ``FOUND``, action: "wait", "replace" or "give up").
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, made in enumerate(decisions.values()):
            for (start, found, action), (end, *_) in zip(made, [*made[1:], made[-1]], strict=True):
                if action == "wait":
                    axes.plot(
                        [start, end],
                        [row, row],
                        color=FOUND[found],
                        linewidth=13,
                        solid_capstyle="butt",
                    )
                    continue
                axes.plot(
                    [start],
                    [row],
                    "X",
                    color=FOUND[found],
                    markersize=13,
                    markeredgecolor=style.TEXT,
                )
                axes.annotate(
                    f" {action}",
                    (start, row),
                    xytext=(8, 11),
                    textcoords="offset points",
                    fontsize=10,
                )
        axes.axvline(0, color=style.TEXT, linewidth=1, linestyle="--")
        axes.set(xlabel="seconds after the fault (dashed)")
        style.name_rows(axes, list(decisions))
        style.bare_axes(axes, grid="x")
        draw_legend(figure, FOUND, len(FOUND))

    def fate(made: Sequence[tuple[float, str, str]]) -> str:
        acted = [
            f"{found}, {action} after {when:.1f} s"
            for when, found, action in made
            if action != "wait"
        ]
        return "; ".join(acted) or "never replaced"

    said = ". ".join(f"{name}: {fate(made)}" for name, made in decisions.items())
    return render(draw, 110 + 62 * len(decisions), "What the supervisors decided", said)


def paired_timelines(windows: Mapping[str, Timeline], seconds: float, actors: Sequence[str]) -> str:
    """Draw ``seconds`` of each of ``windows``: a row for each actor, and how busy it was, until the end at most."""
    colours = kind_colours(
        {s.kind for timeline in windows.values() for s in timeline.spans if s.actor in actors}
    )
    busy = {
        name: {
            actor: timeline.busy_share(
                actor, (timeline.start, min(timeline.start + seconds, timeline.end))
            )
            for actor in actors
        }
        for name, timeline in windows.items()
    }

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(windows), sharex=True, squeeze=False)[:, 0]
        for axes, (name, timeline) in zip(panels, windows.items(), strict=True):
            for span in timeline.between(timeline.start, timeline.start + seconds).spans:
                if span.actor in actors:
                    left, row = span.start - timeline.start, actors.index(span.actor)
                    width = max(span.end - span.start, seconds / WIDTH)
                    axes.broken_barh(
                        [(left, width)],
                        (row - 0.36, 0.72),
                        facecolor=colours[span.kind],
                        linewidth=0,
                    )
            for row, actor in enumerate(actors):
                at = axes.get_yaxis_transform()
                axes.text(
                    1.09, row, f"{busy[name][actor]:.0%}", ha="right", va="center", transform=at
                )
            style.name_rows(axes, actors, margin=0.6)
            axes.set_xlim(0, seconds)
            axes.set_title(name, loc="left", fontsize=12, fontweight="bold")
            style.bare_axes(axes, grid="x")
        panels[0].set_title("busy", loc="right", fontsize=12)
        panels[-1].set_xlabel("seconds")
        draw_legend(figure, colours, columns=5)

    shares = (
        f"{name}: " + ", ".join(f"{a} {share:.0%}" for a, share in found.items())
        for name, found in busy.items()
    )
    height = 70 + (44 + 30 * len(actors)) * len(windows)
    said = f"the same {seconds:.3g} seconds of each, and how much of them every actor was busy: {'; '.join(shares)}"
    return render(draw, height, "Timelines on one axis", said)


@dataclass(frozen=True, slots=True)
class Lives:
    """Hold the lives of two trainers, in seconds since the fault."""

    first: Sequence[float]
    second: Sequence[float]
    heard: float
    over: float
    silences: Sequence[float] = ()
    """Seconds between two heartbeats of the first one's host, while all was well."""

    @property
    def together(self) -> float:
        """Seconds in which both lived, by what they wrote; negative if there was a gap."""
        return self.first[-1] - self.second[0]


def lives_chart(trials: Mapping[str, Lives]) -> str:
    """Draw each trainer from its first to its last moment; while both lived, it is grey."""
    rows = [f"{name}: {who}" for name in trials for who in ("trainer", "successor")]
    tops = range(0, len(rows), 2)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for top, lives in zip(tops, trials.values(), strict=True):
            for row, wrote in enumerate((lives.first, lives.second), top):
                label = "_" if row else "a trainer writes"
                axes.barh(
                    row, wrote[-1] - wrote[0], 0.6, wrote[0], color=ROLES["trainer"], label=label
                )
            if lives.together > 0:
                start, middle = lives.second[0], top + 0.5
                axes.barh(middle, lives.together, 1.7, start, color=style.GREY, alpha=0.4)
                at = start + lives.together / 2
                axes.text(at, middle, "two", ha="center", va="center", fontweight="bold")
        heard = [lives.heard for lives in trials.values()]
        axes.plot(heard, tops, "o", color=style.TEXT, markersize=6, label="last heard")
        over = [lives.over for lives in trials.values()]
        low, high = ([top + end for top in tops] for end in (-0.45, 1.45))
        label = "lease over, without the margin"
        axes.vlines(over, low, high, style.TEXT, "--", label=label, linewidth=1.5)
        axes.axvline(0, color=style.GREY, linewidth=1)
        axes.set(xlabel="seconds after the fault")
        style.name_rows(axes, rows)
        style.bare_axes(axes, grid="x")
        figure.legend(loc="outside upper left", ncols=3, frameon=False)

    said = "; ".join(
        f"{name}: the first trainer wrote until {lives.first[-1]:.2f} s, its successor from {lives.second[0]:.2f} s, "
        f"{f'both lived for {lives.together:.2f} s' if lives.together > 0 else 'never both'}"
        for name, lives in trials.items()
    )
    return render(draw, 96 + 62 * len(trials), "The lives of two trainers", said)


@dataclass(frozen=True, slots=True)
class LostHost:
    """A run that lost a host. All times are in seconds since its first step."""

    steps: Sequence[float]
    """When each step was done."""
    killed: float
    noticed: Sequence[float]
    """When the loss of each replica was noticed."""
    replaced: Sequence[float]

    @property
    def longest_step(self) -> float:
        return max(b - a for a, b in pairwise([0.0, *self.steps]))


def lost_host_chart(run: LostHost) -> str:
    """Draw a run's steps as a staircase, its kill, notice and replacement."""
    times = [0.0, *run.steps]
    marks: tuple[Any, ...] = (
        ([run.killed], style.TEXT, "-", "killed"),
        (run.noticed, style.ORANGE, "--", "noticed"),
        (run.replaced, style.GREEN, "-.", "replaced"),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.step(times, range(len(times)), where="post", color=ROLES["trainer"], linewidth=2)
        for moments, colour, dashes, name in marks:
            at = axes.get_xaxis_transform()
            axes.vlines(moments, 0, 1, colour, dashes, label=name, transform=at, linewidth=2)
        axes.set(xlabel="seconds", ylabel="steps done", ylim=(0, None))
        # Outside: inside it would cover the staircase.
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
        style.bare_axes(axes, grid="both", keep=("left", "bottom"))

    said = (
        f"{len(run.steps)} steps in {run.steps[-1]:.1f} s; the host was killed at {run.killed:.1f} s, noticed at "
        f"{', '.join(f'{t:.1f}' for t in run.noticed)} s, replaced at {', '.join(f'{t:.1f}' for t in run.replaced)} s; "
        f"the longest step took {run.longest_step:.1f} s"
    )
    return render(draw, 280, "A run that loses a host", said)
