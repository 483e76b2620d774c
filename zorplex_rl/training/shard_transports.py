"""Carry the pieces of a resharding plan from trainer to generator processes, a read a pair.

    in each trainer rank's actor                            in each generator rank's actor
    publisher = ShardPublisher(model, plan, rank)
    return offer_all(publisher)          ── handles ──►     subscriber = await subscribe(offers, model, plan, rank)
    publisher.publish(model, version)                       await subscriber.fetch()
                                                            subscriber.swap()

With ``--trainer-processes`` only the trainer is sharded: each generator is a mesh of one rank, and
all want the same pieces. So there is one plan for all, and each trainer rank has one ring, which
every generator reads: ``RankPublisher`` ──► ``subscribe_to_group``.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from zorplex_rl.config import Config
from zorplex_rl.training.transports import Publisher, Subscriber, WeightSource, answer_of, connect, offer
from zorplex_rl.weights.layout import named_weights
from zorplex_rl.weights.reshard.plan import Sharding
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, ShardedWeight, describe, plan_model, rank_in
from zorplex_rl.weights.reshard.transfer import ShardPublisher, incoming, outgoing
from zorplex_rl.weights.ring import SLOTS

EVERY_GENERATOR = 0  # the rank that a generator has in the plan


def offer_all(publisher: ShardPublisher) -> dict[int, WeightSource]:
    """Return what each destination rank reads its pieces from. Call once."""
    return {rank: offer(ring) for rank, ring in publisher.rings.items()}


async def subscribe(
    offers: Sequence[Mapping[int, WeightSource]], model: nn.Module, plan: ModelPlan, rank: int, transport: str = "auto"
) -> Subscriber:
    """Return destination rank ``rank``'s subscriber; ``offers`` are those of all trainer ranks, in
    their order. Raises LayoutMismatch or WeightPullError."""
    sources = incoming(plan, model, rank)
    readers = await asyncio.gather(*(connect(offers[source][rank], transport) for source in sources))
    return Subscriber(readers, lambda: list(incoming(plan, model, rank).values()))


class RankPublisher(Publisher):
    """Publishes a trainer rank's part of the weights, for generators that hold all of them."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, config: Config | None = None) -> None:
        description = describe(model, mesh)
        self._plan, self._rank = plan_model(description, unsharded(description)), rank_in(mesh)
        super().__init__(self._part_of(model), SLOTS, config)
        self._source = replace(self._source, description=description)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(self._part_of(model), version)

    def _part_of(self, model: nn.Module) -> dict[str, Tensor]:
        return outgoing(self._plan, model, self._rank)[EVERY_GENERATOR]


async def subscribe_to_group(trainer: Any, ranks: int, model: nn.Module, transport: str) -> Subscriber:
    """Return the subscriber of a whole ``model`` to the ``ranks`` ranks of the actor ``trainer``.
    Raises LayoutMismatch for another model's weights, WeightPullError if no transport works."""
    offers = []
    for rank in range(ranks):
        actor = trainer.slice(procs=rank)
        source: WeightSource = await answer_of(actor.source.call_one())
        offers.append({EVERY_GENERATOR: replace(source, owner=actor)})
    plan = plan_model(source.description, unsharded(named_weights(model)))
    return await subscribe(offers, model, plan, EVERY_GENERATOR, transport)


def unsharded(weights: Mapping[str, Tensor | ShardedWeight]) -> dict[str, ShardedWeight]:
    """Return the description of ``weights`` on one rank that holds all of them."""
    whole = Sharding((1,), (Replicate(),))
    return {name: ShardedWeight(tuple(weight.shape), weight.dtype, whole) for name, weight in weights.items()}
