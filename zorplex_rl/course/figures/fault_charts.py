"""Draw faults: where they strike, when callers learn of them, who answered meanwhile, what a checkpoint costs, and a training run with a loss.

    seconds until callers knew, by fault     ──► detection_chart
    calls around a kill, by supervisor       ──► answers_chart
    what each checkpoint interval costs      ──► interval_chart
    loss after every round, by run           ──► rounds_chart
    what the models have learned             ──► fits_chart

Each returns SVG text (``svg.py``). ``four_faults`` and ``one_round`` are drawings without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import look
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANSWERS = {"first process": look.BLUE, "call failed": look.VERMILION, "its successor": look.GREEN}
"""Colours of the answers to a call, by who gave them."""


def four_faults() -> str:
    """Draw a caller and a worker's process, with the place at which each of the four faults strikes."""

    def mark(x: int, y: int, number: int) -> str:
        return (
            f'<circle cx="{x}" cy="{y}" r="12" fill="{look.VERMILION}"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="{look.TEXT_ON_COLOUR}" font-weight="600">{number}</text>'
        )

    shapes = (
        '<g fill="none" stroke="currentColor" stroke-width="1.5">'
        '<rect x="16" y="60" width="150" height="90" rx="6"/><rect x="300" y="28" width="250" height="164" rx="6"/>'
        f'<rect x="326" y="66" width="198" height="104" rx="6" stroke="{look.BLUE}" stroke-width="2"/>'
        '<rect x="346" y="112" width="158" height="38" rx="4" stroke-dasharray="4 3"/>'
        '<path d="M166 92h150m-9-5 9 5-9 5M316 122H166m9-5-9 5 9 5"/></g>'
        '<text x="91" y="100" text-anchor="middle" font-weight="600">caller</text>'
        '<text x="91" y="122" text-anchor="middle" font-size="12">awaits an answer</text>'
        '<text x="232" y="82" text-anchor="middle" font-size="12">call</text>'
        '<text x="232" y="140" text-anchor="middle" font-size="12">answer?</text>'
        '<text x="316" y="50" font-weight="600">process</text><text x="342" y="88" font-weight="600">actor: its state</text>'
        '<text x="425" y="136" text-anchor="middle" font-size="13">endpoint</text>'
        + mark(504, 131, 1)
        + mark(524, 84, 2)
        + mark(550, 46, 3)
        + mark(550, 160, 4)
        + '<g font-size="12.5"><text x="576" y="50">3  <tspan font-family="monospace">kill -9</tspan> ends it</text>'
        '<text x="576" y="88">2  <tspan font-family="monospace">sys.exit</tspan></text>'
        '<text x="576" y="135">1  exception</text><text x="576" y="164">4  <tspan font-family="monospace">SIGSTOP</tspan>: silent</text></g>'
    )
    said = "an exception strikes the endpoint, sys.exit the actor, kill -9 the process; after SIGSTOP the process is there and silent"
    return drawing(shapes, 208, "Where four faults strike", said)


def one_round() -> str:
    """Draw one round of semi-synchronous training of three learners, one of which does not answer."""
    names, rows = ("learner 0", "learner 1", "learner 2"), (44, 92, 140)
    shapes = [
        '<g fill="none" stroke="currentColor" stroke-width="1.2" opacity="0.7"><path d="M120 24v146M520 24v146" stroke-dasharray="4 4"/></g>'
    ]
    for name, y, end in zip(names, rows, (400, 460, 250), strict=True):
        dead = name == "learner 2"
        colour = look.VERMILION if dead else look.BLUE
        shapes.append(f'<text x="16" y="{y + 5}">{name}</text>')
        shapes += [
            f'<rect x="{x}" y="{y - 12}" width="36" height="24" rx="3" fill="{colour}" opacity="{0.35 if dead else 0.8}"/>'
            for x in range(130, end - 20, 42)
        ]
        if dead:
            shapes.append(f'<path d="M{end} {y - 10}l20 20m0-20-20 20" stroke="{colour}" stroke-width="3"/>')
        else:
            shapes.append(
                f'<path d="M{end} {y}H512m-8-4 8 4-8 4" fill="none" stroke="currentColor" stroke-width="1.5"/>'
            )
    shapes.append(
        f'<rect x="536" y="44" width="168" height="72" rx="6" fill="none" stroke="{look.GREEN}" stroke-width="2"/>'
        '<text x="620" y="74" text-anchor="middle" font-weight="600">mean of the</text>'
        '<text x="620" y="94" text-anchor="middle" font-weight="600">changes that came</text>'
        '<text x="120" y="192" text-anchor="middle" font-size="12.5">weights go out</text>'
        '<text x="520" y="192" text-anchor="middle" font-size="12.5">deadline of the round</text>'
        '<text x="320" y="192" text-anchor="middle" font-size="12.5">local steps, no messages</text>'
    )
    said = "weights go to three learners, each takes local steps; two send their change before the deadline, the third died; the mean is over two"
    return drawing("".join(shapes), 204, "One round of semi-synchronous training", said)


