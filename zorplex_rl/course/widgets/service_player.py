"""Play back what faults did to a pool: requests as dots that cross its replicas.

    ServicePlayer([recording, another])          one stage each, on one clock; the fault is at 0 s

    place 0   ● ●  ●   ✗ gone ──► starting ──► ●   ●        a dot is sent, and answered, or lost with its replica
    place 1     ●    ●   ●     ●     ●   ●    ●

A slider moves the time by mouse, keys and touch. The page needs no kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any

import traitlets

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import WIDTH, drawing
from zorplex_rl.course.widgets.widget import Widget

STATES = {
    "in rotation": style.GREEN,
    "gone, and nobody knows": style.VERMILION,
    "being replaced": style.ORANGE,
}
SHOWN = {"in rotation": "", "gone, and nobody knows": "gone", "being replaced": "starting"}


@dataclass(slots=True)
class Life:
    """Hold when a replica was begun, when it answered first, and when it left."""

    place: int
    replica: str
    begun: float
    ready: float | None = None
    left: float | None = None
    pid: int = 0


@dataclass(slots=True)
class Recording:
    """Hold what was done to ``victim`` at ``at``, and what was seen in ``span``."""

    what: str = ""
    victim: int = 0
    at: float = 0.0
    span: tuple[float, float] = (0.0, 0.0)
    lives: list[Life] = field(default_factory=list)
    legs: list[list[Any]] = field(default_factory=list)
    """[endpoint, sent, place, left, lost] of each request; None for what has not happened."""

    @property
    def noticed(self) -> float:
        """Return the seconds from the fault until its victim had left the rotation."""
        return (
            next(life.left for life in self.lives if life.pid == self.victim and life.left)
            - self.at
        )

    @property
    def whole(self) -> float:
        """Return the seconds from the fault until every place was in rotation again."""
        return max(life.ready for life in self.lives if life.ready) - self.at


def stretches(recording: Recording) -> list[list[Any]]:
    """Return [place, state, replica, start, end] of each state, in seconds after the fault."""
    begin, end = recording.span
    found = []
    for place in sorted({life.place for life in recording.lives}):
        free = begin
        for life in (life for life in recording.lives if life.place == place):
            ready, left = (end if moment is None else moment for moment in (life.ready, life.left))
            known = recording.at if life.pid == recording.victim else left
            for state, start, until in (
                ("being replaced", free, ready),
                ("in rotation", ready, min(known, left)),
                ("gone, and nobody knows", known, left),
            ):
                first, last = (min(max(moment, begin), end) for moment in (start, until))
                if last > first:
                    times = (round(moment - recording.at, 3) for moment in (first, last))
                    found.append([place, state, life.replica, *times])
            free = left
    return found


class ServicePlayer(Widget, script="service_player.js"):
    """Show requests around faults, on one clock, first at the share ``start``."""

    runs: Any = traitlets.List().tag(sync=True)
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, recordings: Sequence[Recording], start: float = 0.35) -> None:
        ends = [
            round(edge(one.span[i] - one.at for one in recordings), 3)
            for i, edge in ((0, min), (1, max))
        ]
        super().__init__(
            runs=[film(one) for one in recordings],
            look={"start": start, "from": ends[0], "to": ends[1]},
        )

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        left = 80
        row = 30
        shown = state["look"]
        width = (WIDTH - left - 8) / (shown["to"] - shown["from"])

        def x(at: float) -> float:
            return left + width * (at - shown["from"])

        shapes = ""
        top = 34
        said = []
        for run in state["runs"]:
            bottom = top + row * run["places"]
            shapes += "".join(
                f'<text x="4" y="{top + row * place + 18}">place {place}</text>'
                for place in range(run["places"])
            )
            for place, name, replica, start, end in run["stretches"]:
                shapes += (
                    f'<rect x="{x(start):.1f}" y="{top + row * place}" width="{x(end) - x(start):.1f}" height="{row - 6}" '
                    f'fill="{STATES[name]}" fill-opacity="0.45"/>'
                )
                if x(end) - x(start) > 70:
                    shapes += (
                        f'<text x="{(x(start) + x(end)) / 2:.1f}" y="{top + row * place + 17}" text-anchor="middle" '
                        f'font-size="12">{escape(SHOWN[name] or replica)}</text>'
                    )
            shapes += (
                f'<path d="M{x(0):.1f} {top - 8}V{bottom}" stroke="currentColor" stroke-dasharray="5 4"/>'
                f'<text x="{x(0):.1f}" y="{top - 14}" text-anchor="middle">{escape(run["what"])}</text>'
            )
            lost = sum(leg[4] for leg in run["legs"])
            answered = sum(leg[3] is not None for leg in run["legs"]) - lost
            said.append(
                f"{run['what']}: {answered} requests answered, {lost} cut off with their replica"
            )
            top = bottom + 34
        shapes += (
            f'<text x="{left}" y="{top - 16}" font-size="12">{-shown["from"]:.1f} s before</text>'
            f'<text x="{WIDTH - 8}" y="{top - 16}" font-size="12" text-anchor="end">{shown["to"]:.1f} s after</text>'
        )
        return drawing(shapes, top - 8, "What faults did to a pool", "; ".join(said))


def film(recording: Recording) -> dict[str, Any]:
    """Return what the player draws of one recording, in seconds after its fault.

    Each of ``legs`` has its endpoint as an index and a sixth entry: its lane among the requests of
    its place. ``usual`` is the median time
    of a request, ``slots`` the most requests at one place.
    """
    begin, end = recording.span

    def after(moment: float | None) -> float | None:
        return None if moment is None else round(moment - recording.at, 3)

    shown = [
        [method, after(sent), place, after(left), lost]
        for method, sent, place, left, lost in sorted(recording.legs, key=lambda leg: leg[1])
        if sent < end and (left is None or left > begin)
    ]
    methods = sorted({leg[0] for leg in shown})
    lanes: dict[int, list[float | None]] = {}
    for leg in shown:
        leg[0] = methods.index(leg[0])
        taken = lanes.setdefault(leg[2], [])
        free = [lane for lane, until in enumerate(taken) if until is not None and until <= leg[1]]
        lane = free[0] if free else len(taken)
        taken[lane : lane + 1] = [leg[3]]
        leg.append(lane)
    times = [leg[3] - leg[1] for leg in shown if leg[3] is not None and not leg[4]]
    found = stretches(recording)
    return {
        "what": recording.what,
        "places": 1 + max(stretch[0] for stretch in found),
        "stretches": found,
        "methods": methods,
        "legs": shown,
        "usual": round(median(times), 3) if times else 1.0,
        "slots": max((len(taken) for taken in lanes.values()), default=1),
    }
