"""How a resharding plan is carried out: a parcel for every pair of ranks that has something to move, each in a weight ring of its own.

    trainer                                      generator
    rank 0   ring of parcels for 0 ───────────►  from 0 ┐
             ring of parcels for 1 ───┐ ┌─────►  from 1 ┴ staged, of one version? ───► shards of rank 0
    rank 1   ring of parcels for 0 ───┼─┘
             ring of parcels for 1 ─┐ └───────►  from 0 ┐
                                    └─────────►  from 1 ┴ staged, of one version? ───► shards of rank 1

A parcel holds all pieces, of all parameters, that one source rank has for one destination rank, without gaps: one large read instead of
one for each run of neighbouring bytes, and not a byte more than the plan says. Its ring's headers reveal a torn read (``ring.py``).

Two things must not be mixed, and headers reveal both:

    versions within a shard      A subscriber reads, from all its source ranks, the newest version that *every one* of them still has.
                                 A training step takes all ranks, so none publishes v + 1 before all have published v; and a rank that
                                 is first with v + 1 still has v in its other slot. So 2 slots suffice for there always to be a
                                 common version, once the first has been published.
    versions across the shards   ``fetch`` only fills staging buffers. ``pull_together`` has all destination ranks fetch until they
                                 hold the same version, and only then lets each ``install`` it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import Layout
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, local_weights
from zorplex_rl.weights.ring import (
    NOTHING_PUBLISHED,
    PATIENCE_SECONDS,
    Header,
    NothingPublished,
    Patience,
    WeightPullError,
    WeightRing,
    complete_slots,
    ring_bytes,
)
from zorplex_rl.weights.shared_memory import SharedHandle, allocate_for

Pieces = dict[str, Tensor]
"""Views of shards by name; on both sides of a pair the names, their order and the shapes are the same."""


class ShardPublisher:
    """The source rank's side: a ring for every destination rank that wants something from it, ``slots`` times what it sends in all."""

    def __init__(self, model: nn.Module, plan: ModelPlan, rank: int, slots: int = 2) -> None:
        self._plan, self._rank = plan, rank
        self.rings: dict[int, WeightRing] = {}
        self.shared: dict[int, SharedHandle | None] = {}
        for destination, pieces in outgoing(plan, local_weights(model), rank).items():
            layout = Layout.of(pieces, alignment=1)
            memory, self.shared[destination] = allocate_for(model, ring_bytes(layout, slots))
            self.rings[destination] = WeightRing(pieces, slots, layout, memory)

    def publish(self, model: nn.Module, version: int) -> None:
        """Make this rank's shards the newest ones, as ``version``; all source ranks must, with the same version."""
        for destination, pieces in outgoing(self._plan, local_weights(model), self._rank).items():
            self.rings[destination].publish(pieces, version)


class ShardReader(Protocol):
    """Reads one ring, wherever it is. Raises WeightPullError if that is not possible."""

    layout: Layout

    async def read_headers(self) -> Tensor:
        """The headers, int64 [K, 2]."""

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        """Fill ``staging``, uint8 [layout.size]."""


class LocalReader:
    """Reads a ring of this process: what does not travel, if both ranks are here."""

    def __init__(self, ring: WeightRing) -> None:
        self.layout, self._ring = ring.layout, ring

    async def read_headers(self) -> Tensor:
        return self._ring.headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        staging.copy_(self._ring.slots[slot])


class ShardSubscriber:
    """The destination rank's side. ``staged`` is the version in the staging buffers, ``version`` the one in the model.

    ``patience`` is how many seconds a fetch waits for a version that all sources have.
    ``readers`` has one for every source rank that this rank wants something from; LayoutMismatch is raised if they follow another plan.
    """

    def __init__(self, readers: Mapping[int, ShardReader], model: nn.Module, plan: ModelPlan, rank: int) -> None:
        self.version = self.staged = NOTHING_PUBLISHED
        self.patience = PATIENCE_SECONDS
        self._model, self._plan, self._rank = model, plan, rank
        wanted = incoming(plan, local_weights(model), rank)
        if not wanted:
            raise ValueError(f"destination rank {rank} holds no part of any parameter; use a mesh with fewer ranks")
        self.readers = {source: readers[source] for source in wanted}
        for source, pieces in wanted.items():
            Layout.of(pieces, alignment=1).check(readers[source].layout)
        self._staging = {s: torch.zeros(r.layout.size, dtype=torch.uint8) for s, r in self.readers.items()}

    @property
    def parcel_bytes(self) -> int:
        """The bytes that a fetch reads, headers apart."""
        return sum(len(buffer) for buffer in self._staging.values())

    async def fetch(self) -> int:
        """Have the newest version that all sources have in the staging buffers, and return it. The model is not touched."""
        # Until the read has succeeded, the buffers hold no version at all.
        newer_than, self.staged = self.staged, NOTHING_PUBLISHED
        self.staged = await read_together(self.readers, self._staging, newer_than, patience=self.patience)
        return self.staged

    def install(self, version: int) -> None:
        """Copy the staging buffers, which must hold ``version``, into the model's shards."""
        if self.staged != version:
            raise WeightPullError(
                f"version {version} cannot be installed: version {self.staged} was fetched; fetch it again"
            )
        if version != self.version:
            for source, pieces in incoming(self._plan, local_weights(self._model), self._rank).items():
                self.readers[source].layout.unpack(self._staging[source], pieces)
            self.version = version


