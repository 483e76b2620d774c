"""Carry out a resharding plan: each source rank publishes one weight ring for each destination rank
that needs something from it.

    trainer                          generator
    rank 0   ring for 0 ──────────►  from 0 ┐
             ring for 1 ───┐ ┌────►  from 1 ┴ staged, of one version? ───► shards of rank 0
    rank 1   ring for 0 ───┼─┘
             ring for 1 ─┐ └──────►  from 0 ┐
                         └────────►  from 1 ┴ staged, of one version? ───► shards of rank 1

A slot of such a ring holds all pieces, of all parameters, that one source rank sends to one
destination rank, without gaps. So a pull is one large read for each pair of ranks, instead of one
for each run of consecutive bytes, and reads not a byte more than the plan says. The ring's headers
reveal a torn read (``ring.py``).

A pull must not mix versions:

    within a shard      A subscriber reads the newest version that *all* its source ranks still have. All ranks take part in a training
                        step, so no rank publishes v + 1 before all have published v. The first rank to publish v + 1 still has v in its
                        other slot. So 2 slots are enough: after the first publication there is always a common version.
    across the shards   ``fetch`` only fills staging buffers. ``pull_together`` repeats it on all destination ranks until they hold the
                        same version, and only then calls ``install`` on each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import Layout
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, local_weights
from zorplex_rl.weights.ring import (
    NOTHING_PUBLISHED,
    READ_TIMEOUT,
    Backoff,
    Header,
    NothingPublished,
    Reader,
    WeightRing,
    complete_slots,
    ring_bytes,
)
from zorplex_rl.weights.shared_memory import SharedHandle, allocate_for

Pieces = dict[str, Tensor]
"""Views of shards by name. Names, order and shapes are the same on both sides of a transfer."""


class ShardPublisher:
    """Publishes the shards of one source rank: one ring of ``slots`` slots for each destination
    rank that needs a piece of them.

    If ``dtype`` is given, floating-point weights travel as that type; then subscribers need the
    same.
    """

    def __init__(
        self, model: nn.Module, plan: ModelPlan, rank: int, slots: int = 2, dtype: torch.dtype | None = None
    ) -> None:
        self._plan, self._rank = plan, rank
        self.rings: dict[int, WeightRing] = {}
        self.shared: dict[int, SharedHandle | None] = {}
        for destination, pieces in outgoing(plan, local_weights(model), rank).items():
            layout = Layout.of(pieces, dtype, alignment=1)
            memory, self.shared[destination] = allocate_for(model, ring_bytes(layout, slots))
            self.rings[destination] = WeightRing(pieces, slots, layout, memory)

    def publish(self, model: nn.Module, version: int) -> None:
        """Publish this rank's shards as ``version``. Every source rank must publish the same
        version."""
        for destination, pieces in outgoing(self._plan, local_weights(model), self._rank).items():
            self.rings[destination].publish(pieces, version)


class LocalReader:
    """Reads a ring of this process, where the source rank and the destination rank are the same
    process."""

    def __init__(self, ring: WeightRing) -> None:
        self.layout, self._ring = ring.layout, ring

    async def read_headers(self) -> Tensor:
        return self._ring.headers.clone()

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        staging.copy_(self._ring.slots[slot])


class ShardSubscriber:
    """Pulls the shards of one destination rank. ``staged`` is the version in the staging buffers,
    ``version`` the one in the model.

    ``readers`` holds a reader for each source rank that this rank needs a piece from. ``timeout``
    is how many seconds a fetch waits for a version that all sources have. Raises LayoutMismatch if
    the readers follow another plan, ValueError if this rank holds no part of any parameter.
    """

    def __init__(
        self,
        readers: Mapping[int, Reader],
        model: nn.Module,
        plan: ModelPlan,
        rank: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.version = self.staged = NOTHING_PUBLISHED
        self.timeout = READ_TIMEOUT
        self._model, self._plan, self._rank = model, plan, rank
        wanted = incoming(plan, local_weights(model), rank)
        if not wanted:
            raise ValueError(f"destination rank {rank} holds no part of any parameter; use a mesh with fewer ranks")
        self.readers = {source: readers[source] for source in wanted}
        for source, pieces in wanted.items():
            Layout.of(pieces, dtype, alignment=1).check(readers[source].layout)
        self._staging = {s: torch.zeros(r.layout.size, dtype=torch.uint8) for s, r in self.readers.items()}

    @property
    def transfer_bytes(self) -> int:
        """Bytes that one fetch reads, without headers."""
        return sum(len(buffer) for buffer in self._staging.values())

    async def fetch(self) -> int:
        """Read the newest version that all sources have into the staging buffers. Returns that
        version. Does not change the model."""
        # Until the read has succeeded, the buffers hold no whole version.
        newer_than, self.staged = self.staged, NOTHING_PUBLISHED
        self.staged = await read_together(self.readers, self._staging, newer_than, timeout=self.timeout)
        return self.staged

    def install(self, version: int) -> None:
        """Copy the staging buffers into the model's shards. Raises WeightPullError if they do not
        hold ``version``."""
        if self.staged != version:
            raise WeightPullError(
                f"version {version} cannot be installed: version {self.staged} was fetched; fetch it again"
            )
        if version != self.version:
            for source, pieces in incoming(self._plan, local_weights(self._model), self._rank).items():
                self.readers[source].layout.unpack(self._staging[source], pieces)
            self.version = version


async def read_together(
    readers: Mapping[int, Reader],
    staging: Mapping[int, Tensor],
    newer_than: int = NOTHING_PUBLISHED,
    attempts: int = 100,
    timeout: float = READ_TIMEOUT,
) -> int:
    """Fill the ``staging`` buffers of all sources with the newest version that all of them have.
    Returns that version.

    Returns ``newer_than`` without a bulk read if there is nothing newer. Raises WeightPullError
    after ``attempts`` rounds with a torn read, and NothingPublished if the sources have no version
    in common for ``timeout`` seconds.
    """
    waiting = Backoff(timeout)
    torn = 0
    while torn < attempts:
        headers = await _gather(reader.read_headers() for reader in readers.values())
        chosen = newest_common(headers)
        if chosen is None:
            if not await waiting.wait():
                raise NothingPublished(
                    f"there was no version that all {len(readers)} sources have whole for {timeout:g} s; "
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
    """Install the same version on all destination ranks. Returns that version.

    ``fetch`` and ``install`` call the methods of ``ShardSubscriber`` on every rank. A rank that has
    already staged the newest version reads only headers when it fetches again, so the ranks that
    are behind catch up. Raises WeightPullError if they do not within ``attempts`` rounds.
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
    """Return each ring's slot with the newest version that is complete in all rings, or None if
    they have none in common.

    >>> ahead = torch.tensor([[4, 7], [2, 6]])          # 7 is complete, 6 still there
    >>> behind = torch.tensor([[3, 5], [2, 6]])         # 7 is being written over 5
    >>> newest_common([ahead, behind])
    [Header(slot=1, sequence=2, version=6), Header(slot=1, sequence=2, version=6)]
    """
    rings = [{header.version: header for header in complete_slots(ring)} for ring in headers]
    common = set.intersection(*map(set, rings))
    return [ring[max(common)] for ring in rings] if common else None


def outgoing(plan: ModelPlan, shards: Mapping[str, Tensor], source: int) -> dict[int, Pieces]:
    """Return the pieces of rank ``source``'s ``shards`` that go to each destination rank."""
    pieces: dict[int, Pieces] = {}
    for name, moves in plan.moves.items():
        for index, move in enumerate(moves):
            if move.source == source:
                pieces.setdefault(move.destination, {})[f"{name}[{index}]"] = shards[name][move.source_slices]
    return pieces


def incoming(plan: ModelPlan, shards: Mapping[str, Tensor], destination: int) -> dict[int, Pieces]:
    """Return the pieces of rank ``destination``'s ``shards`` that come from each source rank."""
    pieces: dict[int, Pieces] = {}
    for name, moves in plan.moves.items():
        for index, move in enumerate(moves):
            if move.destination == destination:
                pieces.setdefault(move.source, {})[f"{name}[{index}]"] = shards[name][move.destination_slices]
    return pieces


async def _gather(awaitables: Iterable[Awaitable]) -> list:
    """Wait for all ``awaitables``, then return their results or raise the first error.

    No read is still running after that: it would write into a buffer later.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
