"""Carry published weights from the trainer's ring to a generator's model.

    trainer                                     generator
    Publisher.publish(model, version)           Subscriber.fetch()   ring ──► staging buffer      while it samples
      └► WeightRing (K slots + headers)  ─────►   └► swap()          staging buffer ──► model     between two steps
                                                                     ring ──► model, over shm     between two steps

    reader    how it reads headers and slots
    shm       memory that both processes map; that they do is verified, not guessed
    rdma      one-sided reads through Monarch's RDMABuffer: ibverbs where there is hardware, else its TCP fallback
    message   the bytes in the reply to a call: needs nothing, so it is the baseline
    auto      the first of these that works

All of them read one ring with one seqlock (``weights/ring.py``), so the model changes by whole
versions. To add a transport, add a ``Reader`` to ``READERS``, in the order in which ``auto`` tries them.
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

READ_TIMEOUT_SECONDS = 10
"""Limit of a small read; a bulk read has more, ``read_seconds``."""
SLOWEST_BYTES_PER_SECOND = 50_000_000
"""A gigabit network that two readers share."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """All that a reader needs, in a few hundred bytes: a handle for each transport."""

    layout: Layout
    slots: int
    shared: SharedHandle | None
    rdma: tuple[Any, list[Any]] | None
    """Monarch's buffers of the headers and of each slot."""
    owner: Any = None
    """The actor with the endpoints ``ring_headers`` and ``ring_slot``."""
    description: Any = None
    """How the weights are sharded, if they are (``shard_transports.py``)."""


class Publisher:
    """Holds a ring in this process's memory, and the handles with which other processes read it."""

    def __init__(
        self,
        weights: Weights,
        slots: int = SLOTS,
        config: Config | None = None,
    ) -> None:
        self.ring = WeightRing(weights, slots)
        self._source = offer(self.ring, config)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(model, version)

    def source(self) -> WeightSource:
        """Return the handles for readers."""
        return self._source

    def read_headers(self) -> Tensor:
        return self.ring.headers.clone()

    def read_slot(self, slot: int) -> Tensor:
        # A clone, because a reply with a view would carry the whole ring.
        return self.ring.slots[slot].clone()


def offer(ring: WeightRing, config: Config | None = None) -> WeightSource:
    """Return the handles for readers of ``ring``: for those of a run with ``config``, else for any. Call it once:
    the memory stays registered."""
    rdma = None
    if config is None or _needs_rdma(config, ring):
        from monarch.rdma import RDMABuffer

        _start_rdma()
        headers = RDMABuffer(ring.headers.view(-1).view(torch.uint8))
        rdma = (headers, [RDMABuffer(slot) for slot in ring.slots])
    return WeightSource(ring.layout, len(ring.slots), ring.shared, rdma)


def _needs_rdma(config: Config, ring: WeightRing) -> bool:
    """Return whether a reader may need RDMA. It opens a socket, so it is not started if all share memory."""
    if config.transport == "auto":
        return ring.shared is None or config.hosts.startswith(("attach", "job"))
    return config.transport == "rdma"


def _start_rdma() -> None:
    """Start RDMA, and hide what Monarch's native code prints if it finds no hardware."""
    from monarch.rdma import RDMABuffer

    with quiet_stderr():
        RDMABuffer(torch.zeros(8, dtype=torch.uint8))


def read_seconds(size: int) -> int:
    """Return the limit, in seconds, for a read of ``size`` bytes: it allows the slowest rate."""
    return READ_TIMEOUT_SECONDS + size // SLOWEST_BYTES_PER_SECOND


class SharedReader:
    """Reads memory that is shared with the publisher. The publisher does nothing, and may have ended."""

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
        """Copy the newest version into ``weights``, again if it was overwritten meanwhile. Returns the version."""
        while True:
            for header in complete_slots(self._headers)[-1:]:
                fence()
                self.layout.unpack(self._slots[header.slot], weights)
                fence()
                if header in complete_slots(self._headers):
                    return header.version


