"""Carry published weights from the trainer's ring to a generator's model.

    trainer                                     generator
    Publisher.publish(model, version)           Subscriber.fetch()     reader ──► staging buffer, verified    while it samples
      └► WeightRing (K slots + headers)  ─────►   └► swap()            staging ──► model                      between two steps
                                                                       or ring ──► model, verified            over shm

    reader    how it reads headers and slots
    shm       the same memory, mapped by both: for processes that share memory, which is proven and not guessed
    rdma      one-sided reads through Monarch's RDMABuffer: over ibverbs where there is hardware, else over its TCP fallback
    message   the bytes in the reply to a call: the baseline that needs nothing
    auto      the first of these that works

All read one ring with one seqlock (``weights/ring.py``); the model changes by whole versions. A new
transport is a ``Reader`` in ``READERS``, in the order in which ``auto`` tries them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zorplex_rl.config import Config
from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.runtime import quiet_stderr
from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import Layout, Weights, check_shapes, gpu_of
from zorplex_rl.weights.ring import (
    NOTHING_PUBLISHED,
    SLOTS,
    Reader,
    WeightRing,
    complete_slots,
    read_rings,
    ring_views,
)
from zorplex_rl.weights.shared_memory import SharedHandle, open_shared

READ_TIMEOUT_SECONDS = 10  # for one request; a bulk read has more, ``read_seconds``
SLOWEST_BYTES_PER_SECOND = 50_000_000  # a gigabit network that two share


@dataclass(frozen=True, slots=True)
class WeightSource:
    """All that a reader needs, in some hundred bytes: of each transport a handle."""

    layout: Layout
    slots: int
    shared: SharedHandle | None
    rdma: tuple[Any, list[Any]] | None  # Monarch's buffers of the headers and of each slot
    owner: Any = None  # the actor that answers ``ring_headers`` and ``ring_slot``
    description: Any = None  # how the weights are sharded, if they are (``shard_transports.py``)


class Publisher:
    """Holds a ring in this process's memory, and handles for other processes to read it."""

    def __init__(self, weights: Weights, slots: int = SLOTS, config: Config | None = None) -> None:
        self.ring = WeightRing(weights, slots)
        self._source = offer(self.ring, config)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(model, version)

    def source(self) -> WeightSource:
        """Return what readers need."""
        return self._source

    def read_headers(self) -> Tensor:
        return self.ring.headers.clone()

    def read_slot(self, slot: int) -> Tensor:
        # A clone: a reply with a view would carry the whole ring.
        return self.ring.slots[slot].clone()


def offer(ring: WeightRing, config: Config | None = None) -> WeightSource:
    """Return what the readers of ``ring`` need, those of a run of ``config`` or any. Call once: its
    memory stays registered."""
    rdma = None
    if config is None or _needs_rdma(config, ring):
        from monarch.rdma import RDMABuffer

        _start_rdma()
        rdma = (
            RDMABuffer(ring.headers.view(-1).view(torch.uint8)),
            [RDMABuffer(slot) for slot in ring.slots],
        )
    return WeightSource(ring.layout, len(ring.slots), ring.shared, rdma)


def _needs_rdma(config: Config, ring: WeightRing) -> bool:
    """Return whether to start RDMA. It opens a socket, so not where all readers share memory."""
    if config.transport == "auto":
        return ring.shared is None or config.hosts.startswith(("attach", "job"))
    return config.transport == "rdma"


def _start_rdma() -> None:
    """Hide what Monarch's native code says, once, of RDMA hardware that it has not found."""
    from monarch.rdma import RDMABuffer

    with quiet_stderr():
        RDMABuffer(torch.zeros(8, dtype=torch.uint8))


def read_seconds(size: int) -> int:
    """Return how long a read of ``size`` bytes may take: a bit more than at the slowest rate."""
    return READ_TIMEOUT_SECONDS + size // SLOWEST_BYTES_PER_SECOND


class SharedReader:
    """Reads memory shared with the publisher, which does nothing, and may have ended."""

    transport = "shm"

    def __init__(self, source: WeightSource) -> None:
        if source.shared is None:
            raise WeightPullError(
                "the trainer shares no memory: its weights are on a GPU, or this is not Linux"
            )
        try:
            memory = open_shared(source.shared)
        except OSError as error:
            raise WeightPullError(f"the trainer's memory cannot be shared: {error}") from error
        self.layout = source.layout
        self._headers, self._slots = ring_views(memory, source.layout, source.slots)

    async def read_headers(self) -> Tensor:
        return self._headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        await asyncio.to_thread(staging.copy_, self._slots[slot][: len(staging)])

    def read_into(self, weights: Weights) -> int:
        """Copy the newest version into ``weights``, again if it was written over. Returns it."""
        while True:
            for header in complete_slots(self._headers)[-1:]:
                fence()
                self.layout.unpack(self._slots[header.slot], weights)
                fence()
                if header in complete_slots(self._headers):
                    return header.version


