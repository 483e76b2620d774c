"""Draw how a service behaves, from repeated samples of its ``status()``.

samples     [(seconds on a monotonic clock, ServiceStatus), …], oldest first
Fault       what was done to which replica, and when

rotation_chart(samples, fault)    which replicas were in rotation when, and how many requests were answered meanwhile
scaling_chart(samples)            how many replicas there were, and how many requests they had
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from zorplex_rl.viz import look
from zorplex_rl.viz.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zorplex_rl.services.status import ServiceStatus

Samples: TypeAlias = "Sequence[tuple[float, ServiceStatus]]"

READY, FAILED, STARTING, WAITING = look.GREEN, look.VERMILION, look.ORANGE, look.PURPLE
STATES = {"in rotation": READY, "failed, not detected yet": FAILED, "being replaced": STARTING}
RATE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """State that ``what`` was done to ``replica`` at ``at`` (seconds, on the clock of the samples)."""

    at: float
    replica: str
    what: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """State that a place was in one state, filled by one replica, from ``start`` to ``end`` (seconds after the fault)."""

    place: int
    state: str
    replica: str
    start: float
    end: float


def stretches(samples: Samples, fault: Fault) -> list[Stretch]:
    """Return the successive states of every place."""
    found: list[Stretch] = []
    open_at: dict[int, Stretch] = {}
    for (time, status), (until, _) in pairwise(samples):
        for row in status.replicas:
            if row.state == "draining":  # It left the rotation, and no replica takes its place.
                continue
            for start, end in _split(time - fault.at, until - fault.at):
                state = "in rotation" if row.state == "ready" else "being replaced"
                if row.replica == fault.replica and start >= 0:
                    state = "failed, not detected yet"
                before = open_at.get(row.place)
                if before and (before.state, before.replica) == (state, row.replica):
                    start = before.start
                    found.remove(before)
                open_at[row.place] = Stretch(row.place, state, row.replica, start, end)
                found.append(open_at[row.place])
    return found


def rates(samples: Samples, seconds: float = RATE_SECONDS) -> list[tuple[float, float, float]]:
    """Return (start, end, requests answered per second) for intervals of about ``seconds`` with equally many samples."""
    count = max(1, round((samples[-1][0] - samples[0][0]) / seconds))
    marks = [samples[round(index * (len(samples) - 1) / count)] for index in range(count + 1)]
    pairs = [(before, after) for before, after in pairwise(marks) if after[0] > before[0]]
    return [(a[0], b[0], (b[1].answered - a[1].answered) / (b[0] - a[0])) for a, b in pairs]


def rotation_chart(samples: Samples, fault: Fault) -> str:
    """Draw a row for every place, coloured by its state, and below it the requests answered per second. The fault is at 0 s."""
    drawn = stretches(samples, fault)
    places = sorted({stretch.place for stretch in drawn})
    start, end = samples[0][0] - fault.at, samples[-1][0] - fault.at

    def draw(figure: Figure) -> None:
        rows, rate = figure.subplots(2, 1, sharex=True, height_ratios=[len(places), 2])
        for stretch in drawn:
            row = places.index(stretch.place)
            length = stretch.end - stretch.start
            rows.barh(row, length, left=stretch.start, height=0.68, color=STATES[stretch.state], linewidth=0)
            if stretch.state == "in rotation" and length > 0.12 * (end - start):
                look.write_in_bar(rows, stretch.start + length / 2, row, stretch.replica)
        look.name_rows(rows, [f"place {place}" for place in places])
        rows.tick_params(axis="x", length=0)
        look.bare_axes(rows, keep=())
        steps = rates(samples)
        edges = [begin - fault.at for begin, _, _ in steps] + [steps[-1][1] - fault.at]
        rate.stairs([pace for _, _, pace in steps], edges, baseline=0, fill=True, color=READY, alpha=0.45)
        rate.set(xlim=(start, end), ylim=(0, None), ylabel="answered/s", xlabel=f"seconds after {fault.what}")
        look.bare_axes(rate, grid="y", keep=("left", "bottom"))
        for axes in (rows, rate):
            axes.axvline(0, color=look.TEXT, linewidth=1.2, linestyle=(0, (4, 3)))
        seen = {stretch.state for stretch in drawn}
        look.draw_legend(figure, {state: colour for state, colour in STATES.items() if state in seen}, columns=4)

    said = "; ".join(
        f"place {s.place} {s.state} ({s.replica}) from {s.start:.1f} to {s.end:.1f} s"
        for s in drawn
        if s.place in {other.place for other in drawn if other.state != "in rotation"}
    )
    height = 190 + 30 * len(places)
    return render(draw, height, f"What {fault.what} does to a service", said or "no replica has left", look.NARROW)


def scaling_chart(samples: Samples) -> str:
    """Draw above the replicas in rotation and those being started; below, the requests in flight and those that wait."""
    begin = samples[0][0]
    times = [time - begin for time, _ in samples]
    ready = [sum(row.state == "ready" for row in status.replicas) for _, status in samples]
    there = [sum(row.state != "draining" for row in status.replicas) for _, status in samples]
    in_flight = [status.in_flight for _, status in samples]
    waiting = [status.queue_depth for _, status in samples]

    def draw(figure: Figure) -> None:
        replicas, requests = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
        style = {"step": "post", "linewidth": 0}
        replicas.fill_between(times, ready, color=READY, **style)
        replicas.fill_between(times, ready, there, color=STARTING, **style)
        replicas.set(ylabel="replicas", ylim=(0, max(there) + 0.5), yticks=range(max(there) + 1))
        requests.fill_between(times, in_flight, color=READY, alpha=0.45, **style)
        total = [sent + queued for sent, queued in zip(in_flight, waiting, strict=True)]
        requests.fill_between(times, in_flight, total, color=WAITING, **style)
        requests.set(ylabel="requests", xlabel="seconds", xlim=(0, times[-1]), ylim=(0, None))
        for axes in (replicas, requests):
            look.bare_axes(axes, grid="y", keep=("left", "bottom"))
        colours = {"in rotation": READY, "being started": STARTING, "in flight": f"{READY}73", "waiting": WAITING}
        look.draw_legend(figure, colours, columns=4)

    said = f"{min(ready)} to {max(ready)} replicas in rotation, {ready[-1]} at the end; at most {max(waiting)} requests waiting"
    return render(draw, 300, "A service that follows its queue", said, look.NARROW)


def _split(start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the interval, cut in two if it contains the time of the fault, 0."""
    yield from ((start, 0.0), (0.0, end)) if start < 0 < end else ((start, end),)