class RdmaReader:
    """Reads one-sided: no Python code of the publisher runs."""

    transport = "rdma"

    def __init__(self, source: WeightSource) -> None:
        if source.rdma is None:
            raise WeightPullError(
                "the trainer has not started RDMA: another transport is set, or shared memory works"
            )
        _start_rdma()
        self.layout = source.layout
        self._headers, self._slots = source.rdma
        # One buffer for all reads, because Monarch registers each new one.
        self._buffer = torch.zeros(source.slots, 2, dtype=torch.int64)

    async def read_headers(self) -> Tensor:
        await self._read(self._headers, self._buffer.view(-1).view(torch.uint8))
        return self._buffer.clone()

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
        self.layout = source.layout
        self._owner = source.owner

    async def read_headers(self) -> Tensor:
        return await answer_of(self._owner.ring_headers.call_one())

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        weights = await answer_of(self._owner.ring_slot.call_one(slot), staging.nbytes)
        # By numpy: torch would wake other threads for the copy, which takes longer.
        staging.numpy()[:] = weights.numpy()


async def answer_of(call: Any, size: int = 0) -> Any:
    """Return the publisher's answer to ``call``, of ``size`` bytes. Raises WeightPullError. There is a time limit,
    because Monarch does not report a process that was stopped and then killed."""
    seconds = read_seconds(size)
    try:
        async with asyncio.timeout(seconds):
            return await call.as_asyncio()
    except Exception as error:
        why = str(error) or f"no answer within {seconds} s"
        raise WeightPullError(f"the trainer's weights could not be read: {why}") from error


READERS: dict[str, Callable[[WeightSource], Reader]] = {
    "shm": SharedReader,
    "rdma": RdmaReader,
    "message": MessageReader,
}
Parts = Callable[[], Sequence[Weights]]


class Subscriber:
    """Pulls weights through ``readers``: one for a whole model, or one for each rank of the trainer.

    ``parts`` returns the tensors that each reader fills, by name. ``version`` is that of the weights
    in the model. If ``shared`` is the only reader, ``swap`` copies from its memory without staging.
    Raises LayoutMismatch if the weights belong to another model.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        parts: Parts,
        shared: SharedReader | None = None,
    ) -> None:
        self.version = self._fetched = NOTHING_PUBLISHED
        self.readers = readers
        self._parts = parts
        self._shared = shared
        self._staging: list[Tensor] = []
        for reader, part in zip(readers, parts(), strict=True):
            check_shapes(Layout.of(part).shapes, reader.layout.shapes)
            size = 0 if shared else reader.layout.size
            on_gpu = gpu_of(part) is not None
            self._staging.append(torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu))

    @property
    def transport(self) -> str:
        """The name of the transport in use."""
        return self.readers[0].transport

    @property
    def transfer_bytes(self) -> int:
        """Bytes of one version, without headers."""
        return sum(reader.layout.size for reader in self.readers)

    async def fetch(self) -> int:
        """Copy the newest version to the staging buffers, if there are any. Returns the version. The model does not
        change. Raises WeightPullError; then there is nothing to swap."""
        newer_than = max(self._fetched, self.version)
        self._fetched = NOTHING_PUBLISHED
        self._fetched = await read_rings(self.readers, self._staging, newer_than)
        return self._fetched

    def swap(self) -> int:
        """Copy the fetched weights into the model. Returns the version in the model."""
        if self._fetched <= self.version:
            return self.version
        parts = self._parts()
        if self._shared:
            self._fetched = self._shared.read_into(parts[0])
        else:
            for reader, staging, part in zip(self.readers, self._staging, parts, strict=True):
                reader.layout.unpack(staging, part)
        self.version = self._fetched
        return self.version

    async def pull(self) -> int:
        """Fetch and swap. Returns the version. On WeightPullError the model is unchanged."""
        await self.fetch()
        return self.swap()


async def subscribe(source: WeightSource, transport: str, model: nn.Module) -> Subscriber:
    """Connect ``model`` to ``source``. Returns its subscriber. Raises LayoutMismatch or WeightPullError."""
    reader = await connect(source, transport)
    shared = reader if isinstance(reader, SharedReader) else None
    return Subscriber([reader], lambda: [model], shared)


async def connect(source: WeightSource, transport: str = "auto") -> Reader:
    """Return a reader by ``transport`` that works: it has read the headers. Raises WeightPullError."""
    failures = []
    for name in READERS if transport == "auto" else (transport,):
        try:
            reader = READERS[name](source)
            await reader.read_headers()
            return reader
        except WeightPullError as error:
            failures.append(f"{name}: {error}")
    raise WeightPullError("; ".join(failures))
