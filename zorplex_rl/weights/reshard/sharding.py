"""Compute which part of a tensor each rank of a mesh holds, by the rules of DTensor.

    7 rows on 2 × 2 ranks: who holds what

                (Shard(0), Shard(1))     (Shard(0), Shard(0))     (_StridedShard(0, sf=2), Shard(0))
                     ┌───┬───┐                ┌───────┐                     ┌───────┐
    rows 0 and 1     │   │   │                │   0   │                     │   0   │
    rows 2 and 3     │ 0 │ 1 │                │   1   │                     │   2   │
                     ├───┼───┤                ├───────┤                     ├───────┤
    rows 4 and 5     │   │   │                │   2   │                     │   1   │
    row 6            │ 2 │ 3 │                │   3   │                     │   3   │
                     └───┴───┘                └───────┘                     └───────┘

Placements apply from left to right: the second one cuts the parts that the first one made. Sizes
are rounded up, so later ranks may hold less than earlier ones, or nothing. ``_StridedShard`` cuts
in the other order: ``fully_shard`` makes it when tensor parallelism has already cut the same
dimension. Ranks are numbered in row-major order: the last dimension of the mesh counts fastest.

>>> [local_shape((5, 8), Sharding((4,), (Shard(0),)), rank) for rank in range(4)]
[(2, 8), (2, 8), (1, 8), (0, 8)]
>>> local_boxes((7, 8), Sharding((2, 2), (Shard(0), Shard(1))), rank=3)
(Box(offsets=(4, 4), sizes=(3, 4), start=(0, 0)),)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is sharded over a mesh: one DTensor placement for each mesh dimension, applied
    from left to right.

    Raises ValueError for a placement, like ``Partial``, that does not say which elements a rank
    holds.
    """

    mesh_shape: tuple[int, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        if len(self.placements) != len(self.mesh_shape):
            raise ValueError(
                f"{len(self.placements)} placement(s) for a mesh of {len(self.mesh_shape)} dimension(s); give one for each"
            )
        for placement in self.placements:
            if not isinstance(placement, (Replicate, Shard, _StridedShard)):
                raise ValueError(
                    f"a tensor with placement {placement!r} cannot be resharded, because no rank holds final values of a part of it; "
                    "redistribute it to Shard or Replicate first"
                )

    @property
    def ranks(self) -> int:
        """Number of ranks in the mesh."""
        return math.prod(self.mesh_shape)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Return the mesh coordinate of ``rank``. The last dimension counts fastest."""
        return tuple(map(int, np.unravel_index(rank, self.mesh_shape)))


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: its ``offsets`` in the whole tensor, its ``sizes``, and its ``start`` in
    the shard that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def slices(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Slices:
        """Return where a part of this box is in its shard; ``offsets`` are those of the part in the
        whole tensor."""
        inside = (at - offset + start for at, offset, start in zip(offsets, self.offsets, self.start, strict=True))
        return tuple(slice(first, first + size) for first, size in zip(inside, sizes, strict=True))

    def overlap(self, other: Self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the offsets and sizes of what both boxes contain, or None if they do not
        overlap."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
        return (offsets, sizes) if all(size > 0 for size in sizes) else None

    def _ends(self) -> Iterable[int]:
        return (offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


def local_shape(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[int, ...]:
    """Return the shape of ``rank``'s shard of a tensor of ``shape``."""
    return tuple(map(len, _indices(shape, sharding, rank)))


def local_boxes(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[Box, ...]:
    """Return the boxes that ``rank`` holds of a tensor of ``shape``.

    That is one box, none if its shard is empty, or several if its indices are not consecutive.
    """
    runs = []
    for indices in _indices(shape, sharding, rank):
        starts = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist()] if len(indices) else []
        ends = [*starts[1:], len(indices)]
        runs.append([(int(indices[start]), end - start, start) for start, end in zip(starts, ends, strict=False)])
    return tuple(Box(*zip(*block, strict=True)) if block else Box((), (), ()) for block in product(*runs))


def _indices(shape: Sequence[int], sharding: Sharding, rank: int) -> list[np.ndarray]:
    """Return the indices that ``rank`` holds in each dimension, in the order of its shard."""
    held = [np.arange(size) for size in shape]
    for placement, count, index in zip(
        sharding.placements, sharding.mesh_shape, sharding.coordinate(rank), strict=True
    ):
        if isinstance(placement, Replicate):
            continue
        dim: int = placement.dim  # type: ignore[attr-defined]  # every placement but Replicate and Partial has it
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"{placement} shards dimension {dim} of a tensor of shape {tuple(shape)}")
        # A strided shard is cut into split_factor parts first, and a rank gets its share of every
        # part.
        parts = getattr(placement, "split_factor", 1)
        held[dim] = np.concatenate([_chunk(_chunk(held[dim], parts, part), count, index) for part in range(parts)])
    return held


def _chunk(indices: np.ndarray, count: int, number: int) -> np.ndarray:
    """Return chunk ``number`` of ``indices`` that are split into ``count`` chunks, as
    ``torch.chunk`` does. It may be empty."""
    step = -(-len(indices) // count)
    return indices[step * number : step * (number + 1)]
