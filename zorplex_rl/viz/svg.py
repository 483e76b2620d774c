"""A figure as SVG text, which a page shows inline and which is also a complete .svg file.

    draw(Figure) ──matplotlib──► SVG ──► no background, no fixed ids, black becomes currentColor, a label for screen readers

What was black takes the colour of the surrounding text, so a figure is readable on a light and on a dark page. As a file of its own, where
nothing surrounds it, it follows the reader's system instead: its only style rules select ``svg:root``, which matches in a file and
never inside a page. Equal data give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 720
"""Width of a figure in px, unless told otherwise."""

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
    "svg:root{color-scheme:light dark;color:#1f2328}@media (prefers-color-scheme:dark){svg:root{color:#e6edf3}}"
)


def render(draw: Callable[[Figure], None], height: int, title: str, description: str, width: int = WIDTH) -> str:
    """The SVG text of what ``draw`` puts on an empty figure of ``width`` × ``height`` px.

    ``title`` and ``description`` are what a screen reader says in the figure's place: give the description the figures that matter.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # From the defaults, not from what the reader's notebook has set: marimo, for one, switches styles in dark mode.
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    with matplotlib.rc_context(defaults | _STYLE):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        figure.get_layout_engine().set(w_pad=6 / 72, h_pad=6 / 72)
        FigureCanvasSVG(figure)
        draw(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    body = re.sub(r"^.*?<svg[^>]*>", "", file.getvalue(), count=1, flags=re.DOTALL)
    # Matplotlib's own style rules would select the whole page.
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)
    # Nothing refers to the ids of groups, and two figures on a page would share them.
    body = re.sub(r'(<g) id="[a-zA-Z0-9.]+_\d+"', r"\1", body)
    # Hundredths of a pixel are enough, and make the file smaller.
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]).replace(" \n", " "), body)
    body = re.sub(r"#000000\b", "currentColor", body)
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" style="max-width:100%;height:auto" fill="currentColor" stroke-linejoin="round" '
        f'role="img" aria-label={quoteattr(f"{title}: {description}")}>\n'
        f"<title>{escape(title)}</title>\n<style>{_ROOT_RULES}</style>{body}"
    )
