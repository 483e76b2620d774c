"""Render figures as SVG text, and define what all of them share: colours, width, axes, legend.

    draw(Figure) ──matplotlib──► SVG ──► without background and ids, with a label for screen readers

Black becomes the colour of the surrounding text (``currentColor``), so a figure is readable on light
and dark pages. A separate file follows the light or dark mode of the reader's system instead: its only
style rules select ``svg:root``, which matches in a file but never inside a page. Equal data give equal
bytes.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Based on the palette of Okabe and Ito, for any colour vision, on white and on black.
BLUE = "#2484CE"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
DEEP_BLUE = "#0072B2"
OLIVE = "#B5A81C"
GREY = "#808080"
SERIES = (BLUE, VERMILION, GREEN, PURPLE)
TEXT = "#000000"
"""``render`` turns black into the text's colour."""
TEXT_ON_COLOUR = "#000001"
"""Text on a coloured bar stays almost black."""
WIDTH = 720
"""Default width of a figure in px."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "zorplex_rl",
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "figure.dpi": 72,
    "savefig.dpi": 72,
    "axes.linewidth": 0.8,
    "text.parse_math": False,
}
_ROOT_RULES = (
    "svg:root{color-scheme:light dark;color:#1f2328}"
    "@media (prefers-color-scheme:dark){svg:root{color:#e6edf3}}"
)
_LINKS = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
_FONT = 'font-family="system-ui, sans-serif" font-size="14"'


def render(
    draw: Callable[[Figure], None],
    height: int,
    title: str,
    description: str,
    width: int = WIDTH,
) -> str:
    """Call ``draw`` with an empty figure of ``width`` × ``height`` px. Returns its SVG text. A
    screen reader reads ``title`` and ``description``, so put the important numbers there."""
    body = re.sub(r"^.*?<svg[^>]*>", "", _drawn(draw, width, height), count=1, flags=re.DOTALL)
    # Matplotlib's own style rules would select the whole page.
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)
    # Nothing refers to the ids of groups, and two figures on a page would use the same ids.
    body = re.sub(r'(<g) id="[a-zA-Z0-9.]+_\d+"', r"\1", body)
    # Only within tags: a name in the figure may look like a colour, a font or a path.
    body = re.sub(r"<[^<>]*>", lambda tag: _adapted(tag[0]), body)
    return _svg(_LINKS, body, (width, height), title, description)


def _drawn(draw: Callable[[Figure], None], width: int, height: int) -> str:
    """Return matplotlib's SVG of what ``draw`` draws."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # From the defaults, not the notebook's settings: marimo changes styles in dark mode.
    settings: dict[Any, Any] = {}
    for name, value in matplotlib.rcParamsDefault.items():
        if not name.startswith("backend"):
            settings[name] = value
    with matplotlib.rc_context(settings | _STYLE):
        figure = Figure(
            figsize=(width / 72, height / 72),
            layout=ConstrainedLayoutEngine(w_pad=6 / 72, h_pad=6 / 72),
        )
        FigureCanvasSVG(figure)
        draw(figure)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    return file.getvalue()


def _adapted(tag: str) -> str:
    """Return ``tag`` with the page's text colour and font, and paths in hundredths of pixels."""
    tag = re.sub(r' d="[^"]*"', lambda path: _rounded(path[0]), tag)
    tag = re.sub(r"#000000\b", "currentColor", tag)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", tag)


def _rounded(path: str) -> str:
    """Return ``path`` with two digits of each coordinate, in one line."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path).replace(" \n", " ")


def drawing(
    shapes: str,
    height: int,
    title: str,
    description: str,
    width: int = WIDTH,
) -> str:
    """Return SVG ``shapes`` as a figure of ``width`` × ``height`` px, coloured and labelled like the
    others."""
    return _svg(_FONT, f"{shapes}</svg>", (width, height), title, description)


def _svg(attributes: str, body: str, size: tuple[int, int], title: str, description: str) -> str:
    """Return a figure with its label. ``body`` ends with the closing tag."""
    width, height = size
    label = quoteattr(f"{title}: {description}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" style="max-width:100%;height:auto"'
        f' fill="currentColor" {attributes} stroke-linejoin="round" role="img" aria-label={label}>'
        f"\n<title>{escape(title)}</title>\n<style>{_ROOT_RULES}</style>{body}"
    )


def bare_axes(
    axes: Axes,
    grid: Literal["x", "y", "both"] | None = None,
    keep: Collection[str] = ("bottom",),
) -> None:
    """Hide the frame of ``axes`` but the sides to ``keep``; draw a faint ``grid`` behind."""
    for side, spine in axes.spines.items():
        if side not in keep:
            spine.set_visible(False)
    if grid:
        axes.grid(axis=grid, color=GREY, alpha=0.25, linewidth=0.8)
        axes.set_axisbelow(True)


def name_rows(axes: Axes, names: Sequence[str], margin: float = 0.5) -> None:
    """Put rows 0, 1, … from the top, ``names`` at the left, ``margin`` rows above and below."""
    last = max(len(names), 1) - 1
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        ylim=(last + margin, -margin),
    )
    axes.tick_params(axis="y", length=0)


def show_percent(axis: Axis) -> None:
    """Write the shares along ``axis`` as percentages."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
