"""Define the look of all figures: colours, width, axes, named rows, legend.

The functions import matplotlib when they need it, so that importing this file is cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Based on the palette of Okabe and Ito, for any colour vision, on white and on black.
BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#2484CE", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
SKY, DEEP_BLUE, OLIVE, GREY = "#56B4E9", "#0072B2", "#B5A81C", "#808080"
SERIES = (BLUE, VERMILION, GREEN, PURPLE)

ROLES = {
    "dataset": GREY,
    "generator": BLUE,
    "tools": PURPLE,
    "reward": GREEN,
    "replay buffer": SKY,
    "trainer": VERMILION,
    "weights": ORANGE,
}
"""The colour of every role, the same in all drawings and widgets of the course."""

# ``svg.py`` turns black into the text's colour. Text on a coloured bar is almost black.
TEXT, TEXT_ON_COLOUR = "#000000", "#000001"


def bare_axes(axes: Axes, grid: Literal["x", "y", "both"] | None = None, keep: Collection[str] = ("bottom",)) -> None:
    """Hide the frame of ``axes`` but the sides to ``keep``; draw a faint ``grid`` behind."""
    axes.spines[[side for side in ("top", "right", "left", "bottom") if side not in keep]].set_visible(False)
    if grid:
        axes.grid(axis=grid, color=GREY, alpha=0.25, linewidth=0.8)
        axes.set_axisbelow(True)


def height_of(number: int, row: float) -> float:
    """Return where dot ``number`` of ``row`` stands. The golden ratio spreads neighbours evenly
    over the height of the row."""
    return row - 0.32 + 0.64 * (0.618 * number % 1)


def name_rows(axes: Axes, names: Sequence[str], margin: float = 0.5) -> None:
    """Put rows 0, 1, … from the top, ``names`` at the left, ``margin`` rows above and below."""
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(max(len(names), 1) - 1 + margin, -margin))
    axes.tick_params(axis="y", length=0)


def show_percent(axis: Axis) -> None:
    """Write the shares along ``axis`` as percentages."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def write_in_bar(axes: Axes, x: float, row: int, text: str) -> None:
    """Centre ``text`` at ``x`` in the bar of a ``row``."""
    axes.text(x, row, text, ha="center", va="center", color=TEXT_ON_COLOUR)


def write_after_bar(axes: Axes, end: float, row: float, text: str) -> None:
    """Write ``text`` a little to the right of a bar that ends at ``end``."""
    # Not by a space in front: SVG drops it.
    axes.annotate(text, (end, row), xytext=(5, 0), textcoords="offset points", va="center", annotation_clip=False)


def draw_legend(figure: Figure, colours: Mapping[str, str], columns: int) -> None:
    """Draw a legend above: a patch for each name in ``colours``, up to ``columns`` abreast."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    columns = min(columns, len(patches)) or 1
    # Matplotlib fills by column, a legend is read by line: so in columns, the longer ones first.
    by_column = [patch for column in range(columns) for patch in patches[column::columns]]
    figure.legend(handles=by_column, loc="outside upper left", ncols=columns, frameon=False)
