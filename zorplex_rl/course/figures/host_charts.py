"""Draw hosts: who lives where and who watches whom, the lives of two trainers around a fault, and a
run that loses a host.

    moments at which trainers wrote, by trial        ──► lives_chart
    steps and evaluations of a run, with its kill    ──► lost_host_chart

Each returns SVG text (``svg.py``). ``two_hosts`` is a drawing without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def two_hosts() -> str:
    """Draw the controller with its small roles and two hosts, the watching between them, and the
    way of the weights."""

    def box(x: int, y: int, width: int, name: str, colour: str) -> str:
        return (
            f'<rect x="{x}" y="{y}" width="{width}" height="34" rx="5" fill="{colour}" fill-opacity="0.2" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + width / 2:g}" y="{y + 22}" text-anchor="middle" font-weight="600">{name}</text>'
        )

    def keeper(x: int) -> str:
        return (
            f'<rect x="{x}" y="176" width="190" height="34" rx="5" fill="none" stroke="currentColor" stroke-width="1.5" stroke-dasharray="5 3"/>'
            f'<text x="{x + 95}" y="198" text-anchor="middle">keeper: ends this host</text>'
        )

    shapes = (
        '<g fill="none" stroke="currentColor" stroke-width="1.5"><rect x="160" y="26" width="400" height="84" rx="8"/>'
        '<rect x="16" y="162" width="300" height="150" rx="8"/><rect x="404" y="162" width="300" height="150" rx="8"/>'
        '<path d="M240 176V112m-5 9 5-9 5 9M270 110v64m-5-9 5 9 5-9M450 176V112m-5 9 5-9 5 9M480 110v64m-5-9 5 9 5-9"/></g>'
        '<text x="160" y="18" font-weight="600">this machine: the controller, and the run’s folder</text>'
        + box(176, 56, 112, "dataset", style.ROLES["dataset"])
        + box(304, 56, 112, "rewards", style.ROLES["reward"])
        + box(432, 56, 112, "replay", style.ROLES["replay buffer"])
        + '<text x="226" y="142" text-anchor="end" font-size="12.5">a token, every second</text>'
        '<text x="284" y="142" font-size="12.5">the same token, back</text>'
        '<text x="494" y="142" font-size="12.5">the same for this host</text>'
        + keeper(110)
        + keeper(420)
        + box(32, 226, 130, "trainer", style.ROLES["trainer"])
        + box(178, 226, 122, "generator_1", style.ROLES["generator"])
        + box(420, 226, 130, "generator_0", style.ROLES["generator"])
        + box(566, 226, 122, "a spare", style.ROLES["generator"])
        + f'<path d="M97 262v36H485v-34m-5 9 5-9 5 9M239 298v-34m-5 9 5-9 5 9" fill="none" stroke="{style.ROLES["weights"]}" stroke-width="2.5"/>'
        '<text x="360" y="291" text-anchor="middle" font-size="12.5">weights</text>'
        '<text x="166" y="334" text-anchor="middle" font-weight="600">first host</text>'
        '<text x="554" y="334" text-anchor="middle" font-weight="600">second host</text>'
    )
    said = (
        "the controller keeps dataset, rewards and replay buffer; the first host has the trainer and a generator, "
        "the second host a generator and a spare one; on each host a keeper sends tokens, the controller sends them back, and the keeper "
        "ends its host when none comes back; weights go from the trainer to both generators"
    )
    return drawing(shapes, 344, "Two hosts and their controller", said)


@dataclass(frozen=True, slots=True)
class Lives:
    """What is known of two trainers, in seconds since the fault: when each wrote, when the first
    one's host was last heard, when its lease ended."""

    first: Sequence[float]
    second: Sequence[float]
    heard: float
    over: float

    @property
    def together(self) -> float:
        """Seconds in which both lived, by what they wrote; negative if there was a gap."""
        return self.first[-1] - self.second[0]


