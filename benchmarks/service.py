"""What does a call through a service cost, and what does the service guarantee while its replicas die?

    a call        ``service.METHOD.route`` against Monarch's bare ``call_one`` on the same replicas, one caller
    throughput    the same with many callers at once
    faults        again and again a replica is killed, stopped or made to raise, or the service is scaled, while this process
                  and two others send requests. Replicas write down which they answer, so a lost or doubled one is seen
    burst         ten times the load on a service that scales itself

Time is what a caller sees, from the call to its answer.

    python benchmarks/service.py --storm 60             the faults alone, for an hour, in two processes at once, each of which
                                                        controls a service of the same name; each storm is a line
    python benchmarks/service.py --storm 30 --first 17  go on with storm 17
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median

import psutil
import tyro
from table import describe_machine, print_table

from zorplex_rl.services.options import ReplicaFailed, ServiceError, ServiceOptions
from zorplex_rl.services.registry import get_service, register_service
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.runtime import Actor, ActorError, concurrent_endpoint
from zorplex_rl.services.service import Service, ServiceEndpoints
from zorplex_rl.services.spawn import replicas_of, spawn

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
ANSWERED, FAILED = "answered", "failed, the error naming replica and cause"
WRONG = (
    "anything else",
    "answered but not done",
    "done twice, not idempotent",
    "scaling failed",
    "processes left",
)
"""Of these there should be none."""
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
    faults: int = 200
    """Faults meanwhile, spread evenly over the requests. About a half of them kill or stop a replica."""
    storm: float = 0.0
    """Minutes for which storms follow each other; then nothing else is done."""
    first: int = 0
    """Number of the first storm, from which its faults are drawn."""
    controllers: int = 2
    """Processes that have their storms side by side."""


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
        [
            name,
            f"{1e3 * median(s):.3f}",
            f"{1e3 * sorted(s)[int(0.99 * len(s))]:.2f}",
            f"{median(s) / bare:.2f}",
        ]
        for name, s in seconds.items()
    ]
    print_table(
        f"A call, one caller, {calls} each, in turns",
        ["call", "median ms", "p99 ms", "÷ bare"],
        rows,
    )


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
    rows = [
        [name, f"{median(rate):.0f}", ratio]
        for (name, rate), ratio in zip(rates.items(), ratios, strict=True)
    ]
    print_table(
        f"Throughput, {AT_ONCE} callers, {len(actors)} replicas",
        ["call", "calls/s", "× bare"],
        rows,
    )


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
            return await (service.look_up if number % 2 else service.do).route(
                number, 0.5 * rng.random()
            )

    return await asyncio.gather(*map(request, numbers), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Books:
    """What became of requests and replicas: how often, and the seconds until a replica was replaced, for
    each fault."""

    counts: Counter[str] = field(default_factory=Counter)
    back: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FAULTS})

    def add(self, other: Books) -> None:
        self.counts.update(other.counts)
        for name, seconds in other.back.items():
            self.back[name] += seconds

    @property
    def balance(self) -> bool:
        return not any(self.counts[name] for name in WRONG)

    def __str__(self) -> str:
        struck = sum(map(len, self.back.values()))
        told = f"{self.counts[ANSWERED]} answered, {self.counts[FAILED]} failed with their cause, {struck} replicas replaced"
        return (
            told
            if self.balance
            else f"{told}, WRONG: { ({name: self.counts[name] for name in WRONG}) }"
        )

    def rows(self) -> list[list[str]]:
        rows = [[name, str(count)] for name, count in self.counts.items()]
        for fault, seconds in self.back.items():
            worst = f"{median(seconds):.1f} (worst {max(seconds):.1f})" if seconds else "–"
            rows.append([f"replaced after {fault}, s", worst])
        return rows


async def under_faults(options: Options, seed: int = 0) -> Books:
    """Strike a service of its own while requests are sent to it. Returns what became of them."""
    rng, books, restarts = random.Random(seed), Books(), list[Restart]()
    faults: Counter[str] = Counter()
    struck: set[str] = set()
    share = options.requests // CALLERS
    running: set[asyncio.Task[None]] = set()

    async def strike(service: Service) -> None:
        fault = rng.choice([*FAULTS, "raise", "scale"])
        if fault == "scale":
            running.add(asyncio.create_task(service.scale_to(rng.randint(2, REPLICAS + 2))))
        elif fault == "raise":
            with suppress(ActorError, ServiceError):
                await service.complain.route()
        else:
            while not (
                unharmed := [
                    replica for replica in service.router.ready if replica.name not in struck
                ]
            ):
                await asyncio.sleep(0.01)
            victim = rng.choice(unharmed)
            struck.add(victim.name)
            with suppress(ProcessLookupError):
                os.kill(victim.pid, FAULTS[fault])
            running.add(asyncio.create_task(time_recovery(victim.name, fault, time.monotonic())))
        faults[f"fault: {fault}"] += 1

    async def strikes(service: Service) -> None:
        counts = service.router.counts
        for number in range(options.faults):
            # Of this process's share of the requests.
            while counts["answered"] + counts["failed"] < share * number / options.faults:
                await asyncio.sleep(0.01)
            await strike(service)

    async def time_recovery(name: str, fault: str, began: float) -> None:
        while name not in {restart.died for restart in restarts}:
            await asyncio.sleep(0.01)
        books.back[fault].append(time.monotonic() - began)

    few_slots = ServiceOptions(
        REPLICAS, idempotent=("look_up",), max_in_flight=6, wait_timeout=120, start_timeout=60
    )
    with tempfile.TemporaryDirectory() as folder:
        async with Service("faulty", replicas_of(Worker, folder), few_slots) as service:
            service.on_restart = restarts.append
            await register_service(service)
            others = [await spawn(f"caller_{number}", Caller) for number in range(1, CALLERS)]
            own, *rest = [
                list(range(start, start + share)) for start in range(0, CALLERS * share, share)
            ]
            sends = [
                caller.actor.send.call_one(service.name, theirs)
                for caller, theirs in zip(others, rest, strict=True)
            ]
            striking = asyncio.create_task(strikes(service))
            parts = await asyncio.gather(send(service, own), *(sent.as_asyncio() for sent in sends))
            striking.cancel()
            # A replica that was scaled away is not replaced.
            ended, waiting = await asyncio.wait({striking, *running}, timeout=20)
            for task in waiting:
                task.cancel()
            for caller in others:
                await caller.stop()
        journals = {int(file.name): file.read_text().split() for file in Path(folder).iterdir()}
    outcomes = list(enumerate(outcome for part in parts for outcome in part))
    done = Counter(int(line) for lines in journals.values() for line in lines)
    books.counts["requests of three processes"] = len(outcomes)
    books.counts[ANSWERED] = sum(outcome == number for number, outcome in outcomes)
    books.counts[FAILED] = sum(isinstance(outcome, ReplicaFailed) for _, outcome in outcomes)
    wrong = (
        len(outcomes) - books.counts[ANSWERED] - books.counts[FAILED],
        sum(
            outcome == number and number % 2 == 0 and not done[number]
            for number, outcome in outcomes
        ),
        sum(count > 1 for count in done.values()),
        sum(not task.cancelled() and task.exception() is not None for task in ended),
        len(await left_of(set(journals))),
    )
    books.counts.update(dict(zip(WRONG, wrong, strict=True)))
    books.counts.update(dict(sorted(faults.items())))
    return books


async def left_of(workers: set[int]) -> set[int]:
    """Return which of these processes are there after ten seconds."""
    for _ in range(100):
        if not (
            left := workers & {child.pid for child in psutil.Process().children(recursive=True)}
        ):
            break
        await asyncio.sleep(0.1)
    return left


async def storms(options: Options) -> bool:
    """Have one storm after the other. Returns whether the books of all processes balance."""
    # Every death here is meant.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)
    others = []
    for number in range(1, options.controllers):
        # Of an option that is given twice the last one counts.
        flags = ["--controllers", "1", "--first", str(options.first + 1_000_000 * number)]
        others.append(await asyncio.create_subprocess_exec(sys.executable, *sys.argv, *flags))
    total, number, began = Books(), options.first, time.monotonic()
    while number == options.first or time.monotonic() - began < 60 * options.storm:
        books = await under_faults(options, number)
        total.add(books)
        print(
            f"storm {number}, until {(time.monotonic() - began) / 60:.1f} min: {books}", flush=True
        )
        number += 1
    codes = [await other.wait() for other in others]
    print_table(f"Storms {options.first} to {number - 1}", ["", "count"], total.rows())
    print(f"\nstorms {options.first} to {number - 1}: {total}", flush=True)
    return total.balance and not any(codes)


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
        rows.append(
            ["afterwards", "", str(len(service.replicas)), f"{time.monotonic() - began:.1f}"]
        )
        counts = service.router.counts
        errors = (
            f"{counts['raised'] + counts['failed']} errors among {counts['requests']} requests."
        )
    columns = ["load", "requests/s", "replicas", "s until scaled back"]
    print_table("A burst of ten times the load", columns, rows, errors)


async def measure(options: Options) -> bool:
    """Measure. Returns whether the books of all requests under faults balance."""
    print(describe_machine(), flush=True)
    if options.storm:
        return await storms(options)
    calm = ServiceOptions(replicas=REPLICAS, idempotent=("look_up", "who"), start_timeout=60)
    with tempfile.TemporaryDirectory() as folder:
        start = replicas_of(Worker, folder)
        async with Service("calls", start, calm) as service:
            await cost_of_a_call(service, options.calls)
            await throughput(service, options)
        books = await under_faults(options)
        print_table("Three calling processes under faults", ["", "count"], books.rows())
        await burst(folder)
    return books.balance


if __name__ == "__main__":
    sys.exit(not asyncio.run(measure(tyro.cli(Options, description=__doc__))))
