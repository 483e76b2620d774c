"""Draw the whole course: the loop with a number at each part that a notebook is about, and below it what the loop stands on.

    ┌ The loop ─────────────────────────────┐
    │   dataset ► generator⁰⁵ ► … ► trainer  │   notebooks from the first that shows the loop
    │   05 …   06 …   07 …   08 …            │
    ├ What it stands on ────────────────────┤
    │   01 …   02 …   03 …   04 …            │   notebooks before it
    └───────────────────────────────────────┘

Which notebook is where follows from the drawings on its page, so there is no list of notebooks here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from zorplex_rl.course.figures.loop_drawing import BOX_WIDTH, HEIGHT, PARTS, WIDTH, loop_drawing
from zorplex_rl.drawing import look

_MARGIN, _ROW, _COLUMNS = 16, 30, 2


class Station(NamedTuple):
    """Hold what the drawing says of one notebook."""

    number: str
    name: str
    shows_loop: bool
    lit: tuple[str, ...]
    """The parts of the loop that it is about; empty for all of them."""


def arc_drawing(stations: Sequence[Station]) -> str:
    """Return the course as SVG text. ``stations`` stand in the order of reading."""
    first = next((index for index, station in enumerate(stations) if station.shows_loop), len(stations))
    below, above = stations[:first], stations[first:]
    rows = [-(-len(part) // _COLUMNS) for part in (above, below)]
    width = WIDTH + 2 * _MARGIN
    top_height = 44 + HEIGHT + (18 + rows[0] * _ROW if above else 14)
    bottom_height = 44 + rows[1] * _ROW + 6 if below else 0
    height = top_height + (14 + bottom_height if below else 0)
    inner = re.sub(r"^<svg[^>]*>|</svg>$", "", loop_drawing())
    badges = "".join(
        _badges(x + BOX_WIDTH + 6, y + 44 - 4, [station.number for station in above if part in station.lit])
        for part, (x, y, _) in PARTS.items()
    )
    drawn = _frame(0, width, top_height, "The loop", look.BLUE)
    drawn += f'<g transform="translate({_MARGIN} 44)">{inner}</g><g transform="translate({_MARGIN} 0)">{badges}</g>'
    drawn += _names(above, 44 + HEIGHT + 20)
    if below:
        drawn += _frame(top_height + 14, width, bottom_height, "What it stands on", look.GREY)
        drawn += _names(below, top_height + 14 + 44)
    told = [f"{station.number} {station.name}" for station in stations]
    said = (
        f"The course. The loop of reinforcement learning, with the numbers of the notebooks at the parts that they take apart: "
        f"{', '.join(told[first:]) or 'none'}. What it stands on: {', '.join(told[:first]) or 'nothing else'}."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="max-width:100%;height:auto" fill="currentColor" font-family="system-ui, sans-serif" role="img" '
        f'aria-label="{escape(said, quote=True)}">{drawn}</svg>'
    )


def _frame(y: float, width: float, height: float, title: str, colour: str) -> str:
    return (
        f'<rect x="1" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="12" fill="{colour}" fill-opacity="0.06" stroke="{colour}" '
        f'stroke-opacity="0.5"/><text x="{_MARGIN}" y="{y + 27}" font-size="15" font-weight="600">{title}</text>'
    )


def _names(stations: Sequence[Station], y: float) -> str:
    """Return the numbers and names, downwards and then to the right."""
    rows = -(-len(stations) // _COLUMNS)
    column = WIDTH / _COLUMNS
    return "".join(
        f'<g transform="translate({_MARGIN + column * (index // rows):g} {y + _ROW * (index % rows)})">{_badge(14, 4, station.number)}'
        f'<text x="36" y="9" font-size="15">{escape(station.name)}</text></g>'
        for index, station in enumerate(stations)
    )


def _badges(end: float, y: float, numbers: Sequence[str]) -> str:
    """Return the pills of ``numbers`` in rows of at most four, each row ending at ``end``, the lowest at ``y``."""
    drawn, place = [], end
    for count, number in enumerate(reversed(numbers)):
        if count % 4 == 0:
            place = end
        drawn.append(_badge(place - _pill(number) / 2, y - 21 * (count // 4), number))
        place -= _pill(number) + 1
    return "".join(drawn)


def _pill(number: str) -> float:
    """Return the width of the pill of ``number``."""
    return 9 + 7.5 * len(number)


def _badge(x: float, y: float, number: str) -> str:
    """Return a number in a pill that stands out on light and dark."""
    width = _pill(number)
    return (
        f'<g transform="translate({x:g} {y:g})"><rect x="{-width / 2:g}" y="-10" width="{width:g}" height="20" rx="10" fill="{look.DEEP_BLUE}"/>'
        f'<text y="4.5" text-anchor="middle" font-size="12" font-weight="600" fill="#ffffff">{escape(number)}</text></g>'
    )
