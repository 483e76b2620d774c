"""Draw the pool of notebook 06, with its three holes: where ``route``, ``keep_one`` and
``retry_delay`` are at work.

callers ──► pool ──► replicas, one of them dead
"""

from __future__ import annotations

from html import escape

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import drawing


def pool_drawing() -> str:
    """Draw callers, the pool and its replicas. Returns SVG for ``lesson.figure``."""
    callers = "".join(
        _box(10, 52 + 64 * row, 104, 42, "a caller") + _line(f"M114,{73 + 64 * row} L206,{116 + 21 * row}", style.BLUE)
        for row in range(3)
    )
    pool = (
        f'<rect x="214" y="70" width="166" height="136" rx="10" fill="{style.BLUE}" fill-opacity="0.1" stroke="currentColor"/>'
        + _text(297, 96, "the pool", 15)
        + _text(297, 120, "one name for all", 13)
        + _text(297, 158, "in flight: 2, –, 1", 13)
        + _text(297, 178, "ready: 0 and 2", 13)
    )
    replicas = (
        _box(512, 18, 196, 58, "replica 0", "2 in flight")
        + _box(512, 108, 196, 58, "replica 1", "killed", style.VERMILION)
        + _box(512, 198, 196, 58, "replica 2", "1 in flight")
    )
    ways = (
        _line("M380,112 L504,52", style.BLUE)
        + _line("M380,172 L504,222", style.BLUE)
        + _line("M380,140 L504,137", style.VERMILION, dashed=True)
    )
    backwards = _line("M250,206 C238,280 92,286 66,226", style.PURPLE, dashed=True)
    holes = (
        _code(430, 52, "route")
        + _text(452, 246, "to the one with", 12)
        + _text(452, 262, "the least in flight", 12)
        + _code(446, 128, "keep_one")
        + _text(610, 184, "notice, end, start another", 12)
        + _code(160, 290, "retry_delay")
        + _text(160, 310, "it failed: try again later", 12)
    )
    return drawing(
        callers + pool + ways + replicas + backwards + holes,
        324,
        "A pool and its three holes",
        "Callers ask one name. route chooses the ready replica with the fewest requests in flight. keep_one notices a dead replica, "
        "ends it and starts another. retry_delay says how long a caller waits whose request failed.",
        720,
    )


def _box(x: int, y: int, width: int, height: int, name: str, state: str = "", colour: str = "") -> str:
    dashes = ' stroke-dasharray="6 4"' if colour else ""
    middle, shift = y + height // 2 + 5, 10 if state else 0
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour or "currentColor"}" fill-opacity="0.07" '
        f'stroke="{colour or "currentColor"}"{dashes}/>'
        + _text(x + width // 2, middle - shift, name, 14)
        + (_text(x + width // 2, middle + shift, state, 12) if state else "")
    )


def _text(x: int, y: int, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="middle">{escape(text)}</text>'


def _code(x: int, y: int, name: str) -> str:
    """Return the name of a function that the reader writes."""
    return f'<text x="{x}" y="{y}" font-size="15" font-weight="700" font-family="monospace" text-anchor="middle">{name}</text>'


def _line(path: str, colour: str, dashed: bool = False) -> str:
    """Return a path that ends in an arrow head."""
    head = f"pool-{colour[1:]}"
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<defs><marker id="{head}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker></defs>'
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes} marker-end="url(#{head})"/>'
    )
