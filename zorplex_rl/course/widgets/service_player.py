"""Play back what a fault did to a service: requests as dots that flow from the queue to the replicas.

    recorder = RequestRecorder(service)                          note every request from now on
    ServicePlayer(recorder, samples, Fault(at, "tools_0", "kill -9"))

    queue ──► place 0 ✗ ──► replaced         a dot waits, is sent, and is answered, or lost with its replica
         └──► place 1

A slider moves the time by mouse, keys and touch. The page needs no kernel.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from html import escape
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

import traitlets

from zorplex_rl.course.figures.service_charts import STATES, Fault, Samples, stretches
from zorplex_rl.course.widgets.widget import Widget
from zorplex_rl.drawing.svg import WIDTH, drawing

if TYPE_CHECKING:
    from zorplex_rl.services.replica import Replica
    from zorplex_rl.services.requests import Request
    from zorplex_rl.services.service import Service

MOST_LEGS = 20_000
Leg = list[Any]
"""[endpoint, waits from, sent, place, left, lost]: one way of a request through queue and replica; ``None`` for what has not happened."""


class RequestRecorder:
    """Note when each request of ``service`` waits, is sent and leaves its replica. A request that is sent again has another leg."""

    def __init__(self, service: Service) -> None:
        self.legs: deque[Leg] = deque(maxlen=MOST_LEGS)
        self._open: dict[int, Leg] = {}
        service.router.watchers.append(self._note)

    def _note(self, what: str, request: Request, replica: Replica | None) -> None:
        now, leg = time.monotonic(), self._open.get(request.number)
        if leg is None or what == "waits":
            leg = self._open[request.number] = [request.method, now, None, None, None, False]
            self.legs.append(leg)
        if replica is not None and what == "sent":
            leg[2:4] = now, replica.place
        elif replica is not None and what == "left" and leg[4] is None:
            leg[4:6] = now, replica.ended.is_set()
            self._open.pop(request.number)


class ServicePlayer(Widget, script="service_player.js"):
    """Show the requests of ``recorder`` around ``fault``, as long as there are ``samples``; first at the share ``start`` of the time.

    Raises ValueError if there are fewer than two samples, or ``start`` is not between 0 and 1.
    """

    run = traitlets.Dict().tag(sync=True)
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, recorder: RequestRecorder, samples: Samples, fault: Fault, start: float = 0.35) -> None:
        if not 0 <= start <= 1:
            raise ValueError(f"start is {start}; expected a share between 0 and 1")
        super().__init__(run=film(recorder.legs, samples, fault), look={"start": start})

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        run, left, top, row = state["run"], 80, 34, 30
        width = (WIDTH - left - 8) / (run["to"] - run["from"])

        def x(at: float) -> float:
            return left + width * (at - run["from"])

        bottom = top + row * run["places"]
        shapes = "".join(
            f'<text x="4" y="{top + row * place + 18}">place {place}</text>' for place in range(run["places"])
        )
        for place, name, replica, start, end in run["stretches"]:
            shapes += (
                f'<rect x="{x(start):.1f}" y="{top + row * place}" width="{x(end) - x(start):.1f}" height="{row - 6}" '
                f'fill="{STATES[name]}" fill-opacity="0.45"/>'
            )
            if x(end) - x(start) > 70:
                shown = replica if name == "in rotation" else "starting" if name == "being replaced" else "gone"
                shapes += (
                    f'<text x="{(x(start) + x(end)) / 2:.1f}" y="{top + row * place + 17}" text-anchor="middle" font-size="12">'
                    f"{escape(shown)}</text>"
                )
        shapes += (
            f'<path d="M{x(0):.1f} {top - 8}V{bottom}" stroke="currentColor" stroke-dasharray="5 4"/>'
            f'<text x="{x(0):.1f}" y="{top - 14}" text-anchor="middle">{escape(run["what"])}</text>'
            f'<text x="{left}" y="{bottom + 16}" font-size="12">{-run["from"]:.1f} s before</text>'
            f'<text x="{WIDTH - 8}" y="{bottom + 16}" font-size="12" text-anchor="end">{run["to"]:.1f} s after</text>'
        )
        answered = sum(leg[4] is not None and not leg[5] for leg in run["legs"])
        said = f"{answered} requests answered, {sum(leg[5] for leg in run['legs'])} lost with their replica, at most {run['most']} in the queue"
        return drawing(shapes, bottom + 24, f"{run['name']}, around {run['what']}", said)


def film(legs: Iterable[Leg], samples: Samples, fault: Fault) -> dict[str, Any]:
    """Return what the player draws, in seconds after ``fault``, from the first to the last of ``samples``.

    ``legs`` are those of ``RequestRecorder`` that are under way in this time, each with its endpoint as an index and a seventh entry: its lane
    among the requests of its replica. ``stretches`` are [place, state, replica, start, end]. ``usual`` is the median time of a request at a
    replica, ``most`` the longest queue, ``slots`` the most requests at one replica. Raises ValueError if there are fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError(f"{len(samples)} samples show no time; take two or more")
    start, end = samples[0][0] - fault.at, samples[-1][0] - fault.at

    def after(moment: float | None) -> float | None:
        return None if moment is None else round(moment - fault.at, 3)

    shown = [
        [leg[0], after(leg[1]), after(leg[2]), leg[3], after(leg[4]), leg[5]]
        for leg in sorted(legs, key=lambda leg: leg[1])
        if leg[1] - fault.at < end and (leg[4] is None or leg[4] - fault.at > start)
    ]
    methods = sorted({leg[0] for leg in shown})
    lanes: dict[int, list[float | None]] = {}
    for leg in sorted(shown, key=lambda leg: (leg[2] is None, leg[2])):
        leg[0] = methods.index(leg[0])
        taken = lanes.setdefault(leg[3], []) if leg[2] is not None else []
        free = [lane for lane, until in enumerate(taken) if until is not None and until <= leg[2]]
        lane = free[0] if free else len(taken)
        taken[lane : lane + 1] = [leg[4]]
        leg.append(lane)
    times = [leg[4] - leg[2] for leg in shown if leg[4] is not None and not leg[5]]
    changes = [(leg[1], 1) for leg in shown] + [(leg[2], -1) for leg in shown if leg[2] is not None]
    found = stretches(samples, fault)
    return {
        "name": f"Service {samples[0][1].name}",
        "what": fault.what,
        "from": round(start, 3),
        "to": round(end, 3),
        "places": 1 + max(stretch.place for stretch in found),
        "stretches": [[s.place, s.state, s.replica, round(s.start, 3), round(s.end, 3)] for s in found],
        "methods": methods,
        "legs": shown,
        "usual": round(median(times), 3) if times else 1.0,
        # Who leaves at the moment at which another comes has left before.
        "most": max(accumulate(change for _, change in sorted(changes)), default=0),
        "slots": max((len(taken) for taken in lanes.values()), default=1),
    }
