"""Which part of a tensor each rank of a mesh holds, as DTensor cuts it.

    7 rows on 2 × 2 ranks: who holds what

                (Shard(0), Shard(1))     (Shard(0), Shard(0))     (_StridedShard(0, sf=2), Shard(0))
                     ┌───┬───┐                ┌───────┐                     ┌───────┐
    rows 0 and 1     │   │   │                │   0   │                     │   0   │
    rows 2 and 3     │ 0 │ 1 │                │   1   │                     │   2   │
                     ├───┼───┤                ├───────┤                     ├───────┤
    rows 4 and 5     │   │   │                │   2   │                     │   1   │
    row 6            │ 2 │ 3 │                │   3   │                     │   3   │
                     └───┴───┘                └───────┘                     └───────┘

Placements are applied from left to right, and a part that is sharded again is cut again. Sizes are rounded up, so later ranks may hold less
than earlier ones, or nothing. The strided kind, which fully_shard makes of a tensor that tensor parallelism has cut along the same dimension
already, cuts in the other order. Ranks count through their own mesh, the last dimension fastest.

>>> [local_shape((5, 8), Sharding((4,), (Shard(0),)), rank) for rank in range(4)]
[(2, 8), (2, 8), (1, 8), (0, 8)]
>>> local_boxes((7, 8), Sharding((2, 2), (Shard(0), Shard(1))), rank=3)
(Box(offsets=(4, 4), sizes=(3, 4), start=(0, 0)),)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

Slices = tuple[slice, ...]
Run = tuple[int, int]
"""Neighbouring indices of one dimension: the first, and how many."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh: one DTensor placement for each dimension of the mesh, applied from left to right.

    Raises ValueError for a placement that does not say which elements a rank holds, as ``Partial`` does not.
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
        return math.prod(self.mesh_shape)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Where ``rank`` stands in the mesh; the last dimension counts fastest."""
        reversed_coordinate = []
        for size in reversed(self.mesh_shape):
            rank, index = divmod(rank, size)
            reversed_coordinate.append(index)
        return tuple(reversed(reversed_coordinate))


@dataclass(frozen=True, slots=True)
class Box:
    """A block of the whole tensor at ``offsets``, and the ``start`` at which it stands in its holder's shard."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def slices(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Slices:
        """Where the part of this box that is at ``offsets`` of the whole tensor stands in the holder's shard."""
        inside = (at - offset + start for at, offset, start in zip(offsets, self.offsets, self.start, strict=True))
        return tuple(slice(first, first + size) for first, size in zip(inside, sizes, strict=True))

    def overlap(self, other: Box) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Offsets and sizes of what is in both boxes, or None if nothing is."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self._ends(), other._ends())
        sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
        return (offsets, sizes) if all(size > 0 for size in sizes) else None

    def _ends(self) -> Iterable[int]:
        return (offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


def local_shape(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[int, ...]:
    """The shape of ``rank``'s shard of a tensor of ``shape``."""
    return tuple(sum(size for _, size in runs) for runs in _runs(shape, sharding, rank))


def local_boxes(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[Box, ...]:
    """What ``rank`` holds of a tensor of ``shape``: one box, none if its shard is empty, several if its indices are not neighbours."""
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
    """For each dimension, the indices that ``rank`` holds, in the order of its shard."""
    dimensions = [[(0, size)] if size else [] for size in shape]
    for placement, count, index in zip(
        sharding.placements, sharding.mesh_shape, sharding.coordinate(rank), strict=True
    ):
        if isinstance(placement, Replicate):
            continue
        if not -len(shape) <= placement.dim < len(shape):
            raise ValueError(f"{placement} shards dimension {placement.dim} of a tensor of shape {tuple(shape)}")
        runs = dimensions[placement.dim]
        # A strided shard is cut into split_factor parts first, and a rank gets its share of every part.
        parts = getattr(placement, "split_factor", 1)
        total = sum(size for _, size in runs)
        shares = []
        for part in range(parts):
            first, size = _chunk(total, parts, part)
            offset, share = _chunk(size, count, index)
            shares.append((first + offset, share))
        dimensions[placement.dim] = _select(runs, shares)
    return dimensions


def _chunk(size: int, count: int, index: int) -> Run:
    """The part of ``size`` indices that ``torch.chunk`` into ``count`` puts at ``index``; it may be empty."""
    step = -(-size // count)
    first = min(size, step * index)
    return first, min(size, first + step) - first


def _select(runs: list[Run], shares: list[Run]) -> list[Run]:
    """The indices at the positions ``shares`` of what ``runs`` list; neighbours are joined."""
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
    """The position at which each of ``runs`` begins."""
    return list(accumulate((size for _, size in runs[:-1]), initial=0)) if runs else []
