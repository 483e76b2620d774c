"""Draw the loop of RL, with the parts that a page is about lit in the colour of their role.

              tools
                ⇅
    dataset ► generator ► reward ► replay buffer ► trainer
                ▲                                    │
                └────────────── weights ◄────────────┘

    lesson.figure(loop_drawing("generator", "tools"), "This section: …")      two parts lit
    lesson.figure(loop_drawing(), "The whole loop.")                          all of them lit

The drawing is ``drawings/loop.svg``. A part, or an arrow between two, is lit by ``data-lit``.
"""

import re

from zorplex_rl.course.figures import drawing_of
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


def loop_drawing(*lit: str) -> str:
    """Return the loop as SVG text, with the parts named in ``lit`` in colour; all if none is.

    Raises ValueError for a name that is not in ``ROLES``.
    """
    if unknown := set(lit) - set(ROLES):
        raise ValueError(f"the loop has no part {unknown.pop()!r}; choose among {', '.join(ROLES)}")
    drawing = drawing_of("loop.svg")
    if not lit:
        return drawing

    def light(group: re.Match[str]) -> str:
        parts = group[1].split(", ")  # an arrow has two
        return group[0] if set(parts) <= set(lit) else group[0].replace("true", "false")

    drawing = re.sub(r'data-(?:part|arrow)="([^"]+)" data-lit="true"', light, drawing)
    return drawing.replace("In colour: all parts.", f"In colour: {', '.join(lit)}.")
