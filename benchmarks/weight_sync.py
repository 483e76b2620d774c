"""How fast do weights travel through each transport, and do they arrive whole?

    ladder      one reader, one version at a time: bytes per second of a verified read into the staging buffer, against memcpy here.
                ``rdma`` is measured twice: with the package's settings for Monarch's TCP fallback, and, in another process, with Monarch's
    swap        the copy after a read: from the staging buffer into the model, between two decode steps
    storm       pulls while a writer publishes as fast as it can: each is checked for mixed versions and for order

The writer is always another process. Where there is RDMA hardware, ``rdma`` uses it, and the
settings change nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median

import torch
import tyro
from table import describe_machine, print_table
from torch import Tensor, nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.services import runtime
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training.transports import SLOTS, Publisher, Subscriber, WeightSource, subscribe

MB = 1_000_000
TRANSPORTS = ("shm", "rdma", "message")
STORM_MB = 1
STORM_SLOTS = 32
"""A read must end before the writer comes back to its slot."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    megabytes: tuple[int, ...] = (4, 64, 256)
    """Sizes of the model."""
    repeats: int = 7
    """Reads of each size through each transport."""
    pulls: int = 10_000
    """Pulls in the storm, through each transport."""
    device: str = "cpu"
    """Where the writer's and the readers' models are: cpu, or cuda."""
    as_monarch_comes: bool = False
    """Only print, as JSON, the seconds of ``rdma`` reads with Monarch's own settings. The benchmark
    starts itself with this flag."""

    @property
    def transports(self) -> list[str]:
        """All, but that a GPU's weights are not in shared memory."""
        return [name for name in TRANSPORTS if name != "shm" or self.device == "cpu"]


