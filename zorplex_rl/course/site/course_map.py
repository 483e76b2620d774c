"""Draw the whole course: the loop with a number at each part that a notebook is about, and below it
what the loop stands on.

    ┌ The loop ─────────────────────────────┐
    │   dataset ► generator⁰⁵ ► … ► trainer  │   notebooks from the first that shows the loop
    │   05 …   06 …   07 …   08 …            │
    ├ What it stands on ────────────────────┤
    │   01 …   02 …   03 …   04 …            │   notebooks before it
    └───────────────────────────────────────┘

Which notebook is where follows from the drawings on its page, so there is no list of notebooks
here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.loop_drawing import HEIGHT, PARTS, WIDTH, loop_drawing

_MARGIN, _ROW, _COLUMNS = 16, 30, 2
_ROWS, _IN_A_ROW = 3, {"weights": 4}
# Left, middle of the first row, and step to the next, of the columns of pills beside each part:
# clear of boxes and arrows.
_PLACES = {
    "dataset": [(1, 172, 21), (60, 172, 21)],
    "generator": [(148, 172, 21), (216, 172, 21)],
    "tools": [(276, 22, 21), (336, 22, 21)],
    "reward": [(301, 172, 21), (301, 90, -21)],
    "replay buffer": [(513, 172, 21), (513, 90, -21)],
    "trainer": [(590, 172, 21), (666, 172, 21)],
    "weights": [(376, 190, -21)],
}


class Station(NamedTuple):
    """Hold what the drawing says of one notebook."""

    number: str
    name: str
    shows_loop: bool
    lit: tuple[str, ...]
    """The parts of the loop that it is about; empty for all of them."""


def course_map(stations: Sequence[Station]) -> str:
    """Return the course as SVG text. ``stations`` stand in the order of reading."""
    first = next(
        (index for index, station in enumerate(stations) if station.shows_loop), len(stations)
    )
    below, above = stations[:first], stations[first:]
    rows = [-(-len(part) // _COLUMNS) for part in (above, below)]
    width = WIDTH + 2 * _MARGIN
    top_height = 44 + HEIGHT + (18 + rows[0] * _ROW if above else 14)
    bottom_height = 44 + rows[1] * _ROW + 6 if below else 0
    height = top_height + (14 + bottom_height if below else 0)
    inner = re.sub(r"^<svg[^>]*>|</svg>$", "", loop_drawing())
    badges = "".join(
        _badges(part, [station.number for station in above if part in station.lit])
        for part in PARTS
    )
    drawn = _frame(0, width, top_height, "The loop", style.BLUE)
    drawn += f'<g transform="translate({_MARGIN} 44)">{inner}</g><g transform="translate({_MARGIN} 44)">{badges}</g>'
    drawn += _names(above, 44 + HEIGHT + 20)
    if below:
        drawn += _frame(top_height + 14, width, bottom_height, "What it stands on", style.GREY)
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


def _badges(part: str, numbers: Sequence[str]) -> str:
    """Return the pills of ``numbers`` beside the box of ``part``: in the columns that ``_PLACES``
    says, a row after the other."""
    columns, in_a_row = _PLACES[part], _IN_A_ROW.get(part, 2)
    drawn = []
    for index, number in enumerate(numbers):
        column, place = divmod(index, _ROWS * in_a_row)
        (x, y, step), row = columns[min(column, len(columns) - 1)], place // in_a_row
        before = numbers[index - place % in_a_row : index]
        left = x + sum(_pill(other) + 1 for other in before)
        drawn.append(_badge(left + _pill(number) / 2, y + step * row, number))
    return "".join(drawn)


def _pill(number: str) -> float:
    """Return the width of the pill of ``number``."""
    return 9 + 7.5 * len(number)


def _badge(x: float, y: float, number: str) -> str:
    """Return a number in a pill that stands out on light and dark."""
    width = _pill(number)
    return (
        f'<g transform="translate({x:g} {y:g})"><rect x="{-width / 2:g}" y="-10" width="{width:g}" height="20" rx="10" fill="{style.DEEP_BLUE}"/>'
        f'<text y="4.5" text-anchor="middle" font-size="12" font-weight="600" fill="#ffffff">{escape(number)}</text></g>'
    )
