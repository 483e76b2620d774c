"""Move weights between two sharded meshes, as notebook 07b does; a run has sharded trainers only.

    trainer                          generator
    rank 0   ring for 0 ──────────►  from 0 ┐
             ring for 1 ───┐ ┌────►  from 1 ┴ staged, of one version? ───► shards of rank 0
    rank 1   ring for 0 ───┼─┘
             ring for 1 ─┐ └──────►  from 0 ┐
                         └────────►  from 1 ┴ staged, of one version? ───► shards of rank 1

A slot of such a ring holds all pieces that one source rank sends to one destination rank. A pull
reads one version within a shard, as any ``Subscriber`` does. Across the shards ``fetch`` only fills
staging buffers: ``pull_together`` repeats it until all destination ranks hold the same version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from torch import nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.training.transports import Subscriber, WeightSource, connect, offer
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, incoming, outgoing
from zorplex_rl.weights.ring import SLOTS, WeightRing


class ShardPublisher:
    """Publishes the shards of source rank ``rank``: one ring for each destination rank that needs a
    piece of them."""

    def __init__(self, model: nn.Module, plan: ModelPlan, rank: int, slots: int = SLOTS) -> None:
        self._plan, self._rank = plan, rank
        self.rings = {
            to: WeightRing(pieces, slots) for to, pieces in outgoing(plan, model, rank).items()
        }

    def publish(self, model: nn.Module, version: int) -> None:
        """Publish this rank's shards as ``version``. Every source rank must do the same."""
        for to, pieces in outgoing(self._plan, model, self._rank).items():
            self.rings[to].publish(pieces, version)


def offer_all(publisher: ShardPublisher) -> dict[int, WeightSource]:
    """Return what each destination rank reads its pieces from. Call once."""
    return {rank: offer(ring) for rank, ring in publisher.rings.items()}


async def subscribe(
    offers: Sequence[Mapping[int, WeightSource]],
    model: nn.Module,
    plan: ModelPlan,
    rank: int,
    transport: str = "auto",
) -> Subscriber:
    """Return destination rank ``rank``'s subscriber; ``offers`` are those of all trainer ranks, in
    their order. Raises LayoutMismatch or WeightPullError."""
    sources = incoming(plan, model, rank)
    readers = await asyncio.gather(
        *(connect(offers[source][rank], transport) for source in sources)
    )
    return Subscriber(readers, lambda: list(incoming(plan, model, rank).values()))


async def pull_together(
    fetch: Callable[[], Awaitable[Sequence[int]]],
    install: Callable[[int], Awaitable[object]],
    attempts: int = 100,
) -> int:
    """Install the same version on all destination ranks. Returns that version.

    ``fetch`` calls ``Subscriber.fetch`` on every rank, ``install`` its ``swap``. A rank that has the
    newest version reads only headers when it fetches again, so the others catch up. Raises
    WeightPullError if they do not within ``attempts`` rounds.
    """
    for _ in range(attempts):
        versions = set(await fetch())
        if len(versions) == 1:
            version = versions.pop()
            await install(version)
            return version
    raise WeightPullError(
        f"the destination ranks did not hold one version in {attempts} attempts: the source publishes faster than they read"
    )
