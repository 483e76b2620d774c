"""Measure how fast weights travel through every transport, and check that they arrive whole.

    ladder      one reader, one version at a time: bytes per second of a verified read into the staging buffer, against memcpy here.
                ``rdma`` is measured twice: with ``runtime.py``'s settings for Monarch's TCP fallback, and, in a process of its own, with Monarch's.
    swap        the copy after a read: from the staging buffer into the model, between two decode steps
    fan-out     1, 2 and 4 readers at once, each in a process of its own
    storm       pulls while a writer publishes as fast as it can: each pull is checked for mixed versions and for order

The writer is always a process of its own. Where there is RDMA hardware, ``rdma`` uses it and the
tuning changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch
import tyro
from log import Report, append_report, print_report
from torch import Tensor, nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.services import runtime
from zorplex_rl.services.replica import spawn
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.training.transports import READERS, SLOTS, Publisher, Subscriber, WeightSource, subscribe

ASKED = (
    "How many bytes per second does each transport carry, compared with a memcpy on this machine? Do weights arrive whole, and in order, "
    "while the writer publishes as fast as it can?"
)
EXPECTED = (
    "``shm`` at least 50 % of memcpy at 256 MB. Tuned ``rdma`` over TCP at least 3 times Monarch's defaults and at least 4 times ``message``. "
    "No torn and no backward version. No expectation for the fan-out."
)
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    megabytes: tuple[int, ...] = (4, 64, 256)
    """Sizes of the model."""
    repeats: int = 7
    """Reads of each size through each transport."""
    pulls: int = 10_000
    """Pulls in the storm, through each transport."""
    storm_megabytes: int = 1
    """Size of the model in the storm."""
    device: str = "cpu"
    """Where the writer's and the readers' models are: cpu, or cuda."""
    storm_slots: int = 32
    """Slots of the ring in the storm: a read must end before the writer comes back to its slot."""
    as_monarch_comes: bool = False
    """Only print, as JSON, the seconds of ``rdma`` reads with Monarch's own settings. The benchmark
    starts itself with this flag."""
    log: bool = True
    """Append the result to LOG.md."""

    @property
    def transports(self) -> list[str]:
        """All but those that are not there: tcp is served on a worker's host only (``hosts.py``),
        and a GPU's weights are not in shared memory."""
        return [name for name in READERS if name != "shm" or self.device == "cpu"]


