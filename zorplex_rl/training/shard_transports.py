"""Carry the pieces of a resharding plan from trainer to generator processes, a read a pair.

    in each trainer rank's actor                            in each generator rank's actor
    publisher = ShardPublisher(model, plan, rank)
    return offer(publisher)              ── handles ──►     subscriber = await subscribe(offers, model, plan, rank)
    publisher.publish(model, version)                       await subscriber.fetch()
                                                            subscriber.install(version)

``offers`` are what all trainer ranks offer, in the order of their ranks, a few kilobytes. A ring is
read through any transport of ``transports.py``, like that of a whole model.
``weights/reshard/transfer.py`` says when to call ``fetch`` and ``install``, and why versions never
mix.

With ``--trainer-processes`` the lower half of this file does so for generators of whole models.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from zorplex_rl.errors import WeightPullError
from zorplex_rl.training import transports
from zorplex_rl.training.transports import ANY, SLOTS, Readers, WeightSource, answer_of, connect
from zorplex_rl.weights.layout import named_weights
from zorplex_rl.weights.reshard.sharded_model import (
    Description,
    ModelPlan,
    ShardedWeight,
    describe,
    plan_model,
    rank_in,
)
from zorplex_rl.weights.reshard.sharding import Sharding
from zorplex_rl.weights.reshard.transfer import ShardPublisher, ShardSubscriber
from zorplex_rl.weights.ring import Reader

Offer = dict[int, WeightSource]
"""For each destination rank, what it reads its pieces from."""


def offer(publisher: ShardPublisher, readers: Readers = ANY) -> Offer:
    """Return a trainer rank's offer to ``readers``. Call once: its memory stays registered."""
    return {
        rank: transports.offer(ring, publisher.shared[rank], readers=readers) for rank, ring in publisher.rings.items()
    }


async def subscribe(
    offers: Sequence[Offer],
    model: nn.Module,
    plan: ModelPlan,
    rank: int,
    transport: str = "auto",
    dtype: torch.dtype | None = None,
) -> ShardSubscriber:
    """Return rank ``rank``'s subscriber. Raises WeightPullError, naming the unreachable rank."""
    wanted = {source: offered[rank] for source, offered in enumerate(offers) if rank in offered}

    async def reader_of(source: int) -> Reader:
        try:
            return await connect(wanted[source], transport)
        except WeightPullError as error:
            raise WeightPullError(f"trainer rank {source}: {error}") from error

    readers = await asyncio.gather(*map(reader_of, wanted))
    return ShardSubscriber(dict(zip(wanted, readers, strict=True)), model, plan, rank, dtype)


# A trainer whose weights are sharded, and generators that hold whole models: each of them is a mesh
# of one rank, and all want the same pieces. So there is one plan for all of them, and each trainer
# rank has one ring, which every generator reads.

EVERY_GENERATOR = 0
"""The rank that a generator has in the plan."""


@dataclass(frozen=True, slots=True)
class GroupSource:
    """What a generator needs of a trainer rank: the sharding, and what this rank offers."""

    description: Description
    offer: Offer
    dtype: torch.dtype | None


class RankPublisher:
    """Publishes a trainer rank's part of the weights, for generators that hold all of them."""

    def __init__(
        self, model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype | None = None, readers: Readers = ANY
    ) -> None:
        description = describe(model, mesh)
        plan = plan_model(description, unsharded(description))
        self._shards = ShardPublisher(model, plan, rank_in(mesh), SLOTS, dtype)
        self._source = GroupSource(description, offer(self._shards, readers), dtype)

    def publish(self, model: nn.Module, version: int) -> None:
        self._shards.publish(model, version)

    def source(self) -> GroupSource:
        return self._source

    def read_headers(self) -> Tensor:
        return self._shards.rings[EVERY_GENERATOR].headers.clone()

    def read_slot(self, slot: int, size: int) -> Tensor:
        # A clone: a reply with a view would carry the whole ring.
        return self._shards.rings[EVERY_GENERATOR].slots[slot][:size].clone()


class WholeSubscriber:
    """Pulls all trainer ranks' parts into a whole model, like ``transports.Subscriber``."""

    def __init__(self, shards: ShardSubscriber) -> None:
        self._shards = shards

    @property
    def transport(self) -> str:
        """The names of the transports that carry the weights: one for each rank may be another."""
        return ", ".join(sorted({transports.transport_of(reader) for reader in self._shards.readers.values()}))

    @property
    def bytes_read(self) -> int:
        """Bytes that a fetch of a new version reads."""
        return self._shards.transfer_bytes

    async def fetch(self) -> int:
        """Fetch the newest version that all ranks have into staging buffers. Returns it."""
        return await self._shards.fetch()

    def swap(self) -> int:
        """Copy the fetched weights into the model. Returns their version."""
        self._shards.install(self._shards.staged)
        return self._shards.version


async def subscribe_to_group(trainer: Any, ranks: int, model: nn.Module, transport: str) -> WholeSubscriber:
    """Return the subscriber of a whole ``model`` to the ``ranks`` ranks of the actor ``trainer``.
    Raises LayoutMismatch for another model's weights, WeightPullError if no transport works."""
    actors = [trainer.slice(procs=rank) for rank in range(ranks)]
    sources: list[GroupSource] = [await answer_of(actor.source.call_one()) for actor in actors]
    # The ``message`` transport asks the rank itself.
    offers = [
        {rank: replace(of_rank, owner=actor) for rank, of_rank in source.offer.items()}
        for source, actor in zip(sources, actors, strict=True)
    ]
    description, travels_as = sources[0].description, sources[0].dtype
    wanted = {}
    for name, tensor in named_weights(model).items():
        # What travels in a type of its own may be of any type at either end.
        theirs = description[name].dtype if travels_as and name in description else tensor.dtype
        wanted[name] = (tuple(tensor.shape), theirs)
    plan = plan_model(description, whole(wanted))
    return WholeSubscriber(await subscribe(offers, model, plan, EVERY_GENERATOR, transport, travels_as))


def unsharded(description: Description) -> dict[str, ShardedWeight]:
    """Return the description of the same model on one rank that holds all of it."""
    return whole({name: (weight.shape, weight.dtype) for name, weight in description.items()})


def whole(weights: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, ShardedWeight]:
    """Return the description of ``weights`` (shape, type) on one rank that holds all."""
    return {
        name: ShardedWeight(shape, dtype, Sharding((1,), (Replicate(),))) for name, (shape, dtype) in weights.items()
    }
