"""Draw weight transfers: who takes part in a read, who waits for a busy owner, and what torn copies
consist of.

    a message beside a one-sided read                ──► planes_drawing
    seconds of a read while its owner is busy        ──► waits_chart
    versions along the bytes of some copies          ──► copies_chart

Each returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPY_COLOURS = (*style.SERIES, style.ORANGE, style.SKY, style.GREY)
STATE_MARKS = ("o", "s", "^")
STATE_COLOURS = (style.GREEN, style.ORANGE, style.VERMILION)


def planes_drawing() -> str:
    """Draw two processes: a message passes the owner's Python, a one-sided read goes to its memory
    and passes nobody's."""

    def box(x: int, y: int, width: int, height: int, text: str, colour: str = "") -> str:
        look_of_box = (
            f'fill="{colour}" fill-opacity="0.2" stroke="{colour}"' if colour else 'fill="none" stroke="currentColor"'
        )
        return (
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" {look_of_box} stroke-width="1.6"/>'
            f'<text x="{x + width // 2}" y="{y + height // 2 + 5}" text-anchor="middle">{text}</text>'
        )

    def line(path: str, x: int, y: int, text: str, dashed: bool = False) -> str:
        dashes = ' stroke-dasharray="6 5"' if dashed else ""
        return (
            f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.8"{dashes}/>'
            f'<text x="{x}" y="{y}" text-anchor="middle" font-size="13">{text}</text>'
        )

    shapes = (
        '<rect x="10" y="34" width="230" height="176" rx="10" fill="none" stroke="currentColor" stroke-dasharray="4 4"/>'
        '<text x="125" y="24" text-anchor="middle" font-weight="600">trainer process</text>'
        '<rect x="480" y="34" width="230" height="176" rx="10" fill="none" stroke="currentColor" stroke-dasharray="4 4"/>'
        '<text x="595" y="24" text-anchor="middle" font-weight="600">generator process</text>'
        + box(30, 54, 190, 54, "its Python: a step", style.ROLES["trainer"])
        + box(30, 138, 190, 54, "memory: the weights", style.ROLES["weights"])
        + box(500, 54, 190, 54, "its Python: decoding", style.ROLES["generator"])
        + box(500, 138, 190, 54, "staging buffer", style.ROLES["weights"])
        + line("M500 72H222m8-5-8 5 8 5", 360, 62, "message: please send")
        + line("M220 92H498m-8-5 8 5-8 5", 360, 112, "reply: a copy of the bytes", dashed=True)
        + line("M220 165H498m-8-5 8 5-8 5", 360, 155, "one-sided read")
        + '<text x="360" y="184" text-anchor="middle" font-size="13">no endpoint of the trainer runs</text>'
    )
    said = (
        "a message and its reply pass the trainer's Python; a one-sided read goes from the trainer's memory to the generator's staging buffer, "
        "and no endpoint of the trainer runs"
    )
    return drawing(shapes, 222, "Two ways to the weights", said)


def waits_chart(waits: Mapping[str, Mapping[str, float]], busy_seconds: float) -> str:
    """Draw how long a read took, a row for each transport and a mark for each state of its owner:
    {transport: {state: seconds}}.

    A line marks ``busy_seconds``, for which the owner was kept busy or stopped.
    """
    states = list(dict.fromkeys(state for row in waits.values() for state in row))
    end = 1.15 * max(busy_seconds, *(seconds for row in waits.values() for seconds in row.values()))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(busy_seconds, color=style.GREY, linewidth=1.2, linestyle="--")
        for place, (state, mark, colour) in enumerate(zip(states, STATE_MARKS, STATE_COLOURS, strict=False)):
            rows = [(row, found[state]) for row, found in enumerate(waits.values()) if state in found]
            shift = 0.24 * (place - (len(states) - 1) / 2)
            at = [row + shift for row, _ in rows]
            axes.hlines(at, 0, [seconds for _, seconds in rows], color=colour, linewidth=1.5, alpha=0.6)
            axes.plot([s for _, s in rows], at, mark, color=colour, markersize=9, label=state, clip_on=False)
        axes.set(xlim=(0, end), xlabel="seconds until the bytes were there")
        style.name_rows(axes, list(waits), margin=0.6)
        axes.tick_params(axis="y", pad=9)  # a mark at 0 does not touch the name
        style.bare_axes(axes, grid="x")
        figure.legend(loc="outside upper left", ncols=len(states), frameon=False)

    said = "; ".join(
        f"{road}: " + ", ".join(f"{state} {seconds:.2f} s" for state, seconds in found.items())
        for road, found in waits.items()
    )
    return render(draw, 92 + 52 * len(waits), "How long a reader waits", said)


def copies_chart(copies: Sequence[Sequence[int]]) -> str:
    """Draw each copy of the weights as a strip from its first byte to its last, coloured by the
    version of the bytes.

    A copy is a list of versions at equally spaced places. A version has the same colour in all
    strips.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, copy in enumerate(copies):
            for version, start, width in version_runs(copy):
                left, share = start / len(copy), width / len(copy)
                axes.barh(row, share, left=left, height=0.7, color=COPY_COLOURS[version % len(COPY_COLOURS)])
                if share > 0.07:
                    style.write_in_bar(axes, left + share / 2, row, str(version))
        axes.set(xlim=(0, 1), xlabel="place in the copy", xticks=[0, 1])
        axes.set_xticklabels(["first byte", "last byte"])
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[1].set_horizontalalignment("right")
        axes.tick_params(axis="x", length=0)
        style.name_rows(axes, [f"copy {number}" for number in range(1, len(copies) + 1)], margin=0.6)
        style.bare_axes(axes, keep=())

    said = "; ".join(f"copy {i}: versions {', '.join(map(str, sorted(set(c))))}" for i, c in enumerate(copies, 1))
    return render(draw, 56 + 34 * len(copies), "What some copies are made of", said)


def version_runs(copy: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (version, start, length) of every run of equal versions.

    >>> version_runs([3, 3, 5, 3])
    [(3, 0, 2), (5, 2, 1), (3, 3, 1)]
    """
    runs, start = [], 0
    for version, group in groupby(copy):
        length = len(list(group))
        runs.append((version, start, length))
        start += length
    return runs
