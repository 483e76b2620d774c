"""How the parcels of a resharding plan get from trainer processes into generator processes: one-sided reads, one for each pair of ranks.

    in each trainer rank's actor                            in each generator rank's actor
    publisher = ShardPublisher(model, plan, rank)
    return offer(publisher)              ── handles ──►     subscriber = subscribe(offers, model, plan, rank)
    publisher.publish(model, version)                       await subscriber.fetch()
                                                            subscriber.install(version)

``offers`` are what all trainer ranks offer, in the order of their ranks, a few kilobytes. ``weights/parcels.py`` says when ``fetch`` and
``install`` are called, and why no version is ever mixed with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zorplex_rl.system import transports
from zorplex_rl.system.transports import RdmaHandle, _meet_rdma
from zorplex_rl.weights.parcels import ShardPublisher, ShardSubscriber
from zorplex_rl.weights.ring import WeightPullError
from zorplex_rl.weights.sharded_model import ModelPlan


def offer(publisher: ShardPublisher) -> dict[int, RdmaHandle]:
    """For each destination rank, a handle through which it reads its parcel. Call once; the memory stays registered."""
    from monarch.rdma import RDMABuffer

    _meet_rdma()
    return {
        destination: RdmaHandle(
            ring.layout,
            RDMABuffer(ring.headers.view(-1).view(torch.uint8)),
            tuple(RDMABuffer(slot) for slot in ring.slots),
        )
        for destination, ring in publisher.rings.items()
    }


def subscribe(offers: Sequence[dict[int, RdmaHandle]], model: nn.Module, plan: ModelPlan, rank: int) -> ShardSubscriber:
    """The subscriber of destination rank ``rank``."""
    _meet_rdma()
    readers = {source: RdmaReader(source, offered[rank]) for source, offered in enumerate(offers) if rank in offered}
    return ShardSubscriber(readers, model, plan, rank)


class RdmaReader:
    """Reads the ring of another process through Monarch's RDMABuffer; that process's Python never runs for it."""

    def __init__(self, source: int, handle: RdmaHandle) -> None:
        self.layout, self._source, self._handle = handle.layout, source, handle
        self._headers = torch.zeros(len(handle.slots), 2, dtype=torch.int64)

    async def read_headers(self) -> Tensor:
        await self._read(self._handle.headers, self._headers.view(-1).view(torch.uint8))
        return self._headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        await self._read(self._handle.slots[slot], staging)

    async def _read(self, source: Any, target: Tensor) -> None:
        try:
            await source.read_into(target, timeout=transports.READ_TIMEOUT_SECONDS)
        except Exception as error:
            raise WeightPullError(f"the parcels of trainer rank {self._source} could not be read: {error}") from error
