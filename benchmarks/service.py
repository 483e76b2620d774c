"""Measure what a service costs, and check what it guarantees while its replicas are killed, stopped
and made to raise.

    a call        ``svc.METHOD.route`` against Monarch's bare ``call_one`` on the same replicas, one caller
    throughput    the same with many callers at once
    faults        every second one replica is killed, stopped or made to raise, and the service is scaled up and down, while this process
                  and two others send requests. The replicas record which requests they answer, so a request that is lost or done twice
                  is seen. Each caller counts how many later requests overtook one that waited
    burst         ten times the load on a service that scales itself
    fairness      the share of each replica in 1,000 requests, before and after replicas were killed and added

A service is measured as a caller sees it: the time from the call to its answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median

import tyro
from log import Report, append_report, print_report

from zorplex_rl.services.registry import get_service, register_service
from zorplex_rl.services.replica import ReplicaFailed, ServiceError, ServiceOptions, replicas_of, spawn
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.router import Request, Router
from zorplex_rl.services.runtime import Actor, ActorError, concurrent_endpoint
from zorplex_rl.services.service import Service, ServiceEndpoints

ASKED = (
    "What does a call through a service cost, compared with a bare call to an actor? Is every request answered once under faults? "
    "Does the service absorb ten times the load, and is routing fair?"
)
EXPECTED = (
    "A routed call costs at most 1.3 times a bare one (median) and sustains at least 80 % of its throughput with 4 replicas. Every request is "
    "answered once or fails with its cause, and none is overtaken by more than the number of slots. A killed replica is back within 3 s plus "
    "its set-up time, a stopped one within 8 s. No error in the burst; shares within 2 % of equal."
)
FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    replicas: int = 4
    """Replicas of the service."""
    calls: int = 2000
    """Calls of the first part, of each kind."""
    callers: int = 64
    """Callers at once in the second part."""
    repeats: int = 5
    """Repetitions of the second part; bare and routed take turns."""
    requests: int = 10_000
    """Requests under faults, of three calling processes together."""
    log: bool = True
    """Append the result to LOG.md."""


class Worker(Actor):
    """Answer at once or after a while, and record which requests it carried out."""

    def __init__(self, journal: str) -> None:
        self._journal = open(f"{journal}/{os.getpid()}", "a", buffering=1)  # noqa: SIM115

    @concurrent_endpoint
    async def who(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def do(self, number: int, seconds: float) -> int:
        self._journal.write(f"{number}\n")
        await asyncio.sleep(seconds)
        return number

    @concurrent_endpoint
    async def look_up(self, number: int, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return number

    @concurrent_endpoint
    async def complain(self) -> None:
        raise ValueError("no")


async def cost_of_a_call(service: Service, calls: int) -> Report:
    actors = cycle([replica.actor for replica in service.replicas])
    seconds: dict[str, list[float]] = {"bare call_one": [], "route": [], "route in a session": []}

    async def bare() -> None:
        # In turns too: a process that has slept since its last call takes longer to answer.
        await next(actors).who.call_one()

    async with service.session() as session:
        callers = (bare, service.who.route, session.who.route)
        for call in range(calls + 100):
            for name, caller in zip(seconds, callers, strict=True):
                began = time.perf_counter()
                await caller()
                if call >= 100:
                    seconds[name].append(time.perf_counter() - began)
    bare = median(seconds["bare call_one"])
    rows = [
        [name, f"{1e3 * median(s):.3f}", f"{1e3 * sorted(s)[int(0.99 * len(s))]:.2f}", f"{median(s) / bare:.2f}"]
        for name, s in seconds.items()
    ]
    return Report(f"A call, one caller, {calls} each, in turns", ["call", "median ms", "p99 ms", "÷ bare"], rows)


async def throughput(service: Service, calls: int, callers: int, repeats: int) -> Report:
    actors = [replica.actor for replica in service.replicas]
    each = max(calls * 4 // callers, 1)

    async def bare(caller: int) -> None:
        for call in range(each):
            await actors[(caller + call) % len(actors)].who.call_one()

    async def routed(caller: int) -> None:
        for _ in range(each):
            await service.who.route()

    rates: dict[str, list[float]] = {"bare call_one": [], "route": []}
    for repeat in range(-1, repeats):
        for name, caller in zip(rates, (bare, routed), strict=True):
            began = time.perf_counter()
            await asyncio.gather(*(caller(number) for number in range(callers)))
            if repeat >= 0:
                rates[name].append(each * callers / (time.perf_counter() - began))
    shares = [routed / bare for bare, routed in zip(*rates.values(), strict=True)]
    rows = [[name, f"{median(rate):.0f}"] for name, rate in rates.items()]
    rows[0].append("1.00")
    rows[1].append(f"{median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})")
    title = f"Throughput, {callers} callers, {len(actors)} replicas"
    return Report(title, ["call", "calls/s", "× bare"], rows)


class Caller(Actor):
    """Send requests from a process of its own."""

    @concurrent_endpoint
    async def send(self, name: str, numbers: list[int]) -> tuple[list[object], int]:
        return await send(await get_service(name), numbers)


async def send(service: ServiceEndpoints, numbers: list[int]) -> tuple[list[object], int]:
    """Return what became of each request, by number, and the most later requests that overtook one
    in the queue."""
    rng, gate, overtaken = random.Random(numbers[0]), asyncio.Semaphore(32), count_overtaking(service.router)

    async def request(number: int) -> int:
        async with gate:
            return await (service.look_up if number % 2 else service.do).route(number, 0.5 * rng.random())

    outcomes = await asyncio.gather(*map(request, numbers), return_exceptions=True)
    return outcomes, max(overtaken.values(), default=0)


def count_overtaking(router: Router) -> Counter[int]:
    """Count, from now on, the later requests that are sent while a request waits. Returns the
    counts by number."""
    overtaken, send_now = Counter(), router._send

    def send_and_count(request: Request, replica: object) -> None:
        for waiting in router.queue:
            if waiting.number > request.number:
                break
            overtaken[waiting.number] += 1
        send_now(request, replica)

    router._send = send_and_count
    return overtaken


async def under_faults(service: Service, restarts: list[Restart], journal: Path, requests: int) -> Report:
    rng, faults, back = random.Random(0), Counter(), {name: [] for name in FAULTS}
    replicas, slots = service.options.replicas, service.options.max_in_flight
    clocks, scaling = set(), set()

    async def strike() -> None:
        while True:
            await asyncio.sleep(1.0)
            fault = rng.choice([*FAULTS, "raise", "scale up", "scale down"])
            ready = [replica for replica in service.router.ready if replica.pid]
            faults[fault] += 1
            if fault.startswith("scale"):
                number = replicas + rng.randint(1, 2) if fault == "scale up" else rng.randint(2, replicas - 1)
                scaling.add(asyncio.create_task(service.scale_to(number)))
            elif fault == "raise":
                with suppress(ActorError, ServiceError):
                    await service.complain.route()
            elif ready:
                victim = rng.choice(ready)
                with suppress(ProcessLookupError):
                    os.kill(victim.pids[0], FAULTS[fault])
                    clocks.add(asyncio.create_task(time_recovery(victim.name, fault, time.monotonic())))

    async def time_recovery(name: str, fault: str, began: float) -> None:
        while name not in {restart.died for restart in restarts}:
            await asyncio.sleep(0.01)
        back[fault].append(time.monotonic() - began)

    callers = [await spawn(f"caller_{number}", Caller) for number in range(2)]
    share = math.ceil(requests / 3)
    numbers = [list(range(start, start + share)) for start in range(0, 3 * share, share)]
    striking = asyncio.create_task(strike())
    sends = [caller.actor.send.call_one(service.name, mine) for caller, mine in zip(callers, numbers[1:], strict=True)]
    parts = await asyncio.gather(send(service, numbers[0]), *(sent.as_asyncio() for sent in sends))
    striking.cancel()
    await asyncio.wait({*clocks, *scaling}, timeout=20)
    for caller in callers:
        await caller.stop()
    outcomes = [outcome for part, _ in parts for outcome in part]
    done = Counter(int(line) for file in journal.iterdir() for line in file.read_text().split())
    answered = sum(outcome == number for number, outcome in enumerate(outcomes))
    failed = [outcome for outcome in outcomes if isinstance(outcome, ReplicaFailed)]
    others = [repr(o)[:120] for n, o in enumerate(outcomes) if o != n and not isinstance(o, ReplicaFailed)]
    not_done = sum(
        outcome == number and number % 2 == 0 and not done[number] for number, outcome in enumerate(outcomes)
    )
    rows = [
        ["requests of three processes", str(len(outcomes))],
        ["answered", str(answered)],
        ["failed, the error naming replica and cause", str(len(failed))],
        ["anything else", ", ".join([str(len(others)), *others[:3]])],
        ["answered but not done", str(not_done)],
        ["not idempotent and done twice", str(sum(count > 1 for count in done.values()))],
        [
            "later requests that overtook one in a queue, at worst",
            f"{max(worst for _, worst in parts)} ({slots} slots)",
        ],
        ["idempotent ones sent again (by this process)", str(service.router.counts["retries"])],
        ["faults", ", ".join(f"{count} × {fault}" for fault, count in sorted(faults.items()))],
        ["scalings that failed", str(sum(bool(task.done() and task.exception()) for task in scaling))],
    ]
    for fault, seconds in back.items():
        if seconds:
            rows.append([f"replaced after {fault}, s", f"{median(seconds):.1f} (worst {max(seconds):.1f})"])
    return Report("Three calling processes, a fault every second", ["", "count"], rows)


async def burst(journal: str) -> Report:
    options = ServiceOptions(min_replicas=1, max_replicas=4, max_in_flight=4, wait_timeout=120)
    async with Service("scaled", replicas_of(Worker, journal), options) as service:

        async def load(callers: int, each: int) -> tuple[float, int]:
            peak = 0

            async def caller() -> None:
                nonlocal peak
                for _ in range(each):
                    await service.look_up.route(0, 0.05)
                    peak = max(peak, len(service.replicas))

            began = time.monotonic()
            await asyncio.gather(*(caller() for _ in range(callers)))
            return callers * each / (time.monotonic() - began), peak

        calm, calm_peak = await load(4, 50)
        heavy, heavy_peak = await load(40, 100)
        began = time.monotonic()
        while len(service.replicas) > 1 and time.monotonic() - began < 60:
            await asyncio.sleep(0.05)
        rows = [
            ["4 callers", f"{calm:.0f}", str(calm_peak), ""],
            ["40 callers", f"{heavy:.0f}", str(heavy_peak), ""],
            ["afterwards", "", str(len(service.replicas)), f"{time.monotonic() - began:.1f}"],
        ]
        errors = f"{service.router.counts['failed']} errors among {service.router.counts['requests']} requests."
    return Report(
        "A burst of ten times the load", ["load", "requests/s", "replicas", "s until scaled back"], rows, [errors]
    )


async def fairness(service: Service) -> Report:
    async def deviation() -> str:
        homes = Counter([await service.who.route() for _ in range(1000)])
        fair = 1000 / len(service.replicas)
        return f"{max(abs(homes[replica.pid] - fair) for replica in service.replicas) / fair:.1%}"

    rows = [["to begin with", await deviation()]]
    os.kill(service.replicas[0].pids[0], signal.SIGKILL)
    while service.replica_set.restarts < 1 or len(service.router.ready) < len(service.replicas):
        await asyncio.sleep(0.05)
    rows.append(["after a replica was killed and replaced", await deviation()])
    await service.scale_to(len(service.replicas) + 1)
    rows.append(["after one was added", await deviation()])
    return Report("Fairness over 1,000 requests", ["when", "largest deviation from an equal share"], rows)


async def measure(options: Options) -> list[Report]:
    service_options = ServiceOptions(replicas=options.replicas, idempotent=("look_up", "who"), start_timeout=60)
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        start = replicas_of(Worker, folder)
        async with Service("calls", start, service_options) as service:
            reports.append(await cost_of_a_call(service, options.calls))
            reports.append(await throughput(service, options.calls, options.callers, options.repeats))
        restarts: list[Restart] = []
        few_slots = replace(service_options, max_in_flight=6, wait_timeout=120)
        async with Service("faulty", start, few_slots, restarts.append) as service:
            await register_service(service)
            reports.append(await under_faults(service, restarts, Path(folder), options.requests))
        reports.append(await burst(folder))
        async with Service("fair", start, replace(service_options, replicas=3)) as service:
            reports.append(await fairness(service))
    return reports


def main(options: Options) -> None:
    reports = asyncio.run(measure(options))
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/service.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
