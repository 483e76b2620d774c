"""Carry published weights from the trainer's ring to a generator's model.

    trainer                                     generator
    Publisher.publish(model, version)           Subscriber.fetch()     reader ──► staging buffer, verified    while it samples
      └► WeightRing (K slots + headers)  ─────►   └► swap()            staging ──► model                      between two steps

    reader    how it reads headers and slots
    shm       the same memory, mapped by both: for processes that share memory, which is proven and not guessed
    tcp       a plain socket of the publisher: between hosts, where there is no RDMA hardware
    rdma      one-sided reads through Monarch's RDMABuffer: over ibverbs where there is hardware, else over its TCP fallback
    message   the bytes in the reply to a call: the baseline that needs nothing
    auto      the first of these that works

All read one ring with one seqlock (``weights/ring.py``); the model changes by whole versions.

A new transport is a ``Reader`` in ``READERS``, in the order in which ``auto`` tries them.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from zorplex_rl.config import Config
from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.runtime import quiet_stderr
from zorplex_rl.weights.delta import CHANGES, ChangeMismatch, capacity
from zorplex_rl.weights.layout import Layout, on_cuda
from zorplex_rl.weights.ring import (
    NOTHING_PUBLISHED,
    Reader,
    WeightRing,
    follow_changes,
    read_ring,
    ring_bytes,
    ring_views,
)
from zorplex_rl.weights.shared_memory import SharedHandle, allocate_for, open_shared
from zorplex_rl.weights.socket_ring import SocketHandle, SocketRing, serve

log = logging.getLogger(__name__)
HOST_ADDRESS = ""
client_context = server_context = lambda: None
READ_TIMEOUT_SECONDS = 10
"""For one request; a bulk read has more, ``read_seconds``."""
SLOWEST_BYTES_PER_SECOND = 50_000_000
"""A gigabit network that two share."""
SLOTS = 3
"""One that is being written, one that is being read, and one between them."""


@dataclass(frozen=True, slots=True)
class RdmaHandles:
    """Monarch's buffers of the headers and of each slot. A buffer is read whole, so a slot for
    changes has several, each of its first bytes: 4,096, twice as many, and so on to all."""

    headers: Any
    slots: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class WeightSource:
    """All that a reader needs, in some hundred bytes: layout, and a handle per transport. ``owner``
    answers ``ring_headers`` and ``ring_slot``; ``dtype``: weights are rounded to it."""

    layout: Layout
    dtype: torch.dtype | None
    slots: int
    shared: SharedHandle | None
    socket: SocketHandle | None = None
    rdma: RdmaHandles | None = None
    owner: Any = None
    changes: int = 0
    """More slots, for what has changed (``weights/delta.py``)."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Who will read: by which ``transport`` (None: any); ``are_here``: all on this machine."""

    transport: str | None = None
    are_here: bool = False

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return who reads the weights of a run."""
        return cls(config.transport, not config.hosts.startswith("attach"))

    def need_rdma(self, shared: SharedHandle | None, socket: SocketHandle | None) -> bool:
        """Return whether RDMA may be used. Starting it opens a socket that others can reach."""
        if self.transport == "auto":
            return socket is None and (shared is None or not self.are_here)
        return self.transport in (None, "rdma")


ANY = Readers()


class Publisher:
    """Holds a ring in this process's memory, and handles for other processes to read it."""

    def __init__(
        self,
        model: nn.Module,
        slots: int = SLOTS,
        dtype: torch.dtype | None = None,
        readers: Readers = ANY,
        full_every: int = 1,
    ) -> None:
        layout = Layout.of(model, dtype)
        memory, shared = allocate_for(model, ring_bytes(layout, slots, CHANGES if full_every > 1 else 0))
        self.ring = WeightRing(model, slots, layout, memory, full_every)
        self._source = offer(self.ring, shared, dtype, readers)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(model, version)

    def source(self, owner: Any = None) -> WeightSource:
        """Return what readers need; ``owner`` is the actor behind transport ``message``."""
        return replace(self._source, owner=owner)

    def read_headers(self) -> Tensor:
        return self.ring.headers.clone()

    def read_slot(self, slot: int, size: int) -> Tensor:
        # A clone: a reply with a view would carry the whole ring.
        return self.ring.slots[slot][:size].clone()


def offer(
    ring: WeightRing, shared: SharedHandle | None = None, dtype: torch.dtype | None = None, readers: Readers = ANY
) -> WeightSource:
    """Return what ``readers`` need. Call once for a ``ring``: its memory stays registered."""
    socket = _serve(ring)
    rdma = _register(ring) if readers.need_rdma(shared, socket) else None
    return WeightSource(ring.layout, dtype, ring.whole, shared, socket, rdma, changes=ring.changes)


