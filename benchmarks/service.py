"""What does a call through a service cost, and what does the service guarantee while its replicas die?

    a call        ``service.METHOD.route`` against Monarch's bare ``call_one`` on the same replicas, one caller
    throughput    the same with many callers at once
    faults        every second a replica is killed, stopped or made to raise, or the service is scaled, while this process and
                  two others send requests. Replicas write down which requests they answer, so a lost or doubled one is seen
    burst         ten times the load on a service that scales itself

Time is what a caller sees, from the call to its answer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median

import tyro
from table import describe_machine, print_table

from zorplex_rl.services.registry import get_service, register_service
from zorplex_rl.services.replica import ReplicaFailed, ServiceError, ServiceOptions, replicas_of, spawn
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.runtime import Actor, ActorError, concurrent_endpoint
from zorplex_rl.services.service import Service, ServiceEndpoints

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
REPLICAS = 4
AT_ONCE = 64
"""Callers of the second part."""
CALLERS = 3
"""Processes that send requests under faults."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    calls: int = 2000
    """Calls of each kind: of one caller, then as many of 64 in each of five turns."""
    requests: int = 9_999
    """Requests under faults, of three calling processes together."""


class Worker(Actor):
    """Answer at once or after a while, and write down which requests were carried out."""

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


async def cost_of_a_call(service: Service, calls: int) -> None:
    # Bare calls take turns among the replicas too: a process that has slept answers later.
    actors = cycle([replica.actor for replica in service.replicas])
    seconds: dict[str, list[float]] = {"bare call_one": [], "route": [], "route in a session": []}
    async with service.session() as session:
        callers = (lambda: next(actors).who.call_one(), service.who.route, session.who.route)
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
    print_table(f"A call, one caller, {calls} each, in turns", ["call", "median ms", "p99 ms", "÷ bare"], rows)


async def throughput(service: Service, options: Options) -> None:
    actors = [replica.actor for replica in service.replicas]
    each = options.calls // AT_ONCE

    async def bare(caller: int) -> None:
        for call in range(each):
            await actors[(caller + call) % len(actors)].who.call_one()

    async def routed(caller: int) -> None:
        for _ in range(each):
            await service.who.route()

    rates: dict[str, list[float]] = {"bare call_one": [], "route": []}
    for repeat in range(-1, 5):
        for name, caller in zip(rates, (bare, routed), strict=True):
            began = time.perf_counter()
            await asyncio.gather(*map(caller, range(AT_ONCE)))
            if repeat >= 0:
                rates[name].append(each * AT_ONCE / (time.perf_counter() - began))
    shares = [routed / bare for bare, routed in zip(*rates.values(), strict=True)]
    ratios = ["1.00", f"{median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})"]
    rows = [[name, f"{median(rate):.0f}", ratio] for (name, rate), ratio in zip(rates.items(), ratios, strict=True)]
    print_table(f"Throughput, {AT_ONCE} callers, {len(actors)} replicas", ["call", "calls/s", "× bare"], rows)


class Caller(Actor):
    """Send requests from another process."""

    @concurrent_endpoint
    async def send(self, name: str, numbers: list[int]) -> list[object]:
        return await send(await get_service(name), numbers)


async def send(service: ServiceEndpoints, numbers: list[int]) -> list[object]:
    """Send a request for each number, 32 at a time: its answer is the number. Returns the answers or errors."""
    rng, gate = random.Random(numbers[0]), asyncio.Semaphore(32)

    async def request(number: int) -> int:
        async with gate:
            # Looking up may be repeated, doing may not.
            return await (service.look_up if number % 2 else service.do).route(number, 0.5 * rng.random())

    return await asyncio.gather(*map(request, numbers), return_exceptions=True)