class RdmaReader:
    """Reads from one side: the publisher's Python never runs for it."""

    transport = "rdma"

    def __init__(self, source: WeightSource) -> None:
        if source.rdma is None:
            raise WeightPullError(
                "the trainer has not started RDMA: another transport is set, or shared memory works"
            )
        _start_rdma()
        self.layout = source.layout
        self._headers, self._slots = source.rdma
        self._read_into = torch.zeros(
            source.slots, 2, dtype=torch.int64
        )  # kept: Monarch registers each new one

    async def read_headers(self) -> Tensor:
        await self._read(self._headers, self._read_into.view(-1).view(torch.uint8))
        return self._read_into.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        await self._read(self._slots[slot], staging)

    async def _read(self, source: Any, target: Tensor) -> None:
        try:
            await source.read_into(target, timeout=read_seconds(target.nbytes))
        except Exception as error:
            raise WeightPullError(f"the trainer's weights could not be read: {error}") from error


class MessageReader:
    """Asks the publisher's actor, which replies with copies."""

    transport = "message"

    def __init__(self, source: WeightSource) -> None:
        if source.owner is None:
            raise WeightPullError(
                "the source names no actor that could be asked for weights; use another transport"
            )
        self.layout, self._owner = source.layout, source.owner

    async def read_headers(self) -> Tensor:
        return await answer_of(self._owner.ring_headers.call_one())

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        found = await answer_of(self._owner.ring_slot.call_one(slot), staging.nbytes)
        staging.numpy()[:] = (
            found.numpy()
        )  # torch would wake other threads to copy, which takes longer


async def answer_of(call: Any, size: int = 0) -> Any:
    """Return the publisher's answer to ``call``, of ``size`` bytes. Raises WeightPullError. Without
    a limit this would wait on: Monarch says nothing of a stopped, then killed process."""
    seconds = read_seconds(size)
    try:
        async with asyncio.timeout(seconds):
            return await call.as_asyncio()
    except Exception as error:
        why = str(error) or f"no answer within {seconds} s"
        raise WeightPullError(f"the trainer's weights could not be read: {why}") from error


READERS: dict[str, Callable[[WeightSource], Reader]] = {
    reader.transport: reader for reader in (SharedReader, RdmaReader, MessageReader)
}


Parts = Callable[[], Sequence[Weights]]


class Subscriber:
    """Pulls weights through ``readers``, each of which has a part of them: a whole model, or what
    one rank of the trainer sends.

    ``parts`` returns the tensors that each of them fills, by name. ``version`` is that of the
    weights now in the model. If the only reader is ``shared``, ``swap`` copies from there, without
    staging. Raises LayoutMismatch if the weights are of another model.
    """

    def __init__(
        self, readers: Sequence[Reader], parts: Parts, shared: SharedReader | None = None
    ) -> None:
        self.version = self._fetched = NOTHING_PUBLISHED
        self.readers = readers
        self._parts = parts
        self._shared = shared
        self._staging: list[Tensor] = []
        for reader, part in zip(readers, parts(), strict=True):
            check_shapes(Layout.of(part).shapes, reader.layout.shapes)
            size = 0 if shared else reader.layout.size
            self._staging.append(
                torch.zeros(size, dtype=torch.uint8, pin_memory=gpu_of(part) is not None)
            )

    @property
    def transport(self) -> str:
        """The names of the transports in use, such as the one that ``auto`` has found."""
        return ", ".join(sorted({reader.transport for reader in self.readers}))

    @property
    def transfer_bytes(self) -> int:
        """Bytes that a fetch of a new version reads, without headers."""
        return sum(reader.layout.size for reader in self.readers)

    async def fetch(self) -> int:
        """Copy the newest version to any staging buffers, and nothing to the model. Returns it. Raises
        WeightPullError, after which there is nothing to swap."""
        newer_than = max(self._fetched, self.version)
        self._fetched = NOTHING_PUBLISHED
        self._fetched = await read_rings(self.readers, self._staging, newer_than)
        return self._fetched

    def swap(self) -> int:
        """Copy the fetched weights into the model. Returns the version that it has then."""
        if self._fetched > self.version and self._shared:
            self.version = self._shared.read_into(self._parts()[0])
        elif self._fetched > self.version:
            for reader, staging, part in zip(
                self.readers, self._staging, self._parts(), strict=True
            ):
                reader.layout.unpack(staging, part)
            self.version = self._fetched
        return self.version

    async def pull(self) -> int:
        """Fetch and swap. Returns the version. On WeightPullError the model is unchanged."""
        await self.fetch()
        return self.swap()


async def subscribe(source: WeightSource, transport: str, model: nn.Module) -> Subscriber:
    """Return what pulls the weights of ``model`` from ``source``. Raises LayoutMismatch or
    WeightPullError."""
    reader = await connect(source, transport)
    return Subscriber(
        [reader], lambda: [model], reader if isinstance(reader, SharedReader) else None
    )


async def connect(source: WeightSource, transport: str = "auto") -> Reader:
    """Return a reader by ``transport`` that has read the headers, or raise WeightPullError."""
    failures = []
    for name in READERS if transport == "auto" else (transport,):
        try:
            reader = READERS[name](source)
            await reader.read_headers()
            return reader
        except WeightPullError as error:
            failures.append(f"{name}: {error}")
    raise WeightPullError("; ".join(failures))
