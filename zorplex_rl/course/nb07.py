"""Move weights in notebook 07: both ends, reads from a busy owner, each rung of the ladder.

a busy owner       Writer ──► disturbed_reads
the ladder         Writer, Puller ──► open_pair ──► move ──► climb
"""

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training.transports import Publisher, connect, subscribe

SMOLLM2 = 540
"""Megabytes of its weights in float32, in whole ``layers``."""


def layers(megabytes: int, per_layer: int = 4) -> nn.ParameterList:
    """Return a model of float32 layers, 4 MB each."""
    return nn.ParameterList(torch.zeros(250_000 * per_layer) for _ in range(megabytes // per_layer))


def broadcast_all(model: nn.Module) -> None:
    """Send every parameter from rank 0 to rank 1. Both sides call it."""
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, src=0)


def join_group(path: str, rank: int) -> None:
    """Join a gloo group of two."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )


class Side(Actor):
    """Holds a model, and may hold a larger one."""

    model: nn.Module

    @concurrent_endpoint
    async def grow(self, megabytes: int) -> None:
        self.model = layers(megabytes)

    @concurrent_endpoint
    async def join(self, path: str, rank: int) -> None:
        await asyncio.to_thread(join_group, path, rank)


class Writer(Side):
    """A trainer that only makes versions readable."""

    def __init__(self, make_model: Callable[..., nn.Module], *args: Any) -> None:
        torch.set_num_threads(1)
        self.model, self.version = make_model(*args), 0

    @concurrent_endpoint
    async def open_ring(self, slots: int = 3) -> Any:
        self.publisher = Publisher(self.model, slots)
        return self.publisher.source()

    @concurrent_endpoint
    async def publish(self) -> None:
        self.version += 1
        self.publisher.publish(self.model, self.version)

    @concurrent_endpoint
    async def ring_headers(self) -> Tensor:  # for messages only: the bytes come with the reply
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int) -> Tensor:
        return self.publisher.read_slot(slot)

    @concurrent_endpoint
    async def save(self, path: str) -> None:
        torch.save(self.model.state_dict(), path)

    @concurrent_endpoint
    async def broadcast(self) -> None:
        await asyncio.to_thread(broadcast_all, self.model)

    @concurrent_endpoint
    async def be_busy(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:  # in Python, without a pause
            pass

    @concurrent_endpoint
    async def worked(self) -> float:
        """Return the seconds for which the thread of its Python has computed."""
        return time.thread_time()

    @concurrent_endpoint
    async def process(self) -> int:
        return os.getpid()


class Puller(Side):
    """A generator that only pulls. Each way returns the seconds of transfer and of copy."""

    def __init__(self, make_model: Callable[..., nn.Module], *args: Any) -> None:
        torch.set_num_threads(1)
        self.model = make_model(*args)
        self.subscribers: dict[str, Any] = {}

    @concurrent_endpoint
    async def subscribe(self, source: Any, transport: str) -> None:
        self.subscribers[transport] = await subscribe(source, transport, self.model)

    @concurrent_endpoint
    async def pull(self, transport: str) -> tuple[float, float]:
        began = time.perf_counter()
        await self.subscribers[transport].fetch()
        fetched = time.perf_counter()
        self.subscribers[transport].swap()
        return fetched - began, time.perf_counter() - fetched

    @concurrent_endpoint
    async def load(self, path: str) -> tuple[float, float]:
        began = time.perf_counter()
        state = torch.load(path, weights_only=True)
        loaded = time.perf_counter()
        self.model.load_state_dict(state)
        return loaded - began, time.perf_counter() - loaded

    @concurrent_endpoint
    async def receive(self) -> float:
        began = time.perf_counter()
        await asyncio.to_thread(broadcast_all, self.model)
        return time.perf_counter() - began


@asynccontextmanager
async def processes(**wanted: tuple[Any, ...]) -> AsyncIterator[list[Any]]:
    """Start an actor for each name, in its own process, until the block ends."""
    started: list[Any] = []
    try:
        for name, (actor_class, *args) in wanted.items():
            started.append(await spawn(name, actor_class, *args))
        yield [replica.actor for replica in started]
    finally:
        await asyncio.gather(*(replica.stop() for replica in started))


async def disturbed_reads(
    megabytes: int, transports: dict[str, str], seconds: float, one_more: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """Return by transport the seconds of a read whose owner is free, busy, or stopped."""
    found: dict[str, dict[str, float]] = {}
    async with processes(writer=(Writer, layers, megabytes)) as (writer,):
        source = replace(await writer.open_ring.call_one(), owner=writer)
        await writer.publish.call_one()
        staging, pid = (
            torch.zeros(source.layout.size, dtype=torch.uint8),
            await writer.process.call_one(),
        )

        for name, transport in transports.items():
            reader = await connect(source, transport)

            async def timed(reader: Any = reader) -> float:
                began = time.perf_counter()
                await reader.read_slot(0, staging)
                return time.perf_counter() - began

            await reader.read_slot(0, staging)  # the first one meets memory that was never touched
            found[name] = {"free": await timed()}
            one_more()
            busy = asyncio.ensure_future(writer.be_busy.call_one(0.2 + seconds).as_asyncio())
            await asyncio.sleep(0.2)  # by then it is certainly busy
            found[name]["busy"] = await timed()
            one_more()
            await busy
            os.kill(pid, signal.SIGSTOP)
            waking = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
            waking.start()
            try:
                found[name]["stopped"] = await timed()
                one_more()
            finally:
                await asyncio.to_thread(waking.join)
    return found


@dataclass(frozen=True, slots=True)
class Moved:
    """Hold the seconds of one version's way from the trainer's model into the generator's."""

    publish: float
    """The trainer's own code."""
    fetch: float
    swap: float
    """The copy into the generator's model."""
    total: float
    """End to end. In a broadcast both sides work at the same time; elsewhere it is the sum."""
    still: float
    """Those in which the trainer cannot train: it publishes, or its Python answers a message."""


async def open_pair(
    stack: AsyncExitStack,
    settings: dict[str, Any],
    transports: Sequence[str],
    megabytes: int,
    group: str,
) -> tuple[Any, Any]:
    """Start a writer and a puller, in processes with these settings of Monarch's."""
    import monarch

    monarch.configure(**settings)
    writer, puller = await stack.enter_async_context(
        processes(writer=(Writer, layers, megabytes), puller=(Puller, layers, megabytes))
    )
    source = replace(await writer.open_ring.call_one(), owner=writer)
    for transport in transports:
        if transport == "broadcast":
            joined = (
                writer.join.call_one(group, 0).as_asyncio(),
                puller.join.call_one(group, 1).as_asyncio(),
            )
            await asyncio.gather(*joined)
        elif transport != "file":
            await puller.subscribe.call_one(source, transport)
    return writer, puller


async def move(writer: Any, puller: Any, transport: str, path: str, late: float = 0.0) -> Moved:
    """Make a version readable and move it; in a broadcast the puller comes ``late``."""

    async def timed(call: Awaitable[Any]) -> float:
        began = time.perf_counter()
        await call
        return time.perf_counter() - began

    if transport == "broadcast":
        sending = asyncio.ensure_future(timed(writer.broadcast.call_one().as_asyncio()))
        await asyncio.sleep(late)
        fetch, own = await puller.receive.call_one(), await sending
        return Moved(own, fetch, 0.0, max(own, fetch), own)
    before = await writer.worked.call_one()
    own = await timed(
        writer.save.call_one(path) if transport == "file" else writer.publish.call_one()
    )
    pulling = puller.load.call_one(path) if transport == "file" else puller.pull.call_one(transport)
    fetch, swap = await pulling
    still = max(own, await writer.worked.call_one() - before)
    return Moved(own, fetch, swap, own + fetch + swap, still)


async def climb(
    config: Any,
    rungs: Mapping[str, tuple[str, str]],
    settings_of: Mapping[str, dict[str, Any]],
    one_more: Callable[[], None],
) -> tuple[dict[str, list[Moved]], Moved, tuple[str, Moved]]:
    """Move by every rung, again and again. Returns what it took, a late broadcast, and a model of
    ``SMOLLM2`` megabytes by the quickest rung that every machine has."""
    import monarch

    moves: dict[str, list[Moved]] = {rung: [] for rung in rungs}
    pairs: dict[str, tuple[Any, Any]] = {}
    try:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, settings in settings_of.items():
                transports = [transport for used, transport in rungs.values() if used == name]
                pairs[name] = await open_pair(
                    stack, settings, transports, config.megabytes, str(folder / "group")
                )
            # In turns: whatever else this machine does meets all rungs alike.
            for rung in [*rungs] * (config.repeats + 1):
                name, transport = rungs[rung]
                moves[rung].append(await move(*pairs[name], transport, str(folder / "weights")))
                one_more()
            writer, puller = pairs["tuned"]
            late = await move(writer, puller, "broadcast", "", late=config.late_seconds)
            rung = "shared memory" if "shared memory" in rungs else "TCP"
            for side in (writer, puller):
                await side.grow.call_one(SMOLLM2)
            source = replace(await writer.open_ring.call_one(slots=2), owner=writer)
            await puller.subscribe.call_one(source, rungs[rung][1])
            for _ in range(3):  # The first ones meet memory that was never touched.
                whole = await move(writer, puller, rungs[rung][1], "")
    finally:
        monarch.configure(**settings_of["tuned"] | {"rdma_disable_ibverbs": False})
    return moves, late, (rung, whole)
