"""Resharding on paper: shards are cut as DTensor cuts them, and a plan fills every destination
shard with the fewest bytes there can be."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from zorplex_rl.weights.reshard.plan import Box, Sharding, local_box, plan

ITEMSIZE = 2
ROWS, COLUMNS, EVERYWHERE = Shard(0), Shard(1), Replicate()


@st.composite
def shapes(draw) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, 9), max_size=3)))


@st.composite
def shardings(
    draw, shape: tuple[int, ...], mesh_shape: tuple[int, ...] | None = None, gaps=False
) -> Sharding:
    """One whose shards are boxes, or with ``gaps`` any."""
    if mesh_shape is None:
        meshes = st.lists(st.integers(1, 4), min_size=1, max_size=2)
        mesh_shape = draw(meshes.filter(lambda mesh: math.prod(mesh) <= 8))
    kinds = [st.just(EVERYWHERE)]
    if shape:
        dims = st.integers(0, len(shape) - 1)
        kinds += [
            st.builds(Shard, dims),
            st.builds(_StridedShard, dims, split_factor=st.integers(1, 3)),
        ]
    placements = draw(st.tuples(*[st.one_of(kinds)] * len(mesh_shape)))
    sharding = Sharding(tuple(mesh_shape), placements)
    assume(gaps or None not in (box_of(shape, sharding, rank) for rank in range(sharding.ranks)))
    return sharding


def box_of(shape, sharding, rank) -> Box | None:
    try:
        return local_box(shape, sharding, rank)
    except ValueError:
        return None


@st.composite
def reshardings(draw) -> tuple[tuple[int, ...], Sharding, Sharding]:
    shape = draw(shapes())
    return shape, draw(shardings(shape)), draw(shardings(shape))


def numbered(shape):
    """A tensor whose every element is its own number."""
    return torch.arange(math.prod(shape)).reshape(shape)


def cut(tensor, sharding, rank):
    """``rank``'s shard of ``tensor``, by the code with which DTensor cuts it."""
    for dimension, placement in enumerate(sharding.placements):
        if placement != EVERYWHERE:
            parts, _ = placement._split_tensor(
                tensor, sharding.mesh_shape[dimension], with_padding=False
            )
            tensor = parts[sharding.coordinate(rank)[dimension]]
    return tensor


def check(shape, source, destination):
    """``plan`` fills every shard, writes no element twice, and moves the minimum."""
    moves = plan(shape, source, destination, ITEMSIZE, [0] * source.ranks)
    shards = [cut(numbered(shape), source, rank) for rank in range(source.ranks)]
    expected = [cut(numbered(shape), destination, rank) for rank in range(destination.ranks)]
    targets = [torch.full(shard.shape, -1) for shard in expected]
    writes = [torch.zeros_like(target) for target in targets]
    for move in moves:
        piece = shards[move.source][move.source_slices]
        assert move.bytes == piece.numel() * ITEMSIZE
        targets[move.destination][move.destination_slices] = piece
        writes[move.destination][move.destination_slices] += 1
    assert all(map(torch.equal, targets, expected))
    assert all((written == 1).all() for written in writes)
    assert sum(move.bytes for move in moves) == sum(shard.numel() for shard in expected) * ITEMSIZE


@given(st.data())
def test_a_shard_is_the_box_that_dtensor_cuts_if_that_is_one(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, gaps=True))
    for rank in range(sharding.ranks):
        expected = cut(numbered(shape), sharding, rank)
        sizes, offsets = _compute_local_shape_and_global_offset(
            shape, sharding.mesh_shape, list(sharding.coordinate(rank)), sharding.placements
        )
        box = box_of(shape, sharding, rank)
        if box is None:
            block = numbered(shape)[
                tuple(map(slice, offsets, map(sum, zip(offsets, sizes, strict=True))))
            ]
            assert not expected.numel() or not torch.equal(block, expected)
        else:
            block = tuple(map(slice, box.offsets, box.ends))
            assert torch.equal(numbered(shape)[block], expected)
            assert sizes == box.sizes and (0 in sizes or offsets == box.offsets)


def test_fully_shard_inside_tensor_parallelism_cuts_what_that_has_left_and_dimensions_count_from_the_end():
    plain = Sharding((2, 2), (ROWS, ROWS))
    nested = Sharding((2, 2), (_StridedShard(0, split_factor=2), ROWS))
    assert [local_box((7, 3), plain, rank).offsets[0] for rank in range(4)] == [0, 2, 4, 6]
    assert [local_box((7, 3), nested, rank).offsets[0] for rank in range(4)] == [0, 4, 2, 6]
    assert local_box((3, 5), Sharding((2,), (Shard(-1),)), 1) == Box((0, 3), (3, 5))


@pytest.mark.slow
@settings(max_examples=300)
@given(reshardings())
def test_a_plan_fills_every_shard_and_moves_exactly_the_minimum(case):
    check(*case)


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)])
def test_uneven_rows_move_the_minimum_between_any_two_placements(mesh):
    every = [
        Sharding(mesh, p) for p in itertools.product([ROWS, COLUMNS, EVERYWHERE], repeat=len(mesh))
    ]
    for rows, source, destination in itertools.product((3, 7), every, every):
        check((rows, 5), source, destination)


@given(st.data())
def test_replicas_of_the_source_share_the_work(data):
    shape = data.draw(shapes())
    destination = data.draw(shardings(shape))
    replicas = data.draw(st.integers(1, 4))
    moves = plan(shape, Sharding((replicas,), (EVERYWHERE,)), destination, ITEMSIZE, [0] * replicas)
    assume(moves)
    sent = [sum(move.bytes for move in moves if move.source == rank) for rank in range(replicas)]
    assert max(sent) - min(sent) <= max(move.bytes for move in moves)


def test_shards_with_gaps_are_refused():
    with pytest.raises(ValueError, match="gaps"):
        local_box((4,), Sharding((2,), (_StridedShard(0, split_factor=2),)), 0)
