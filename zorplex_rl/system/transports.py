"""How published weights get from the trainer's ring into a generator's model.

    trainer                                     generator
    Publisher.publish(model, version)           Subscriber.pull() -> version
      └► WeightRing (K slots + headers)  ─────►   staging buffer ──verified──► model

    rdma      one-sided reads through Monarch's RDMABuffer: over ibverbs where there is hardware, else over its TCP fallback
    message   the bytes in the reply to a call: the baseline that needs nothing

Both read into a staging buffer and touch the model only when a whole version has arrived, so a writer that dies leaves the old weights intact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zorplex_rl.system.runtime import quiet_stderr
from zorplex_rl.weights.layout import Layout
from zorplex_rl.weights.ring import NOTHING_PUBLISHED, WeightPullError, WeightRing, newest_slot, read_ring

TRANSPORTS = ("rdma", "message")
READ_TIMEOUT_SECONDS = 10


class Subscriber(Protocol):
    """The reader's side of a transport. ``version`` is that of the weights now in the model."""

    version: int

    async def pull(self) -> int:
        """Have the newest published weights in the model and return their version. Raises WeightPullError; the model is then unchanged."""


class Publisher:
    """The writer's side, for every transport: a ring in this process's memory, and handles through which others read it."""

    def __init__(self, model: nn.Module, slots: int = 2) -> None:
        from monarch.rdma import RDMABuffer

        _meet_rdma()
        self.ring = WeightRing(model, slots)
        self._headers = RDMABuffer(self.ring.headers.view(-1).view(torch.uint8))
        self._slots = tuple(RDMABuffer(slot) for slot in self.ring.slots)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(model, version)

    def rdma_handle(self) -> RdmaHandle:
        return RdmaHandle(self.ring.layout, self._headers, self._slots)

    def newest(self, newer_than: int) -> tuple[int, Tensor | None]:
        """For the ``message`` transport: the newest version and its bytes, or None for the bytes if it is not newer."""
        for _ in range(100):
            header = newest_slot(self.ring.headers)
            if header is None or header.version <= newer_than:
                return newer_than, None
            payload = self.ring.slots[header.slot].clone()
            if self.ring.headers[header.slot].tolist() == [header.sequence, header.version]:
                return header.version, payload
        raise WeightPullError("the ring was overwritten during each of 100 copies; use more slots")


@dataclass(frozen=True, slots=True)
class RdmaHandle:
    """All that a reader needs, a few hundred bytes: the layout and one remote buffer each for the headers and the slots."""

    layout: Layout
    headers: Any
    slots: tuple[Any, ...]


class RdmaSubscriber:
    """Pulls through one-sided reads; the trainer's Python never runs for it."""

    def __init__(self, handle: RdmaHandle, model: nn.Module) -> None:
        self.version = NOTHING_PUBLISHED
        self._layout = Layout.of(model)
        self._layout.check(handle.layout)
        self._handle, self._model = handle, model
        self._staging = torch.zeros(self._layout.size, dtype=torch.uint8)
        _meet_rdma()
        self._headers = torch.zeros(len(handle.slots), 2, dtype=torch.int64)

    async def pull(self) -> int:
        version = await read_ring(self._read_headers, self._read_slot, newer_than=self.version)
        if version != self.version:
            self._layout.unpack(self._staging, self._model)
            self.version = version
        return version

    async def _read_headers(self) -> Tensor:
        await self._read(self._handle.headers, self._headers.view(-1).view(torch.uint8))
        return self._headers

    async def _read_slot(self, slot: int) -> None:
        await self._read(self._handle.slots[slot], self._staging)

    async def _read(self, source: Any, target: Tensor) -> None:
        try:
            await source.read_into(target, timeout=READ_TIMEOUT_SECONDS)
        except Exception as error:
            raise WeightPullError(f"the trainer's weights could not be read: {error}") from error


class MessageSubscriber:
    """Pulls through replies: ``ask(newer_than)`` returns (version, bytes or None)."""

    def __init__(
        self, layout: Layout, ask: Callable[[int], Awaitable[tuple[int, Tensor | None]]], model: nn.Module
    ) -> None:
        self.version = NOTHING_PUBLISHED
        self._layout = Layout.of(model)
        self._layout.check(layout)
        self._ask, self._model = ask, model

    async def pull(self) -> int:
        version, payload = await self._ask(self.version)
        if payload is not None:
            self._layout.unpack(payload, self._model)
            self.version = version
        return self.version


def _meet_rdma() -> None:
    """Let Monarch's native code say once, where nobody has to read it, which RDMA hardware and drivers it has not found."""
    from monarch.rdma import RDMABuffer

    with quiet_stderr():
        RDMABuffer(torch.zeros(8, dtype=torch.uint8))
