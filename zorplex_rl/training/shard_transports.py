"""Carry the pieces of a resharding plan from trainer processes to generator processes: one read for each pair of ranks.

    in each trainer rank's actor                            in each generator rank's actor
    publisher = ShardPublisher(model, plan, rank)
    return offer(publisher)              ── handles ──►     subscriber = await subscribe(offers, model, plan, rank)
    publisher.publish(model, version)                       await subscriber.fetch()
                                                            subscriber.install(version)

``offers`` are what all trainer ranks offer, in the order of their ranks, a few kilobytes. A ring is read through any transport of
``transports.py``, like that of a whole model. ``weights/reshard/transfer.py`` says when to call ``fetch`` and ``install``, and why versions never
mix.
"""

import asyncio
from collections.abc import Sequence

from torch import nn

from zorplex_rl.training import transports
from zorplex_rl.training.transports import WeightSource, connect
from zorplex_rl.weights.reshard.sharded_model import ModelPlan
from zorplex_rl.weights.reshard.transfer import ShardPublisher, ShardSubscriber
from zorplex_rl.weights.ring import Reader, WeightPullError

Offer = dict[int, WeightSource]
"""For each destination rank, what it reads its pieces from."""


def offer(publisher: ShardPublisher) -> Offer:
    """Return what a trainer rank's pieces are read from. Call this once: the memory stays registered."""
    return {rank: transports.offer(ring, publisher.shared[rank]) for rank, ring in publisher.rings.items()}


async def subscribe(
    offers: Sequence[Offer], model: nn.Module, plan: ModelPlan, rank: int, transport: str = "auto"
) -> ShardSubscriber:
    """Return the subscriber of destination rank ``rank``. Raises WeightPullError, which names the trainer rank that could not be reached."""
    wanted = {source: offered[rank] for source, offered in enumerate(offers) if rank in offered}

    async def reader_of(source: int) -> Reader:
        try:
            return await connect(wanted[source], transport)
        except WeightPullError as error:
            raise WeightPullError(f"trainer rank {source}: {error}") from error

    readers = await asyncio.gather(*map(reader_of, wanted))
    return ShardSubscriber(dict(zip(wanted, readers, strict=True)), model, plan, rank)