def _register(ring: WeightRing) -> RdmaHandles:
    from monarch.rdma import RDMABuffer

    _start_rdma()
    headers = RDMABuffer(ring.headers.view(-1).view(torch.uint8))
    whole = ((RDMABuffer(slot),) for slot in ring.slots[: ring.whole])
    changes = (tuple(RDMABuffer(slot[:size]) for size in _doubling(len(slot))) for slot in ring.slots[ring.whole :])
    return RdmaHandles(headers, (*whole, *changes))


def _doubling(size: int) -> list[int]:
    """Return 4,096, twice as many, and so on below ``size``, and ``size``.

    >>> _doubling(10_000)
    [4096, 8192, 10000]
    """
    return [step for n in range(40) if (step := 4096 << n) < size] + [size]


def _serve(ring: WeightRing) -> SocketHandle | None:
    """Serve ``ring`` to other hosts at the worker's address, on a host without RDMA hardware."""
    from monarch.rdma import is_ibverbs_available

    if not (host := os.environ.get(HOST_ADDRESS)) or is_ibverbs_available():
        return None
    try:
        return serve(ring, host, server_context())
    except OSError as error:
        log.warning("weights are not served at %s: %s", host, error)
        return None


def read_seconds(size: int) -> int:
    """Return how long a read of ``size`` bytes may take: a bit more than at the slowest rate.

    >>> read_seconds(1_000_000), read_seconds(988_000_000)
    (10, 29)
    """
    return READ_TIMEOUT_SECONDS + size // SLOWEST_BYTES_PER_SECOND


class SharedReader:
    """Reads memory shared with the publisher, which does nothing, and may have ended."""

    def __init__(self, source: WeightSource) -> None:
        if source.shared is None:
            raise WeightPullError(
                "the trainer does not share its memory, because its weights are on a GPU or this is not Linux; use --transport rdma, or auto"
            )
        try:
            memory = open_shared(source.shared)
        except OSError as error:
            raise WeightPullError(f"the trainer's memory cannot be shared: {error}") from error
        self.layout = source.layout
        self._headers, self._slots = ring_views(memory, source.layout, source.slots, source.changes)

    async def read_headers(self) -> Tensor:
        return self._headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        whole = self._slots[slot]
        # A view takes microseconds, of the 200 that 4 MB take.
        source = whole if len(whole) == len(staging) else whole[: len(staging)]
        await asyncio.to_thread(staging.copy_, source)


class SocketReader:
    """Reads from a plain socket of the publisher, of which one thread serves all readers."""

    def __init__(self, source: WeightSource) -> None:
        if source.socket is None:
            raise WeightPullError(
                "the trainer serves no socket: it does so on a host of --hosts attach:… that has no RDMA hardware; use --transport rdma, or auto"
            )
        self.layout, self._handle, self._number = source.layout, source.socket, source.slots + source.changes
        self._ring: SocketRing | None = None

    async def read_headers(self) -> Tensor:
        return await self._ask(lambda ring: ring.read_headers(self._number))

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        await self._ask(lambda ring: ring.read_slot(slot, staging))

    async def _ask(self, question: Callable[[SocketRing], Any]) -> Any:
        def answer() -> Any:
            self._ring = self._ring or SocketRing(self._handle, client_context())
            return question(self._ring)

        try:
            return await asyncio.to_thread(answer)
        except OSError as error:
            # What is left of this answer would be taken for the next one.
            if self._ring:
                self._ring.close()
            self._ring = None
            raise WeightPullError(f"the trainer's weights could not be read: {error}") from error


class RdmaReader:
    """Reads from one side: the publisher's Python never runs for it."""

    def __init__(self, source: WeightSource) -> None:
        if source.rdma is None:
            raise WeightPullError(
                "the trainer has not started RDMA, because another transport is set, or works here; use --transport rdma"
            )
        _start_rdma()
        self.layout, self._buffers = source.layout, source.rdma
        self._headers = torch.zeros(source.slots + source.changes, 2, dtype=torch.int64)

    async def read_headers(self) -> Tensor:
        await self._read(self._buffers.headers, self._headers.view(-1).view(torch.uint8))
        return self._headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        buffer = next(buffer for buffer in self._buffers.slots[slot] if buffer.size() >= len(staging))
        target = staging if buffer.size() == len(staging) else torch.zeros(buffer.size(), dtype=torch.uint8)
        await self._read(buffer, target)
        if target is not staging:
            staging.copy_(target[: len(staging)])

    async def _read(self, source: Any, target: Tensor) -> None:
        try:
            await source.read_into(target, timeout=read_seconds(target.nbytes))
        except Exception as error:
            raise WeightPullError(f"the trainer's weights could not be read: {error}") from error


