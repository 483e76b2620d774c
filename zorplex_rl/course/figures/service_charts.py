"""Draw how a service behaves, from repeated samples of its ``status()``.

samples     [(seconds on a monotonic clock, ServiceStatus), …], oldest first
Fault       what was done to which replica, and when

service_drawing()                 callers, the queue, replicas, and one that is replaced; without data
rotation_chart([(samples, fault), …])    which replicas were in rotation when, and how many requests were answered meanwhile, on one time scale
scaling_chart(samples)            how many replicas there were, and how many requests they had
saturation_chart(measured, …)     rate and latency by the number of callers
returns_chart(loads, taken)       requests in each slot of time, by the rule that says when refused callers come back
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from zorplex_rl.drawing import look
from zorplex_rl.drawing.svg import drawing, render

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


def rotation_chart(runs: Sequence[tuple[Samples, Fault]]) -> str:
    """Draw for each run a row for every place, coloured by its state, and below it the requests answered per second. Its fault is at 0 s.

    All runs have the same time scale and the same scale of rates.
    """
    drawn = [stretches(samples, fault) for samples, fault in runs]
    paces = [rates(samples) for samples, _ in runs]
    start = min(samples[0][0] - fault.at for samples, fault in runs)
    end = max(samples[-1][0] - fault.at for samples, fault in runs)
    most = max(pace for steps in paces for _, _, pace in steps)
    places = [sorted({stretch.place for stretch in found}) for found in drawn]

    def draw(figure: Figure) -> None:
        ratios = [ratio for there in places for ratio in (len(there), 2)]
        panels = figure.subplots(2 * len(runs), 1, sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
        for number, (_, fault) in enumerate(runs):
            rows, rate = panels[2 * number : 2 * number + 2]
            for stretch in drawn[number]:
                row = places[number].index(stretch.place)
                length = stretch.end - stretch.start
                rows.barh(row, length, left=stretch.start, height=0.68, color=STATES[stretch.state], linewidth=0)
                if stretch.state == "in rotation" and length > 0.12 * (end - start):
                    look.write_in_bar(rows, stretch.start + length / 2, row, stretch.replica)
            look.name_rows(rows, [f"place {place}" for place in places[number]])
            rows.tick_params(axis="x", length=0, labelbottom=False)
            look.bare_axes(rows, keep=())
            steps = paces[number]
            edges = [begin - fault.at for begin, _, _ in steps] + [steps[-1][1] - fault.at]
            rate.stairs([pace for _, _, pace in steps], edges, baseline=0, fill=True, color=READY, alpha=0.45)
            rate.set(xlim=(start, end), ylim=(0, 1.05 * most or 1), ylabel="answers/s")
            rate.tick_params(axis="x", labelbottom=True)
            rate.set_xlabel(f"seconds after {fault.what}")
            look.bare_axes(rate, grid="y", keep=("left", "bottom"))
            for axes in (rows, rate):
                axes.axvline(0, color=look.TEXT, linewidth=1.2, linestyle=(0, (4, 3)))
        seen = {stretch.state for found in drawn for stretch in found}
        look.draw_legend(figure, {state: colour for state, colour in STATES.items() if state in seen}, columns=4)

    said = "; ".join(_said(found, fault, alone=len(runs) == 1) for found, (_, fault) in zip(drawn, runs, strict=True))
    height = 70 + sum(120 + 30 * len(there) for there in places)
    what = " and ".join(fault.what for _, fault in runs)
    return render(draw, height, f"What {what} {'does' if len(runs) == 1 else 'do'} to a service", said)


def _said(drawn: Sequence[Stretch], fault: Fault, alone: bool) -> str:
    changed = {stretch.place for stretch in drawn if stretch.state != "in rotation"}
    told = "; ".join(
        f"place {s.place} {s.state} ({s.replica}) from {s.start:.1f} to {s.end:.1f} s"
        for s in drawn
        if s.place in changed
    )
    return ("" if alone else f"{fault.what}: ") + (told or "no replica has left")


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
    return render(draw, 300, "A service that follows its queue", said)


def saturation_chart(measured: Mapping[int, tuple[float, float]], capacity: float) -> str:
    """Draw the rate (requests per second) and the mean latency (seconds) for each number of callers, with a line at ``capacity``."""
    callers = list(measured)

    def draw(figure: Figure) -> None:
        rate, latency = figure.subplots(1, 2)
        rate.plot(callers, [found[0] for found in measured.values()], "o-", color=READY, linewidth=2)
        rate.axhline(capacity, color=look.TEXT, linewidth=1.2, linestyle=(0, (4, 3)))
        rate.set(ylim=(0, 1.15 * max(capacity, *(found[0] for found in measured.values()))), ylabel="answers/s")
        latency.plot(callers, [found[1] for found in measured.values()], "o-", color=WAITING, linewidth=2)
        latency.set(ylim=(0, 1.1 * max(found[1] for found in measured.values())), ylabel="seconds for one")
        for axes in (rate, latency):
            axes.set(xlim=(0, 1.05 * callers[-1]), xticks=callers, xlabel="callers")
            look.bare_axes(axes, grid="y", keep=("left", "bottom"))

    said = "; ".join(f"{n} callers {pace:.0f} answers/s, {seconds:.3f} s" for n, (pace, seconds) in measured.items())
    return render(draw, 260, "A service that fills up", f"{said}; capacity {capacity:.0f} answers/s")


def returns_chart(loads: Mapping[str, Sequence[int]], taken: int, slot: float = 0.1) -> str:
    """Draw the requests that come in each slot of time, a panel for each rule, all on the same axes; a line at what is ``taken`` in a slot."""
    seconds = slot * max(map(len, loads.values()))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(loads), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (name, load) in zip(panels, loads.items(), strict=True):
            edges = [slot * number for number in range(len(load) + 1)]
            axes.stairs(load, edges, baseline=0, fill=True, color=WAITING)
            axes.axhline(taken, color=look.TEXT, linewidth=1, linestyle=(0, (4, 3)))
            axes.set_title(name, loc="left", fontsize=12)
            axes.set(xlim=(0, seconds), ylim=(0, None), ylabel="requests")
            look.bare_axes(axes, grid="y", keep=("left", "bottom"))
        panels[-1].set_xlabel("seconds; dashed: what the service takes in each slot")

    said = "; ".join(
        f"{name}: {sum(load)} requests, done after {slot * len(load):.1f} s" for name, load in loads.items()
    )
    return render(draw, 60 + 110 * len(loads), "When refused callers come back", said)


def service_drawing() -> str:
    """Draw callers, the one queue of a service, three replicas, and the successor of the one that has died."""
    colour = look.ROLES["tools"]
    shapes = "".join(
        f'<rect x="2" y="{30 + 56 * row}" width="112" height="38" rx="8" fill="none" stroke="currentColor"/>'
        f'<text x="58" y="{54 + 56 * row}" text-anchor="middle">caller</text>'
        f'<path d="M116 {49 + 56 * row}L186 {88 + 17 * row}" stroke="currentColor" fill="none"/>'
        for row in range(3)
    )
    shapes += (
        '<rect x="188" y="82" width="150" height="46" rx="8" fill="currentColor" fill-opacity="0.07" stroke="currentColor"/>'
        + "".join(f'<circle cx="{322 - 24 * place}" cy="105" r="8" fill="{look.OLIVE}"/>' for place in range(4))
        + '<text x="263" y="72" text-anchor="middle">one bounded queue</text>'
        '<text x="263" y="150" text-anchor="middle" font-size="12.5">the oldest goes first</text>'
    )
    for row, (name, said) in enumerate((("tools_0", "healthy"), ("tools_1", "gone"), ("tools_2", "healthy"))):
        gone, y = said == "gone", 22 + 64 * row
        shown, dashed = (look.VERMILION, ' stroke-dasharray="4 5"') if gone else (colour, "")
        shapes += (
            f'<path d="M340 105L426 {y + 24}" stroke="{shown}" stroke-width="2" fill="none"{dashed}/>'
            f'<rect x="428" y="{y}" width="124" height="48" rx="8" fill="{shown}" fill-opacity="0.2" stroke="{shown}" stroke-width="2"/>'
            f'<text x="490" y="{y + 21}" text-anchor="middle" font-weight="600">{name}</text>'
            f'<text x="490" y="{y + 38}" text-anchor="middle" font-size="12.5">{said}</text>'
        )
    shapes += (
        f'<path d="M554 110H588m-8-5 8 5-8 5" stroke="currentColor" fill="none"/>'
        f'<rect x="592" y="86" width="124" height="48" rx="8" fill="{STARTING}" fill-opacity="0.2" stroke="{STARTING}" stroke-width="2"/>'
        '<text x="654" y="107" text-anchor="middle" font-weight="600">tools_3</text>'
        '<text x="654" y="124" text-anchor="middle" font-size="12.5">starts in its place</text>'
    )
    said = "three callers, one bounded queue, three replicas; one of them is gone, and tools_3 starts in its place"
    return drawing(shapes, 208, "A service", said)


def _split(start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the interval, cut in two if it contains the time of the fault, 0."""
    yield from ((start, 0.0), (0.0, end)) if start < 0 < end else ((start, end),)
