"""Carry out a resharding plan: each source rank publishes one weight ring for each destination rank
that needs something from it.

    trainer                          generator
    rank 0   ring for 0 ──────────►  from 0 ┐
             ring for 1 ───┐ ┌────►  from 1 ┴ staged, of one version? ───► shards of rank 0
    rank 1   ring for 0 ───┼─┘
             ring for 1 ─┐ └──────►  from 0 ┐
                         └────────►  from 1 ┴ staged, of one version? ───► shards of rank 1

A slot of such a ring holds all pieces that one source rank sends to one destination rank. So a pull
is one large read for each pair of ranks, of not a byte more than the plan says. A pull must not mix
versions:

    within a shard      ``read_rings`` reads the newest version that *all* its source ranks still have. All ranks take part in a
                        training step, so none publishes v + 1 before all have published v, and the first to publish v + 1
                        still has v in another slot. So after the first publication there is always a common version.
    across the shards   ``fetch`` only fills staging buffers. ``pull_together`` repeats it on all destination ranks until
                        they hold the same version, and only then calls ``install`` on each.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from torch import Tensor, nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, local_weights
from zorplex_rl.weights.ring import SLOTS, WeightRing

Pieces = Mapping[int, dict[str, Tensor]]
"""For each rank of the other side, views of shards by name: the same names and shapes there."""


class ShardPublisher:
    """Publishes the shards of source rank ``rank``: one ring for each destination rank that needs a
    piece of them."""

    def __init__(self, model: nn.Module, plan: ModelPlan, rank: int, slots: int = SLOTS) -> None:
        self._plan, self._rank = plan, rank
        self.rings = {to: WeightRing(pieces, slots) for to, pieces in outgoing(plan, model, rank).items()}

    def publish(self, model: nn.Module, version: int) -> None:
        """Publish this rank's shards as ``version``. Every source rank must do the same."""
        for to, pieces in outgoing(self._plan, model, self._rank).items():
            self.rings[to].publish(pieces, version)


async def pull_together(
    fetch: Callable[[], Awaitable[Sequence[int]]], install: Callable[[int], Awaitable[object]], attempts: int = 100
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


def outgoing(plan: ModelPlan, model: nn.Module, source: int) -> Pieces:
    """Return the pieces of rank ``source``'s shards that go to each destination rank."""
    shards = local_weights(model)
    pieces: Pieces = defaultdict(dict)
    for name, moves in plan.moves.items():
        for number, move in enumerate(moves):
            if move.source == source:
                pieces[move.destination][f"{name}[{number}]"] = shards[name][move.source_slices]
    return pieces


def incoming(plan: ModelPlan, model: nn.Module, destination: int) -> Pieces:
    """Return the pieces of rank ``destination``'s shards that come from each source rank, in their
    order."""
    shards = local_weights(model)
    pieces: Pieces = defaultdict(dict)
    for name, moves in plan.moves.items():
        for number, move in enumerate(moves):
            if move.destination == destination:
                pieces[move.source][f"{name}[{number}]"] = shards[name][move.destination_slices]
    return dict(sorted(pieces.items()))
