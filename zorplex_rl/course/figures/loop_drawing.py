"""Draw the loop of RL, with the parts that a page is about lit in the colour of their role.

              tools
                ⇅
    dataset ► generator ► reward ► replay buffer ► trainer
                ▲                                    │
                └────────────── weights ◄────────────┘

    lesson.figure(loop_drawing("generator", "tools"), "This section: …")      two parts lit
    lesson.figure(loop_drawing(), "The whole loop.")                          all of them lit

Plain SVG: it needs no script, and black is the colour of the surrounding text, so it follows light
and dark.
"""

from __future__ import annotations

import math
from html import escape

from zorplex_rl.course.figures import figure as style

ROLES = {
    "dataset": style.GREY,
    "generator": style.BLUE,
    "tools": style.PURPLE,
    "reward": style.GREEN,
    "replay buffer": style.SKY,
    "trainer": style.VERMILION,
    "weights": style.ORANGE,
}
"""The colour of every role, the same in all drawings and widgets of the course."""
WIDTH, HEIGHT = 720, 264
BOX_WIDTH, BOX_HEIGHT = 118, 54
# Left and top of every box, and what the part does.
PARTS = {
    "dataset": (1, 104, "draws a task"),
    "generator": (151, 104, "writes episodes"),
    "tools": (151, 6, "answer its calls"),
    "reward": (301, 104, "scores them"),
    "replay buffer": (451, 104, "bounds their age"),
    "trainer": (601, 104, "takes a step"),
    "weights": (376, 204, "a new version"),
}
# The corners of each arrow from a part to a part.
ARROWS = {
    ("dataset", "generator"): [(119, 131), (149, 131)],
    ("generator", "tools"): [(198, 104), (198, 62)],
    ("tools", "generator"): [(222, 60), (222, 102)],
    ("generator", "reward"): [(269, 131), (299, 131)],
    ("reward", "replay buffer"): [(419, 131), (449, 131)],
    ("replay buffer", "trainer"): [(569, 131), (599, 131)],
    ("trainer", "weights"): [(660, 158), (660, 231), (496, 231)],
    ("weights", "generator"): [(376, 231), (210, 231), (210, 160)],
}


def loop_drawing(*lit: str) -> str:
    """Return the loop as SVG text, with the parts named in ``lit`` in colour; all if none is.

    Raises ValueError for a name that is not in ``PARTS``.
    """
    if unknown := [name for name in lit if name not in PARTS]:
        raise ValueError(f"the loop has no part {unknown[0]!r}; choose among {', '.join(PARTS)}")
    shown = lit or tuple(PARTS)
    arrows = "".join(
        _arrow(corners, bool({start, end} <= set(shown)))
        for (start, end), corners in ARROWS.items()
    )
    boxes = "".join(_box(name, name in shown) for name in PARTS)
    order = "dataset, generator with its tools, reward, replay buffer, trainer, and weights back to the generator"
    here = "all parts" if len(shown) == len(PARTS) else ", ".join(shown)
    said = escape(f"The loop of reinforcement learning: {order}. In colour: {here}.", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'style="max-width:100%;height:auto" fill="currentColor" font-family="system-ui, sans-serif" role="img" '
        f'aria-label="{said}">{arrows}{boxes}</svg>'
    )


def _box(name: str, lit: bool) -> str:
    left, top, does = PARTS[name]
    middle, colour = left + BOX_WIDTH / 2, ROLES[name]
    look_of_box = (
        f'fill="{colour}" fill-opacity="0.2" stroke="{colour}" stroke-width="2.5"'
        if lit
        else 'fill="none" stroke="currentColor" stroke-opacity="0.35"'
    )
    faint = "" if lit else ' fill-opacity="0.62"'
    return (
        f'<g data-part="{name}" data-lit="{str(lit).lower()}"><rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" '
        f'{look_of_box}/><text x="{middle:g}" y="{top + 23}" text-anchor="middle" font-size="15" font-weight="600"{faint}>{name}</text>'
        f'<text x="{middle:g}" y="{top + 41}" text-anchor="middle" font-size="12.5"{faint}>{does}</text></g>'
    )


def _arrow(corners: list[tuple[int, int]], lit: bool) -> str:
    """Return a line with a head at its end, without markers: their ids would be shared."""
    (before_x, before_y), (x, y) = corners[-2:]
    angle = math.degrees(math.atan2(y - before_y, x - before_x))
    points = " ".join(f"{x},{y}" for x, y in corners)
    return (
        f'<g opacity="{1 if lit else 0.45}"><polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f'<path d="M-8 -4.5L0 0L-8 4.5Z" transform="translate({x} {y}) rotate({angle:g})"/></g>'
    )