async def read_together(
    readers: Mapping[int, ShardReader],
    staging: Mapping[int, Tensor],
    newer_than: int = NOTHING_PUBLISHED,
    attempts: int = 100,
    patience: float = PATIENCE_SECONDS,
) -> int:
    """Fill every source's ``staging`` buffer with one and the same whole version, and return which: the newest that all sources have.

    Returns ``newer_than`` without a bulk read if there is nothing newer. Raises WeightPullError if in ``attempts`` rounds a parcel
    was always torn, and NothingPublished if for ``patience`` seconds the sources have no version in common.
    """
    waiting = Patience(patience)
    torn = 0
    while torn < attempts:
        headers = await _gather(reader.read_headers() for reader in readers.values())
        chosen = newest_common(headers)
        if chosen is None:
            if not await waiting.wait():
                raise NothingPublished(
                    f"there was no version that all {len(readers)} sources have whole for {patience:g} s; "
                    "have all of them publish the same versions"
                )
            continue
        version = chosen[0].version
        if version <= newer_than:
            return newer_than
        fence()
        await _gather(
            reader.read_slot(header.slot, staging[source])
            for (source, reader), header in zip(readers.items(), chosen, strict=True)
        )
        fence()
        again = await _gather(reader.read_headers() for reader in readers.values())
        if all(header in complete_slots(now) for header, now in zip(chosen, again, strict=True)):
            return version
        torn += 1
    raise WeightPullError(
        f"no whole version that all {len(readers)} sources have could be read in {attempts} attempts; the writers lap the reader: "
        "use more slots"
    )


async def pull_together(
    fetch: Callable[[], Awaitable[Sequence[int]]], install: Callable[[int], Awaitable[object]], attempts: int = 100
) -> int:
    """Bring all destination ranks to one version and return it. ``fetch`` and ``install`` call the subscriber's on every rank.

    A rank that has the newest version staged reads only headers when it fetches again, so the ranks that are behind catch up.
    """
    for _ in range(attempts):
        versions = set(await fetch())
        if len(versions) == 1:
            version = versions.pop()
            await install(version)
            return version
    raise WeightPullError(
        f"the destination ranks did not come to hold one version in {attempts} attempts; the source publishes faster than they read"
    )


def newest_common(headers: Sequence[Tensor]) -> list[Header] | None:
    """Each ring's slot of the newest version that is whole in all rings, or None if they have none in common.

    >>> ahead = torch.tensor([[4, 7], [2, 6]])          # 7 is complete, 6 still there
    >>> behind = torch.tensor([[3, 5], [2, 6]])         # 7 is being written over 5
    >>> newest_common([ahead, behind])
    [Header(slot=1, sequence=2, version=6), Header(slot=1, sequence=2, version=6)]
    """
    rings = [{header.version: header for header in complete_slots(ring)} for ring in headers]
    common = set.intersection(*map(set, rings))
    return [ring[max(common)] for ring in rings] if common else None


def outgoing(plan: ModelPlan, shards: Mapping[str, Tensor], source: int) -> dict[int, Pieces]:
    """The pieces of ``shards``, those of rank ``source``, that go to each destination rank."""
    parcels: dict[int, Pieces] = {}
    for name, moves in plan.moves.items():
        for index, move in enumerate(moves):
            if move.source == source:
                parcels.setdefault(move.destination, {})[f"{name}[{index}]"] = shards[name][move.source_slices]
    return parcels


def incoming(plan: ModelPlan, shards: Mapping[str, Tensor], destination: int) -> dict[int, Pieces]:
    """The pieces of ``shards``, those of rank ``destination``, that come from each source rank."""
    parcels: dict[int, Pieces] = {}
    for name, moves in plan.moves.items():
        for index, move in enumerate(moves):
            if move.destination == destination:
                parcels.setdefault(move.source, {})[f"{name}[{index}]"] = shards[name][move.destination_slices]
    return parcels


async def _gather(awaitables: Iterable[Awaitable]) -> list:
    """The results of all, or the first error; no read is left running that would write into a buffer later."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