async def under_faults(service: Service, restarts: list[Restart], journal: Path, requests: int) -> None:
    rng, faults = random.Random(0), Counter[str]()
    back: dict[str, list[float]] = {name: [] for name in FAULTS}
    running: set[asyncio.Task[None]] = set()

    async def strike() -> None:
        while True:
            await asyncio.sleep(1.0)
            fault = rng.choice([*FAULTS, "raise", "scale"])
            ready = [replica for replica in service.router.ready if replica.pid]
            faults[fault] += 1
            if fault == "scale":
                running.add(asyncio.create_task(service.scale_to(rng.randint(2, REPLICAS + 2))))
            elif fault == "raise":
                with suppress(ActorError, ServiceError):
                    await service.complain.route()
            elif ready:
                victim = rng.choice(ready)
                os.kill(victim.pid, FAULTS[fault])
                running.add(asyncio.create_task(time_recovery(victim.name, fault, time.monotonic())))

    async def time_recovery(name: str, fault: str, began: float) -> None:
        while name not in {restart.died for restart in restarts}:
            await asyncio.sleep(0.01)
        back[fault].append(time.monotonic() - began)

    others = [await spawn(f"caller_{number}", Caller) for number in range(1, CALLERS)]
    share = requests // CALLERS
    numbers = [list(range(start, start + share)) for start in range(0, CALLERS * share, share)]
    striking = asyncio.create_task(strike())
    sends = [caller.actor.send.call_one(service.name, mine) for caller, mine in zip(others, numbers[1:], strict=True)]
    parts = await asyncio.gather(send(service, numbers[0]), *(sent.as_asyncio() for sent in sends))
    striking.cancel()
    await asyncio.wait(running, timeout=20)
    for caller in others:
        await caller.stop()
    outcomes = list(enumerate(outcome for part in parts for outcome in part))
    done = Counter(int(line) for file in journal.iterdir() for line in file.read_text().split())
    rows = {
        "requests of three processes": len(outcomes),
        "answered": sum(outcome == number for number, outcome in outcomes),
        "failed, the error naming replica and cause": sum(isinstance(found, ReplicaFailed) for _, found in outcomes),
        "anything else": sum(not (found == n or isinstance(found, ReplicaFailed)) for n, found in outcomes),
        "answered but not done": sum(found == n and n % 2 == 0 and not done[n] for n, found in outcomes),
        "not idempotent and done twice": sum(count > 1 for count in done.values()),
        "faults": ", ".join(f"{count} × {fault}" for fault, count in sorted(faults.items())),
    }
    for fault, seconds in back.items():
        rows[f"replaced after {fault}, s"] = f"{median(seconds):.1f} (worst {max(seconds):.1f})" if seconds else "–"
    cells = [[name, str(value)] for name, value in rows.items()]
    print_table("Three calling processes, a fault every second", ["", "count"], cells)


async def burst(journal: str) -> None:
    options = ServiceOptions(min_replicas=1, max_replicas=4, max_in_flight=4, wait_timeout=120)
    async with Service("scaled", replicas_of(Worker, journal), options) as service:
        rows = []
        for callers, each in ((4, 50), (40, 100)):
            numbers = []

            async def caller(each: int = each, numbers: list[int] = numbers) -> None:
                for _ in range(each):
                    await service.look_up.route(0, 0.05)
                    numbers.append(len(service.replicas))

            began = time.monotonic()
            await asyncio.gather(*(caller() for _ in range(callers)))
            rate = callers * each / (time.monotonic() - began)
            rows.append([f"{callers} callers", f"{rate:.0f}", str(max(numbers)), ""])
        began = time.monotonic()
        while len(service.replicas) > 1 and time.monotonic() - began < 60:
            await asyncio.sleep(0.05)
        rows.append(["afterwards", "", str(len(service.replicas)), f"{time.monotonic() - began:.1f}"])
        counts = service.router.counts
        errors = f"{counts['raised'] + counts['failed']} errors among {counts['requests']} requests."
    columns = ["load", "requests/s", "replicas", "s until scaled back"]
    print_table("A burst of ten times the load", columns, rows, errors)


async def measure(options: Options) -> None:
    print(describe_machine())
    calm = ServiceOptions(replicas=REPLICAS, idempotent=("look_up", "who"), start_timeout=60)
    with tempfile.TemporaryDirectory() as folder:
        start = replicas_of(Worker, folder)
        async with Service("calls", start, calm) as service:
            await cost_of_a_call(service, options.calls)
            await throughput(service, options)
        restarts: list[Restart] = []
        few_slots = replace(calm, max_in_flight=6, wait_timeout=120)
        async with Service("faulty", start, few_slots, restarts.append) as service:
            await register_service(service)
            await under_faults(service, restarts, Path(folder), options.requests)
        await burst(folder)


if __name__ == "__main__":
    asyncio.run(measure(tyro.cli(Options, description=__doc__)))
