"""Plan a resharding: each destination rank fetches the pieces of its shard, and nothing else, from the
ranks that hold them.

    trainer: rows over 2 ranks            generator: columns over 2 ranks

      rank 0   ┌───┬───┐                    rank 0    rank 1
               │ A │ B │     four moves     ┌───┐     ┌───┐
               ├───┼───┤   ─────────────►   │ A │     │ B │
      rank 1   │ C │ D │                    │ C │     │ D │
               └───┴───┘                    └───┘     └───┘

A shard is a box of the whole tensor. A move is the overlap of a source rank's box with a destination
rank's. So every element of a destination rank's shard is fetched once. That is the minimum, since
destination ranks do not forward to each other. If several source ranks hold the same box, the one
that has sent the least so far sends it, so replicas share the work.

Placements are those of DTensor and apply from left to right: the second one cuts the parts that the
first one made. Sizes are rounded up, so later ranks may hold less, or nothing. ``_StridedShard`` cuts
in the other order; ``fully_shard`` makes it if tensor parallelism has already cut the same dimension.
Ranks are numbered in row-major order.

Example: DTensor puts 3 and 2 of five rows of two float32 on two ranks. The rows become columns:

>>> rows, columns = Sharding((2,), (Shard(0),)), Sharding((2,), (Shard(1),))
>>> local_box((5, 2), rows, rank=1)
Box(offsets=(3, 0), ends=(5, 2))
>>> moves = plan((5, 2), rows, columns, itemsize=4, sent=[0, 0])
>>> [(move.source, move.destination, move.bytes) for move in moves]
[(0, 0, 12), (1, 0, 8), (0, 1, 12), (1, 1, 8)]
>>> moves[1].source_slices, moves[1].destination_slices
((slice(0, 2, None), slice(0, 1, None)), (slice(3, 5, None), slice(0, 1, None)))
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.distributed.tensor import Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is sharded over a mesh: a DTensor placement for each dimension of the mesh."""

    mesh_shape: tuple[int, ...]
    placements: tuple[Placement, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks in the mesh."""
        return math.prod(self.mesh_shape)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Return the mesh coordinate of ``rank``. The last dimension counts fastest."""
        return tuple(map(int, np.unravel_index(rank, self.mesh_shape)))


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: in each dimension the first index and the end. It may be empty."""

    offsets: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size in each dimension."""
        return tuple(end - offset for offset, end in zip(self.offsets, self.ends, strict=True))

    def overlap(self, other: "Box") -> "Box":
        """Return what both boxes contain, which may be empty."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self.ends, other.ends)
        # The end of an empty overlap is its offset.
        ends = map(max, offsets, ends)
        return Box(offsets, tuple(ends))

    def slices_of(self, part: "Box") -> tuple[slice, ...]:
        """Return where ``part`` is in the shard that holds this box."""
        slices = []
        for first, end, offset in zip(part.offsets, part.ends, self.offsets, strict=True):
            slices.append(slice(first - offset, end - offset))
        return tuple(slices)


@dataclass(frozen=True, slots=True)
class Move:
    """One piece to copy, from ``source_slices`` of the source rank's shard to ``destination_slices`` of the
    destination rank's."""

    source: int
    destination: int
    source_slices: tuple[slice, ...]
    destination_slices: tuple[slice, ...]
    bytes: int


def plan(
    shape: Sequence[int],
    source: Sharding,
    destination: Sharding,
    itemsize: int,
    sent: list[int],
) -> tuple[Move, ...]:
    """Return the moves that fill every destination rank's shard of a tensor of ``shape``, with
    elements of ``itemsize`` bytes.

    ``sent`` counts the bytes that each source rank sends, and this call adds to it: pass the same
    list for all tensors of a model. Equal arguments give equal plans, so every rank can compute the
    plan itself.
    """
    holders: dict[Box, list[int]] = {}
    for rank in range(source.ranks):
        holders.setdefault(local_box(shape, source, rank), []).append(rank)
    moves = []
    for rank in range(destination.ranks):
        wanted = local_box(shape, destination, rank)
        for held, ranks in holders.items():
            part = held.overlap(wanted)
            size = itemsize * math.prod(part.sizes)
            if size == 0:
                continue
            sender = min(ranks, key=sent.__getitem__)
            sent[sender] += size
            move = Move(
                source=sender,
                destination=rank,
                source_slices=held.slices_of(part),
                destination_slices=wanted.slices_of(part),
                bytes=size,
            )
            moves.append(move)
    return tuple(moves)


def local_box(
    shape: Sequence[int],
    sharding: Sharding,
    rank: int,
) -> Box:
    """Return the box that ``rank`` holds of a tensor of ``shape``. Raises ValueError if its indices
    are not consecutive; FSDP and tensor parallelism make no such shards."""
    held: list[Sequence[int]] = [range(size) for size in shape]
    for placement, ranks, place in zip(
        sharding.placements, sharding.mesh_shape, sharding.coordinate(rank), strict=True
    ):
        if isinstance(placement, _StridedShard):
            # It is cut into split_factor parts first, and a rank gets its share of each.
            factor = int(placement.split_factor)
            shares: list[int] = []
            for number in range(factor):
                part = _chunk(held[placement.dim], factor, number)
                shares += _chunk(part, ranks, place)
            held[placement.dim] = shares
        elif isinstance(placement, Shard):
            held[placement.dim] = _chunk(held[placement.dim], ranks, place)
    offsets = tuple(indices[0] if indices else 0 for indices in held)
    ends = tuple(indices[-1] + 1 if indices else 0 for indices in held)
    box = Box(offsets, ends)
    if box.sizes != tuple(map(len, held)):
        raise ValueError(f"{sharding} cuts a tensor of shape {tuple(shape)} into shards with gaps")
    return box


def _chunk(
    indices: Sequence[int],
    count: int,
    number: int,
) -> Sequence[int]:
    """Return chunk ``number`` of ``count``, like ``torch.chunk``. It may be empty."""
    step = -(-len(indices) // count)
    return indices[step * number : step * (number + 1)]
