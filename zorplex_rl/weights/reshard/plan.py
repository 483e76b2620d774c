"""Plan a resharding: each destination rank fetches the pieces of its own shard, and nothing else,
from the ranks that hold them.

    trainer: rows over 2 ranks            generator: columns over 2 ranks

      rank 0   ┌───┬───┐                    rank 0    rank 1
               │ A │ B │     four moves     ┌───┐     ┌───┐
               ├───┼───┤   ─────────────►   │ A │     │ B │
      rank 1   │ C │ D │                    │ C │     │ D │
               └───┴───┘                    └───┘     └───┘

A shard is a box of the whole tensor (``sharding.py``). A move is the overlap of a source rank's box
with a destination rank's box.

    minimum               the bytes of every destination rank's shard, each element fetched once, minus what its own location already holds
    gather, then scatter  source rank 0 collects the tensor and sends every destination rank its shard

``plan`` moves exactly the minimum. Only bytes between different locations count. A location is a
process; or a host, if transfers within a host should count as free. Without locations, every rank
counts as having its own. Destination ranks do not forward to each other: if two of them want the
same element, it counts twice. If several source ranks hold the same box, the plan takes one at the
destination's location, else the one that has sent the least so far, so that replicas share the
work.

Example: DTensor puts 3 and 2 of five rows of two float32 on two ranks. The rows become columns. The
rank that gets the second column is in the process that holds the three rows:

>>> from torch.distributed.tensor import Shard
>>> rows, columns = Sharding((2,), (Shard(0),)), Sharding((2,), (Shard(1),))
>>> locations = Locations(source=("a", "b"), destination=("c", "a"))
>>> moves = plan((5, 2), rows, columns, itemsize=4, locations=locations)
>>> [(move.source, move.destination, move.bytes, move.travels) for move in moves]
[(0, 0, 12, True), (1, 0, 8, True), (0, 1, 12, False), (1, 1, 8, True)]
>>> moves[1].source_slices, moves[1].destination_slices
((slice(0, 2, None), slice(0, 1, None)), (slice(3, 5, None), slice(0, 1, None)))
>>> bytes_moved(moves), gather_then_scatter_bytes((5, 2), rows, columns, itemsize=4, locations=locations)
(28, 36)
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from zorplex_rl.weights.reshard.sharding import Box, Sharding, Slices, local_boxes, local_shape


@dataclass(frozen=True, slots=True)
class Move:
    """One piece to copy: ``source_slices`` of the source rank's shard become ``destination_slices``
    of the destination rank's.

    ``travels`` is False if both ranks are at the same location: then nothing is sent.
    """

    source: int
    destination: int
    source_slices: Slices
    destination_slices: Slices
    bytes: int
    travels: bool = True


@dataclass(frozen=True, slots=True)
class Locations:
    """The location of each source rank and each destination rank: the name of its process or
    host."""

    source: Sequence[Hashable]
    destination: Sequence[Hashable]


def plan(
    shape: Sequence[int],
    source: Sharding,
    destination: Sharding,
    itemsize: int,
    locations: Locations | None = None,
    sent: list[int] | None = None,
) -> tuple[Move, ...]:
    """Return the moves that fill every destination rank's shard of a tensor of ``shape`` with
    elements of ``itemsize`` bytes.

    ``sent`` counts the bytes that each source rank sends, and this call adds to it: pass the same
    list for all tensors of a model. Equal arguments give equal plans, so every rank can compute the
    plan itself.
    """
    sent = [0] * source.ranks if sent is None else sent
    holders = _holders(shape, source)
    moves = []
    for rank in range(destination.ranks):
        for wanted in local_boxes(shape, destination, rank):
            for boxes, ranks in holders.items():
                found = [(box, common) for box in boxes if (common := box.overlap(wanted))]
                if not found:
                    continue
                near = [holder for holder in ranks if _same_location(locations, holder, rank)]
                holder = near[0] if near else min(ranks, key=lambda holder: sent[holder])
                for box, common in found:
                    size = math.prod(common[1]) * itemsize
                    moves.append(Move(holder, rank, box.slices(*common), wanted.slices(*common), size, not near))
                    sent[holder] += 0 if near else size
    return tuple(moves)


def bytes_moved(moves: Iterable[Move]) -> int:
    """Return the bytes of those ``moves`` that travel."""
    return sum(move.bytes for move in moves if move.travels)


def minimum_bytes(
    shape: Sequence[int], source: Sharding, destination: Sharding, itemsize: int, locations: Locations | None = None
) -> int:
    """Return the fewest bytes that can travel: what each destination rank wants and its location
    does not hold."""
    holders = _holders(shape, source)
    elements = 0
    for rank in range(destination.ranks):
        held = [
            box
            for boxes, ranks in holders.items()
            if any(_same_location(locations, r, rank) for r in ranks)
            for box in boxes
        ]
        for wanted in local_boxes(shape, destination, rank):
            common = (wanted.overlap(box) for box in held)
            elements += wanted.elements - sum(math.prod(found[1]) for found in common if found)
    return elements * itemsize


def gather_then_scatter_bytes(
    shape: Sequence[int], source: Sharding, destination: Sharding, itemsize: int, locations: Locations | None = None
) -> int:
    """Return the bytes that travel if source rank 0 gathers the tensor and then sends every
    destination rank its shard."""
    root = locations.source[0] if locations else None
    held = sum(
        sum(box.elements for box in boxes)
        for boxes, ranks in _holders(shape, source).items()
        if 0 in ranks or (locations and any(locations.source[rank] == root for rank in ranks))
    )
    scattered = sum(
        math.prod(local_shape(shape, destination, rank))
        for rank in range(destination.ranks)
        if locations is None or locations.destination[rank] != root
    )
    return (math.prod(shape) - held + scattered) * itemsize


def _holders(shape: Sequence[int], sharding: Sharding) -> dict[tuple[Box, ...], list[int]]:
    """Return the ranks that hold each set of boxes. Two ranks hold either the same set (replicas)
    or disjoint ones."""
    holders: dict[tuple[Box, ...], list[int]] = {}
    for rank in range(sharding.ranks):
        if boxes := local_boxes(shape, sharding, rank):
            holders.setdefault(boxes, []).append(rank)
    return holders


def _same_location(locations: Locations | None, source: int, destination: int) -> bool:
    return locations is not None and locations.source[source] == locations.destination[destination]