def make_model(megabytes: int, device: str) -> nn.Module:
    """Return sixteen layers of ``megabytes`` MB together, on ``device``."""
    return nn.ParameterList(torch.zeros(megabytes * MB // 64, device=device) for _ in range(16))


class Writer(Actor):
    """Publish a model in which every number is the version."""

    def __init__(self, megabytes: int, device: str, slots: int = SLOTS) -> None:
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


class ReaderActor(Actor):
    """Read from a process of its own."""

    def __init__(self, megabytes: int, device: str) -> None:
        torch.set_num_threads(1)
        self._model = make_model(megabytes, device)

    @concurrent_endpoint
    async def subscribe(self, source: WeightSource, transport: str) -> None:
        self._subscriber = await subscribe(source, transport, self._model)

    @concurrent_endpoint
    async def fetch(self) -> float:
        """Return the seconds of a read."""
        began = time.perf_counter()
        await self._subscriber.fetch()
        return time.perf_counter() - began


async def connect(writer: Actor, transport: str, model: nn.Module) -> Subscriber:
    source = await writer.source.call_one()
    return await subscribe(replace(source, owner=writer), transport, model)


async def time_reads(megabytes: int, transport: str, options: Options) -> tuple[list[float], list[float]]:
    """Return the seconds of reads and of swaps."""
    replica = await spawn("writer", Writer, megabytes, options.device)
    reads, swaps = [], []
    try:
        subscriber = await connect(replica.actor, transport, make_model(megabytes, options.device))
        for repeat in range(-1, options.repeats):
            await replica.actor.publish.call_one()
            began = time.perf_counter()
            await subscriber.fetch()
            fetched = time.perf_counter()
            subscriber.swap()
            if repeat >= 0:
                reads.append(fetched - began)
                swaps.append(time.perf_counter() - fetched)
    finally:
        await replica.stop()
    return reads, swaps


def time_memcpy(megabytes: int, repeats: int) -> list[float]:
    source, target = torch.ones(megabytes * MB, dtype=torch.uint8), torch.zeros(megabytes * MB, dtype=torch.uint8)
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def time_as_monarch_comes(options: Options) -> dict[int, list[float]]:
    """Return the seconds of ``rdma`` reads in a process with Monarch's own settings."""
    sizes = [str(size) for size in options.megabytes]
    flags = ["--as-monarch-comes", "--megabytes", *sizes, "--repeats", str(options.repeats), "--device", options.device]
    done = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, check=True)
    return {int(size): seconds for size, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


async def ladder(options: Options) -> Report:
    rows = []
    untuned = time_as_monarch_comes(options)
    for megabytes in options.megabytes:
        measured = {"memcpy": time_memcpy(megabytes, options.repeats)}
        for transport in options.transports:
            measured[transport], swaps = await time_reads(megabytes, transport, options)
        measured["rdma, as Monarch comes"] = untuned[megabytes]
        measured["swap"] = swaps
        rate = {name: megabytes / 1000 / median(seconds) for name, seconds in measured.items()}
        for name, seconds in measured.items():
            ratios = (rate[name] / rate[other] for other in ("memcpy", "message", "rdma, as Monarch comes"))
            ratios = [f"{ratio:.2f}" for ratio in ratios]
            rows.append([f"{megabytes} MB, {name}", f"{1e3 * median(seconds):.2f}", f"{rate[name]:.2f}", *ratios])
    columns = ["one reader", "median ms", "GB/s", "× memcpy", "× message", "× untuned rdma"]
    return Report("The ladder", columns, rows)


async def fan_out(megabytes: int, options: Options) -> Report:
    rows = []
    for transport in options.transports:
        for count in (1, 2, 4):
            writer = await spawn("writer", Writer, megabytes, options.device)
            readers = [
                await spawn(f"reader_{number}", ReaderActor, megabytes, options.device) for number in range(count)
            ]
            try:
                source = replace(await writer.actor.source.call_one(), owner=writer.actor)
                await asyncio.gather(*(r.actor.subscribe.call_one(source, transport) for r in readers))
                seconds = []
                for _ in range(options.repeats + 1):
                    await writer.actor.publish.call_one()
                    began = time.perf_counter()
                    await asyncio.gather(*(reader.actor.fetch.call_one() for reader in readers))
                    seconds.append(time.perf_counter() - began)
            finally:
                await asyncio.gather(*(replica.stop() for replica in (writer, *readers)))
            took = median(seconds[1:])
            rows.append([transport, str(count), f"{1e3 * took:.1f}", f"{count * megabytes / 1000 / took:.2f}"])
    return Report(f"Fan-out, {megabytes} MB", ["transport", "readers", "ms until all have it", "GB/s together"], rows)


async def storm(options: Options) -> Report:
    rows = []
    for transport in options.transports:
        writer = await spawn("writer", Writer, options.storm_megabytes, options.device, options.storm_slots)
        torn = backwards = failed = last = 0
        versions = set()
        try:
            model = make_model(options.storm_megabytes, options.device)
            subscriber = await connect(writer.actor, transport, model)
            await writer.actor.publish.call_one()
            await writer.actor.publish_without_pause.call_one()
            began = time.perf_counter()
            for _ in range(options.pulls):
                try:
                    version = await subscriber.pull()
                except WeightPullError:
                    failed += 1
                    continue
                torn += not all(bool((parameter == float(version)).all()) for parameter in model)
                backwards += version < last
                last = version
                versions.add(version)
            took = time.perf_counter() - began
            published = await writer.actor.rest.call_one()
        finally:
            await writer.stop()
        counts = (torn, backwards, failed, len(versions), published)
        rows.append([transport, str(options.pulls), *map(str, counts), f"{1e3 * took / options.pulls:.2f}"])
    columns = ["transport", "pulls", "torn", "backwards", "failed", "versions seen", "published", "ms a pull"]
    return Report(f"Storm, {options.storm_megabytes} MB, a writer that never rests", columns, rows)


async def measure(options: Options) -> list[Report]:
    torch.set_num_threads(1)
    return [await ladder(options), await fan_out(64, options), await storm(options)]


async def measure_as_monarch_comes(options: Options) -> dict[int, list[float]]:
    runtime.monarch.configure = lambda **settings: None
    return {size: (await time_reads(size, "rdma", options))[0] for size in options.megabytes}


def main(options: Options) -> None:
    if options.as_monarch_comes:
        print(json.dumps(asyncio.run(measure_as_monarch_comes(options))))
        return
    reports = asyncio.run(measure(options))
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name not in ("log", "as_monarch_comes")}
        append_report("benchmarks/weight_sync.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