class MessageReader:
    """Asks the publisher's actor, which replies with copies."""

    def __init__(self, source: WeightSource) -> None:
        if source.owner is None:
            raise WeightPullError("the source names no actor that could be asked for weights; use another transport")
        self.layout, self._owner = source.layout, source.owner

    async def read_headers(self) -> Tensor:
        return await answer_of(self._owner.ring_headers.call_one())

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        staging.copy_(await answer_of(self._owner.ring_slot.call_one(slot, staging.nbytes), staging.nbytes))


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
    "shm": SharedReader,
    "tcp": SocketReader,
    "rdma": RdmaReader,
    "message": MessageReader,
}


def transport_of(reader: Reader) -> str:
    """Return the name of the transport by which ``reader`` reads."""
    return next(name for name, made_by in READERS.items() if made_by is type(reader))


class Subscriber:
    """Pulls weights into ``model`` through ``reader``. ``version`` is that of the weights now in
    the model, ``bytes_read`` what the last fetch has read of slots."""

    def __init__(self, reader: Reader, source: WeightSource, model: nn.Module) -> None:
        self.version = self._fetched = NOTHING_PUBLISHED
        self._layout = Layout.of(model, source.dtype)
        self._layout.check(source.layout)
        self.reader, self._model, self._whole = reader, model, source.slots
        self.bytes_read = 0
        self._staging = torch.zeros(self._layout.size, dtype=torch.uint8, pin_memory=on_cuda(model))
        self._change = torch.zeros(capacity(self._layout), dtype=torch.uint8) if source.changes else None

    @property
    def transport(self) -> str:
        """The name of the transport in use, such as the one that ``auto`` has found."""
        return transport_of(self.reader)

    async def fetch(self) -> int:
        """Fetch the newest published weights into the staging buffer: what has changed, where the
        publisher offers it, else all. Returns their version. After a WeightPullError, do not call
        ``swap``."""
        self.bytes_read = 0
        self._fetched, known = NOTHING_PUBLISHED, self._fetched
        if self._change is not None and known != NOTHING_PUBLISHED:
            with suppress(ChangeMismatch):
                known, newest = await follow_changes(
                    self.reader.read_headers, self._read, self._whole, self._change, self._staging, known
                )
                if known >= newest:
                    self._fetched = known
                    return known

        async def read_slot(slot: int) -> None:
            await self._read(slot, self._staging)

        async def of_whole_slots() -> Tensor:
            return (await self.reader.read_headers())[: self._whole]

        read_headers = self.reader.read_headers if self._change is None else of_whole_slots
        self._fetched = await read_ring(read_headers, read_slot, max(known, self.version))
        return self._fetched

    async def _read(self, slot: int, target: Tensor) -> None:
        await self.reader.read_slot(slot, target)
        self.bytes_read += target.nbytes

    def swap(self) -> int:
        """Copy the fetched weights into the model. Returns their version."""
        if self._fetched > self.version:
            self._layout.unpack(self._staging, self._model)
            self.version = self._fetched
        return self.version

    async def pull(self) -> int:
        """Fetch and swap. Returns the version. On WeightPullError the model is unchanged."""
        await self.fetch()
        return self.swap()


async def subscribe(source: WeightSource, transport: str, model: nn.Module) -> Subscriber:
    """Return a subscriber by ``transport``. Raises LayoutMismatch or WeightPullError."""
    return Subscriber(await connect(source, transport), source, model)


async def connect(source: WeightSource, transport: str = "auto") -> Reader:
    """Return a reader by ``transport`` that has read the headers, or raise WeightPullError."""
    if transport not in ("auto", *READERS):
        raise ValueError(f"transport {transport!r} is unknown; expected one of auto, {', '.join(READERS)}")
    failures = []
    for name in READERS if transport == "auto" else (transport,):
        try:
            reader = READERS[name](source)
            await reader.read_headers()
        except WeightPullError as error:
            failures.append(f"{name}: {error}")
        else:
            return reader
    raise WeightPullError("; ".join(failures))


def _start_rdma() -> None:
    """Hide what Monarch's native code says, once, of RDMA hardware that it has not found."""
    from monarch.rdma import RDMABuffer

    with quiet_stderr():
        RDMABuffer(torch.zeros(8, dtype=torch.uint8))
