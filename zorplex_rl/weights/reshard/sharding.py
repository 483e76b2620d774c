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

Placements apply from left to right: the second one cuts the parts that the first one made. Sizes are rounded up, so later ranks may hold less
than earlier ones, or nothing. ``_StridedShard`` cuts in the other order: ``fully_shard`` makes it when tensor parallelism has already cut the
same dimension. Ranks are numbered in row-major order: the last dimension of the mesh counts fastest.

>>> [local_shape((5, 8), Sharding((4,), (Shard(0),)), rank) for rank in range(4)]
[(2, 8), (2, 8), (1, 8), (0, 8)]
>>> local_boxes((7, 8), Sharding((2, 2), (Shard(0), Shard(1))), rank=3)
(Box(offsets=(4, 4), sizes=(3, 4), start=(0, 0)),)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Self

import numpy as np
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

Slices = tuple[slice, ...]
Run = tuple[int, int]
"""Consecutive indices of one dimension: the first index and their number."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is sharded over a mesh: one DTensor placement for each mesh dimension, applied from left to right.

    Raises ValueError for a placement, like ``Partial``, that does not say which elements a rank holds.
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
    """A block of a tensor: its ``offsets`` in the whole tensor, its ``sizes``, and its ``start`` in the shard that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def slices(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Slices:
        """Return where a part of this box is in its shard; ``offsets`` are those of the part in the whole tensor."""
        inside = (at - offset + start for at, offset, start in zip(offsets, self.offsets, self.start, strict=True))
        return tuple(slice(first, first + size) for first, size in zip(inside, sizes, strict=True))

    def overlap(self, other: Self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the offsets and sizes of what both boxes contain, or None if they do not overlap."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
        return (offsets, sizes) if all(size > 0 for size in sizes) else None

    def _ends(self) -> Iterable[int]:
        return (offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


def local_shape(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[int, ...]:
    """Return the shape of ``rank``'s shard of a tensor of ``shape``."""
    return tuple(sum(size for _, size in runs) for runs in _runs(shape, sharding, rank))


def local_boxes(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[Box, ...]:
    """Return the boxes that ``rank`` holds of a tensor of ``shape``.

    That is one box, none if its shard is empty, or several if its indices are not consecutive.
    """
    boxes = []
    placed = [
        [(offset, size, start) for (offset, size), start in zip(runs, _starts(runs), strict=True)]
        for runs in _runs(shape, sharding, rank)
    ]
    for block in product(*placed):
        offsets, sizes, start = zip(*block, strict=True) if block else ((), (), ())
        boxes.append(Box(offsets, sizes, start))
    return tuple(boxes)


def _runs(shape: Sequence[int], sharding: Sharding, rank: int) -> list[list[Run]]:
    """Return the indices that ``rank`` holds in each dimension, in the order of its shard."""
    dimensions = [[(0, size)] if size else [] for size in shape]
    for placement, count, index in zip(
        sharding.placements, sharding.mesh_shape, sharding.coordinate(rank), strict=True
    ):
        if isinstance(placement, Replicate):
            continue
        dim: int = placement.dim  # type: ignore[attr-defined]  # every placement but Replicate and Partial has it
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"{placement} shards dimension {dim} of a tensor of shape {tuple(shape)}")
        runs = dimensions[dim]
        # A strided shard is cut into split_factor parts first, and a rank gets its share of every part.
        parts = getattr(placement, "split_factor", 1)
        total = sum(size for _, size in runs)
        shares = []
        for part in range(parts):
            first, size = _chunk(total, parts, part)
            offset, share = _chunk(size, count, index)
            shares.append((first + offset, share))
        dimensions[dim] = _select(runs, shares)
    return dimensions


def _chunk(size: int, count: int, index: int) -> Run:
    """Return chunk ``index`` of ``size`` indices that are split into ``count`` chunks, as ``torch.chunk`` does. It may be empty."""
    step = -(-size // count)
    first = min(size, step * index)
    return first, min(size, first + step) - first


def _select(runs: list[Run], shares: list[Run]) -> list[Run]:
    """Return the indices at the positions ``shares`` of those that ``runs`` list. Consecutive runs are joined."""
    selected: list[Run] = []
    for first, count in shares:
        for (offset, size), start in zip(runs, _starts(runs), strict=True):
            low, high = max(first, start), min(first + count, start + size)
            if low >= high:
                continue
            begin, length = offset + low - start, high - low
            if selected and sum(selected[-1]) == begin:
                begin, length = selected[-1][0], selected.pop()[1] + length
            selected.append((begin, length))
    return selected


def _starts(runs: list[Run]) -> list[int]:
    """Return the position at which each of ``runs`` begins."""
    return list(accumulate((size for _, size in runs[:-1]), initial=0)) if runs else []
