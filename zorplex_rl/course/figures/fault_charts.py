"""Draw faults: where they strike, what supervisors decide about them, and what a model learns with
a learner fewer.

    what supervisors found and did    ──► fates_chart
    what the models have learned      ──► fits_chart

Each returns SVG text (``svg.py``). ``four_faults`` is a drawing without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOUND = {"idle": style.GREY, "busy": style.BLUE, "slow": style.PURPLE, "stuck": style.ORANGE, "dead": style.VERMILION}
"""Colours of what a supervisor finds."""


def four_faults() -> str:
    """Draw a caller and a worker's process, with the place at which each of the four faults
    strikes."""

    def mark(x: int, y: int, number: int) -> str:
        return (
            f'<circle cx="{x}" cy="{y}" r="12" fill="{style.VERMILION}"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="{style.TEXT_ON_COLOUR}" font-weight="600">{number}</text>'
        )

    shapes = (
        '<g fill="none" stroke="currentColor" stroke-width="1.5">'
        '<rect x="16" y="60" width="150" height="90" rx="6"/><rect x="300" y="28" width="250" height="164" rx="6"/>'
        f'<rect x="326" y="66" width="198" height="104" rx="6" stroke="{style.BLUE}" stroke-width="2"/>'
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


def fates_chart(decisions: Mapping[str, Sequence[tuple[float, str, str]]]) -> str:
    """Draw what each supervisor found and did, one row for each worker; its fault strikes at 0.

    A decision is (seconds, found: a key of ``FOUND``, action: "wait", "replace" or "give up").
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, made in enumerate(decisions.values()):
            for (start, found, action), (end, *_) in zip(made, [*made[1:], made[-1]], strict=True):
                if action == "wait":
                    axes.plot([start, end], [row, row], color=FOUND[found], linewidth=13, solid_capstyle="butt")
                    continue
                axes.plot([start], [row], "X", color=FOUND[found], markersize=13, markeredgecolor=style.TEXT)
                axes.annotate(f" {action}", (start, row), xytext=(8, 11), textcoords="offset points", fontsize=10)
        axes.axvline(0, color=style.TEXT, linewidth=1, linestyle="--")
        axes.set(xlabel="seconds after the fault (dashed)")
        style.name_rows(axes, list(decisions))
        style.bare_axes(axes, grid="x")
        style.draw_legend(figure, FOUND, len(FOUND))

    def fate(made: Sequence[tuple[float, str, str]]) -> str:
        acted = [f"{found}, {action} after {when:.1f} s" for when, found, action in made if action != "wait"]
        return "; ".join(acted) or "never replaced"

    said = ". ".join(f"{name}: {fate(made)}" for name, made in decisions.items())
    return render(draw, 110 + 62 * len(decisions), "What the supervisors decided", said)


def fits_chart(at: Sequence[float], target: Sequence[float], fits: Mapping[str, Sequence[float]], shares: int) -> str:
    """Draw the function to learn, and what each model has learned, side by side. Dotted lines bound
    the ``shares`` of the workers."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(fits), sharey=True, squeeze=False)[0]
        width = (at[-1] - at[0]) / shares
        for axes, (name, values), colour in zip(panels, fits.items(), style.SERIES, strict=False):
            axes.plot(at, target, color=style.GREY, linewidth=4, alpha=0.5)
            axes.plot(at, values, color=colour, linewidth=2)
            for edge in range(1, shares):
                axes.axvline(at[0] + edge * width, color=style.GREY, linewidth=1, linestyle=":")
            axes.set(xticks=[at[0] + (share + 0.5) * width for share in range(shares)], title=name)
            axes.set_xticklabels([f"{share}" for share in range(shares)])
            axes.tick_params(axis="x", length=0)
            style.bare_axes(axes)
        panels[0].set_xlabel("the learner whose data these are")

    return render(draw, 230, "What was learned", f"grey the target; {', '.join(fits)}")
