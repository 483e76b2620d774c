"""Carry weights from the ranks of a sharded trainer to generators, with one read for each rank.

    in each trainer rank's actor                            in each generator's actor
    publisher = RankPublisher(model, mesh)
    return publisher.source()            ── handles ──►     subscriber = await subscribe_to_group(trainer, …)
    publisher.publish(model, version)                       await subscriber.fetch()
                                                            subscriber.swap()

Only the trainer is sharded (``--trainer-processes``), and all generators need the same pieces. So one
plan serves all of them, and each trainer rank has one ring, which every generator reads. A pull reads
the newest version that all ranks still have. There always is one: a training step needs all ranks, so
none publishes v + 1 before all have published v, and a rank that is ahead still has v in another slot.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from zorplex_rl.config import Config
from zorplex_rl.training.transports import Publisher, Subscriber, WeightSource, answer_of, connect
from zorplex_rl.weights.layout import named_weights
from zorplex_rl.weights.reshard.plan import Sharding
from zorplex_rl.weights.reshard.sharded_model import (
    ShardedWeight,
    describe,
    incoming,
    outgoing,
    plan_model,
    rank_in,
)
from zorplex_rl.weights.ring import SLOTS

EVERY_GENERATOR = 0
"""The rank of each generator in the plan."""


class RankPublisher(Publisher):
    """Publishes the part of the weights that one trainer rank holds."""

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        config: Config | None = None,
    ) -> None:
        description = describe(model, mesh)
        self._plan = plan_model(description, unsharded(description))
        self._rank = rank_in(mesh)
        super().__init__(self._part_of(model), SLOTS, config)
        self._source = replace(self._source, description=description)

    def publish(self, model: nn.Module, version: int) -> None:
        self.ring.publish(self._part_of(model), version)

    def _part_of(self, model: nn.Module) -> dict[str, Tensor]:
        pieces = outgoing(self._plan, model, self._rank)
        return pieces[EVERY_GENERATOR]


async def subscribe_to_group(
    trainer: Any,
    ranks: int,
    model: nn.Module,
    transport: str,
) -> Subscriber:
    """Connect an unsharded ``model`` to the weights on all ``ranks`` of the actor ``trainer``. Returns its
    subscriber. Raises LayoutMismatch for another model's weights, WeightPullError if no transport works."""
    offers = []
    for rank in range(ranks):
        actor = trainer.slice(procs=rank)
        source: WeightSource = await answer_of(actor.source.call_one())
        offers.append(replace(source, owner=actor))
    plan = plan_model(source.description, unsharded(named_weights(model)))

    def parts() -> Mapping[int, dict[str, Tensor]]:
        return incoming(plan, model, EVERY_GENERATOR)

    readers = await asyncio.gather(*(connect(offers[rank], transport) for rank in parts()))
    return Subscriber(readers, lambda: list(parts().values()))


def unsharded(weights: Mapping[str, Tensor | ShardedWeight]) -> dict[str, ShardedWeight]:
    """Describe ``weights`` as they are on one rank that holds all of them."""
    whole = Sharding((1,), (Replicate(),))
    return {
        name: ShardedWeight(tuple(weight.shape), weight.dtype, whole)
        for name, weight in weights.items()
    }