def make_model(megabytes: int, device: str = "cpu") -> nn.Module:
    """Return sixteen layers of ``megabytes`` MB together, on ``device``."""
    return nn.ParameterList(torch.zeros(megabytes * MB // 64, device=device) for _ in range(16))


class Writer(Actor):
    """Publish a model in which every number is the version."""

    def __init__(self, megabytes: int, device: str = "cpu", slots: int = SLOTS) -> None:
        self.model, self.version = make_model(megabytes, device), 0
        self.publisher = Publisher(self.model, slots)
        self._stop = threading.Event()

    @concurrent_endpoint
    async def source(self) -> WeightSource:
        return self.publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> Tensor:
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int) -> Tensor:
        return self.publisher.read_slot(slot)

    @concurrent_endpoint
    async def publish(self) -> int:
        await asyncio.to_thread(self._publish)
        return self.version

    @concurrent_endpoint
    async def publish_without_pause(self) -> None:
        def write() -> None:
            while not self._stop.is_set():
                self._publish()

        threading.Thread(target=write, daemon=True).start()

    @concurrent_endpoint
    async def rest(self) -> int:
        self._stop.set()
        return self.version

    @torch.no_grad()
    def _publish(self) -> None:
        self.version += 1
        for parameter in self.model:
            parameter.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


async def connect(writer: Actor, transport: str, model: nn.Module) -> Subscriber:
    source = await writer.source.call_one()
    return await subscribe(replace(source, owner=writer), transport, model)


async def time_reads(megabytes: int, transport: str, options: Options) -> tuple[list[float], ...]:
    """Return the seconds of reads, of swaps and of publications, each with a call."""
    replica = await spawn("writer", Writer, megabytes, options.device)
    reads, swaps, publications = [], [], []
    try:
        subscriber = await connect(replica.actor, transport, make_model(megabytes, options.device))
        for _ in range(options.repeats + 1):
            called = time.perf_counter()
            await replica.actor.publish.call_one()
            began = time.perf_counter()
            publications.append(began - called)
            await subscriber.fetch()
            fetched = time.perf_counter()
            subscriber.swap()
            reads.append(fetched - began)
            swaps.append(time.perf_counter() - fetched)
    finally:
        await replica.stop()
    # The first warms up.
    return reads[1:], swaps[1:], publications[1:]


def time_memcpy(megabytes: int, repeats: int) -> list[float]:
    source, target = (
        torch.ones(megabytes * MB, dtype=torch.uint8),
        torch.zeros(megabytes * MB, dtype=torch.uint8),
    )
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def time_as_monarch_comes(options: Options) -> dict[int, list[float]]:
    """Return the seconds of ``rdma`` reads in a process with Monarch's own settings, by size."""
    sizes = [str(size) for size in options.megabytes]
    flags = [
        "--as-monarch-comes",
        "--megabytes",
        *sizes,
        "--repeats",
        str(options.repeats),
        "--device",
        options.device,
    ]
    done = subprocess.run(
        [sys.executable, __file__, *flags], capture_output=True, text=True, check=True
    )
    return {
        int(size): seconds for size, seconds in json.loads(done.stdout.splitlines()[-1]).items()
    }


async def ladder(options: Options) -> None:
    rows = []
    untuned = time_as_monarch_comes(options)
    for megabytes in options.megabytes:
        measured = {"memcpy": time_memcpy(megabytes, options.repeats)}
        for transport in options.transports:
            measured[transport], swaps, _ = await time_reads(megabytes, transport, options)
        measured["rdma, as Monarch comes"] = untuned[megabytes]
        measured["swap"] = swaps
        rate = {name: megabytes / 1000 / median(seconds) for name, seconds in measured.items()}
        for name, seconds in measured.items():
            ratios = (
                rate[name] / rate[other]
                for other in ("memcpy", "message", "rdma, as Monarch comes")
            )
            ratios = [f"{ratio:.2f}" for ratio in ratios]
            rows.append(
                [
                    f"{megabytes} MB, {name}",
                    f"{1e3 * median(seconds):.2f}",
                    f"{rate[name]:.2f}",
                    *ratios,
                ]
            )
    columns = ["one reader", "median ms", "GB/s", "× memcpy", "× message", "× untuned rdma"]
    print_table("The ladder", columns, rows)


async def storm(options: Options) -> None:
    rows = []
    for transport in options.transports:
        writer = await spawn("writer", Writer, STORM_MB, options.device, STORM_SLOTS)
        counts = Counter(torn=0, backwards=0, failed=0)
        versions = set[int]()
        last = 0
        try:
            model = make_model(STORM_MB, options.device)
            subscriber = await connect(writer.actor, transport, model)
            await writer.actor.publish.call_one()
            await writer.actor.publish_without_pause.call_one()
            began = time.perf_counter()
            for _ in range(options.pulls):
                try:
                    version = await subscriber.pull()
                except WeightPullError:
                    counts["failed"] += 1
                    continue
                counts["torn"] += not all(
                    bool((parameter == float(version)).all()) for parameter in model
                )
                counts["backwards"] += version < last
                last = version
                versions.add(version)
            took = time.perf_counter() - began
            published = await writer.actor.rest.call_one()
        finally:
            await writer.stop()
        numbers = (options.pulls, *counts.values(), len(versions), published)
        rows.append([transport, *map(str, numbers), f"{1e3 * took / options.pulls:.2f}"])
    columns = [
        "transport",
        "pulls",
        "torn",
        "backwards",
        "failed",
        "versions seen",
        "published",
        "ms a pull",
    ]
    print_table(f"Storm, {STORM_MB} MB, a writer that never rests", columns, rows)


async def measure(options: Options) -> None:
    torch.set_num_threads(1)
    await ladder(options)
    await storm(options)


async def measure_as_monarch_comes(options: Options) -> dict[int, list[float]]:
    runtime.monarch.configure = lambda **settings: None
    return {size: (await time_reads(size, "rdma", options))[0] for size in options.megabytes}


if __name__ == "__main__":
    asked = tyro.cli(Options, description=__doc__)
    if asked.as_monarch_comes:
        print(json.dumps(asyncio.run(measure_as_monarch_comes(asked))))
    else:
        print(describe_machine())
        asyncio.run(measure(asked))