def detection_chart(seconds: Mapping[str, Sequence[float]]) -> str:
    """Draw one dot per fault at the seconds until its caller got an error, one row for each kind of fault."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, times in enumerate(seconds.values()):
            axes.plot(times, [row] * len(times), "o", color=look.VERMILION, markersize=9, alpha=0.7, clip_on=False)
        axes.set(xlim=(0, 1.1 * max(map(max, seconds.values()))), xlabel="seconds from the fault to the caller's error")
        look.name_rows(axes, list(seconds))
        look.bare_axes(axes, grid="x")

    said = "; ".join(f"{name} {', '.join(f'{t:.2f}' for t in times)} s" for name, times in seconds.items())
    return render(draw, 64 + 36 * len(seconds), "When callers learn of a fault", said)


def answers_chart(calls: Mapping[str, Sequence[tuple[float, str]]]) -> str:
    """Draw every call around a kill at the time of its answer, one row per supervisor; the kill is at 0.

    A call is (seconds after the kill, who answered: a key of ``ANSWERS``).
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, answers in enumerate(calls.values()):
            for who, colour in ANSWERS.items():
                times = [time for time, answered in answers if answered == who]
                failed = who == "call failed"
                axes.plot(
                    times, [row] * len(times), "x" if failed else "|", color=colour, markersize=12, markeredgewidth=2
                )
        axes.axvline(0, color=look.TEXT, linewidth=1, linestyle="--")
        axes.set(xlabel="seconds after kill -9 (dashed)")
        look.name_rows(axes, list(calls))
        look.bare_axes(axes, grid="x")
        look.draw_legend(
            figure, {f"answered by the {who}" if who == "first process" else who: c for who, c in ANSWERS.items()}, 3
        )

    def gap(answers: Sequence[tuple[float, str]]) -> str:
        after = [time for time, who in answers if who == "its successor"]
        return f"{after[0]:.1f} s" if after else "never"

    said = "; ".join(f"{name}: first answer of the successor after {gap(a)}" for name, a in calls.items())
    return render(draw, 110 + 44 * len(calls), "Answers around a kill", said)


def interval_chart(costs: Sequence[tuple[float, float, float]], best: float) -> str:
    """Draw the share of time lost for each checkpoint interval, with a mark at ``best`` (seconds).

    A cost is (interval in seconds, share spent saving, expected share done again after failures).
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at = [interval for interval, _, _ in costs]
        axes.plot(at, [saving for _, saving, _ in costs], color=look.BLUE, linewidth=2, linestyle="--", label="saving")
        axes.plot(
            at, [again for _, _, again in costs], color=look.VERMILION, linewidth=2, linestyle=":", label="done again"
        )
        axes.plot(at, [saving + again for _, saving, again in costs], color=look.TEXT, linewidth=2, label="both")
        axes.axvline(best, color=look.GREEN, linewidth=2, label="your interval")
        least = min(saving + again for _, saving, again in costs)
        axes.set(
            xscale="log",
            xlim=(at[0], at[-1]),
            ylim=(0, min(1, 3 * least)),
            xlabel="seconds between checkpoints",
            ylabel="share of the time",
        )
        look.show_percent(axes.yaxis)
        look.plain_numbers(axes.xaxis)
        look.bare_axes(axes, grid="y")
        axes.legend(frameon=False)

    return render(draw, 280, "What a checkpoint interval costs", f"the mark is at {best:.3g} s between checkpoints")


def rounds_chart(losses: Mapping[str, Sequence[float]], killed_in: int) -> str:
    """Draw the loss after every round, one line per run, with a dashed line at the round in which a worker was killed."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, values), colour in zip(losses.items(), look.SERIES, strict=False):
            axes.plot(range(1, len(values) + 1), values, color=colour, linewidth=2, label=name)
        axes.axvline(killed_in, color=look.TEXT, linewidth=1, linestyle="--")
        axes.set(yscale="log", xlabel="round (dashed: the last learner is killed)", ylabel="mean squared error")
        look.plain_numbers(axes.yaxis)
        look.bare_axes(axes, grid="y")
        axes.legend(frameon=False)

    said = "; ".join(f"{name} ends at {values[-1]:.2g}" for name, values in losses.items())
    return render(draw, 300, "Loss of every round", said)


def fits_chart(at: Sequence[float], target: Sequence[float], fits: Mapping[str, Sequence[float]], shares: int) -> str:
    """Draw the function to learn, and what each model has learned, side by side. Dotted lines bound the ``shares`` of the workers."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(fits), sharey=True, squeeze=False)[0]
        width = (at[-1] - at[0]) / shares
        for axes, (name, values), colour in zip(panels, fits.items(), look.SERIES, strict=False):
            axes.plot(at, target, color=look.GREY, linewidth=4, alpha=0.5)
            axes.plot(at, values, color=colour, linewidth=2)
            for edge in range(1, shares):
                axes.axvline(at[0] + edge * width, color=look.GREY, linewidth=1, linestyle=":")
            axes.set(xticks=[at[0] + (share + 0.5) * width for share in range(shares)], title=name)
            axes.set_xticklabels([f"{share}" for share in range(shares)])
            axes.tick_params(axis="x", length=0)
            look.bare_axes(axes)
        panels[0].set_xlabel("the learner whose data these are")

    return render(draw, 230, "What was learned", f"grey the target; {', '.join(fits)}")