def lives_chart(trials: Mapping[str, Lives]) -> str:
    """Draw two bars for each trial: from the first to the last moment at which each trainer wrote.
    A time in which both lived is marked."""
    names = [f"{name}: {which}" for name in trials for which in ("trainer", "successor")]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, lives in enumerate(trials.values()):
            for row, wrote in enumerate((lives.first, lives.second), 2 * number):
                label = "_" if row else "a trainer writes"
                axes.barh(
                    row, wrote[-1] - wrote[0], left=wrote[0], height=0.6, color=style.ROLES["trainer"], label=label
                )
            rows = (2 * number - 0.45, 2 * number + 1.45)
            heard, over = ("_", "_") if number else ("last heard", "lease over, as the controller counts")
            axes.plot(lives.heard, 2 * number, "o", color=style.TEXT, markersize=6, label=heard)
            axes.plot([lives.over] * 2, rows, color=style.TEXT, linewidth=1.5, linestyle="--", label=over)
            if lives.together > 0:
                axes.barh(
                    2 * number + 0.5, lives.together, left=lives.second[0], height=1.7, color=style.GREY, alpha=0.4
                )
                axes.text(
                    lives.second[0] + lives.together / 2,
                    2 * number + 0.5,
                    "two",
                    ha="center",
                    va="center",
                    fontweight="bold",
                )
        axes.axvline(0, color=style.GREY, linewidth=1)
        axes.set(xlabel="seconds after the fault")
        style.name_rows(axes, names)
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
    greedy: Sequence[tuple[int, float]]
    """(step, held-out accuracy) of each evaluation."""
    killed: float
    noticed: Sequence[float]
    """When the loss of each replica was noticed."""
    replaced: Sequence[float]
    worked: Sequence[float] = ()
    """When a replica that took over began each of its groups."""

    @property
    def accuracy_before_the_kill(self) -> float:
        """Of the last evaluation whose step was done by then."""
        return [value for step, value in self.greedy if step == 0 or self.steps[step - 1] < self.killed][-1]


def lost_host_chart(run: LostHost) -> str:
    """Draw the steps of a run over time, as a staircase, with kill, notice and replacement, and its
    held-out accuracy."""

    def draw(figure: Figure) -> None:
        axes, right = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        done = range(1, len(run.steps) + 1)
        axes.step([0.0, *run.steps], [0, *done], where="post", color=style.ROLES["trainer"], linewidth=2)
        for moments, colour, dashes, label in (
            ([run.killed], style.TEXT, "-", "killed"),
            (run.noticed, style.ORANGE, "--", "noticed"),
            (run.replaced, style.GREEN, "-.", "replaced"),
        ):
            for number, moment in enumerate(moments):
                for panel in (axes, right):
                    panel.axvline(
                        moment,
                        color=colour,
                        linewidth=2,
                        linestyle=dashes,
                        label="_" if number or panel is right else label,
                    )
        axes.set(ylabel="steps done", ylim=(0, None))
        times = [0.0, *run.steps]
        at = [(times[min(step, len(run.steps))], value) for step, value in run.greedy]
        right.plot(*zip(*at, strict=True), color=style.ROLES["generator"], marker="o", linewidth=2)
        if run.worked:
            axes.plot(
                run.worked, [0.02 * len(run.steps)] * len(run.worked), "|", color=style.ROLES["generator"],
                markersize=12, label="the replacement starts a group",
            )  # fmt: skip
        right.set(ylim=(-0.05, 1.05), xlabel="seconds", ylabel="greedy")
        style.show_percent(right.yaxis)
        # Outside: inside it would cover the staircase.
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
        for panel in (axes, right):
            style.bare_axes(panel, grid="both", keep=("left", "bottom"))

    longest = max((b - a for a, b in pairwise([0.0, *run.steps])), default=0.0)
    said = (
        f"{len(run.steps)} steps in {run.steps[-1]:.1f} s; the host was killed at {run.killed:.1f} s, noticed at "
        f"{', '.join(f'{t:.1f}' for t in run.noticed)} s, replaced at {', '.join(f'{t:.1f}' for t in run.replaced)} s; "
        f"the replacement began {len(run.worked)} groups; the longest step took {longest:.1f} s; "
        f"greedy accuracy {', '.join(f'{value:.0%}' for _, value in run.greedy)}"
    )
    return render(draw, 380, "A run that loses a host", said)
