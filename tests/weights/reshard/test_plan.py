"""Resharding on paper: shards are cut as DTensor cuts them, and a plan fills every destination
shard with the fewest bytes there can be."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from zorplex_rl.weights.reshard.plan import Locations, bytes_moved, gather_then_scatter_bytes, minimum_bytes, plan
from zorplex_rl.weights.reshard.sharding import Sharding, local_boxes, local_shape

ITEMSIZE = 2
ROWS, COLUMNS, EVERYWHERE = Shard(0), Shard(1), Replicate()


@st.composite
def shapes(draw) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, 9), max_size=3)))


@st.composite
def shardings(draw, shape: tuple[int, ...], mesh_shape: tuple[int, ...] | None = None) -> Sharding:
    if mesh_shape is None:
        meshes = st.lists(st.integers(1, 4), min_size=1, max_size=2)
        mesh_shape = draw(meshes.filter(lambda mesh: math.prod(mesh) <= 8))
    kinds = [st.just(EVERYWHERE)]
    if shape:
        dims = st.integers(0, len(shape) - 1)
        kinds += [st.builds(Shard, dims), st.builds(_StridedShard, dims, split_factor=st.integers(1, 3))]
    placements = draw(st.tuples(*[st.one_of(kinds)] * len(mesh_shape)))
    return Sharding(tuple(mesh_shape), placements)


@st.composite
def reshardings(draw) -> tuple[tuple[int, ...], Sharding, Sharding]:
    shape = draw(shapes())
    return shape, draw(shardings(shape)), draw(shardings(shape))


@st.composite
def placed_reshardings(draw):
    """With locations that some ranks of both sides may share."""
    shape, source, destination = draw(reshardings())
    names = st.sampled_from("abcd")
    locations = Locations(*(draw(st.tuples(*[names] * sharding.ranks)) for sharding in (source, destination)))
    return shape, source, destination, draw(st.sampled_from([None, locations]))


def numbered(shape):
    """A tensor whose every element is its own number."""
    return torch.arange(math.prod(shape)).reshape(shape)


def cut(tensor, sharding, rank):
    """``rank``'s shard of ``tensor``, by the code with which DTensor cuts it."""
    for dimension, placement in enumerate(sharding.placements):
        if placement != EVERYWHERE:
            parts, _ = placement._split_tensor(tensor, sharding.mesh_shape[dimension], with_padding=False)
            tensor = parts[sharding.coordinate(rank)[dimension]]
    return tensor


def numbers_at(location, shape, sharding, locations) -> set[int]:
    """The elements that some rank at ``location`` holds."""
    ranks = [rank for rank in range(sharding.ranks) if locations[rank] == location]
    return {number for rank in ranks for number in cut(numbered(shape), sharding, rank).flatten().tolist()}


def carry_out(moves, shape, source, destination):
    """Every destination rank's shard after ``moves``, and how often each of its elements was
    written."""
    shards = [cut(numbered(shape), source, rank) for rank in range(source.ranks)]
    targets = [torch.full(local_shape(shape, destination, rank), -1) for rank in range(destination.ranks)]
    writes = [torch.zeros_like(target) for target in targets]
    for move in moves:
        piece = shards[move.source][move.source_slices]
        assert move.bytes == piece.numel() * ITEMSIZE
        targets[move.destination][move.destination_slices] = piece
        writes[move.destination][move.destination_slices] += 1
    return targets, writes


def check(shape, source, destination, locations=None):
    """``plan`` fills every shard, writes no element twice, and moves the minimum, which is counted
    here element by element."""
    moves = plan(shape, source, destination, ITEMSIZE, locations)
    targets, writes = carry_out(moves, shape, source, destination)
    fewest = 0
    for rank, (target, written) in enumerate(zip(targets, writes, strict=True)):
        assert torch.equal(target, cut(numbered(shape), destination, rank))
        assert (written == 1).all()
        near = numbers_at(locations.destination[rank], shape, source, locations.source) if locations else set()
        fewest += len(set(target.flatten().tolist()) - near) * ITEMSIZE
    assert bytes_moved(moves) == fewest
    assert minimum_bytes(shape, source, destination, ITEMSIZE, locations) == fewest
    for move in moves:
        assert move.travels == (
            locations is None or locations.source[move.source] != locations.destination[move.destination]
        )


@given(st.data())
def test_a_shard_is_cut_as_dtensor_cuts_it(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape))
    for rank in range(sharding.ranks):
        expected = cut(numbered(shape), sharding, rank)
        assert local_shape(shape, sharding, rank) == expected.shape
        found = torch.full(expected.shape, -1)
        for box in local_boxes(shape, sharding, rank):
            block = tuple(slice(offset, offset + size) for offset, size in zip(box.offsets, box.sizes, strict=True))
            found[box.slices(box.offsets, box.sizes)] = numbered(shape)[block]
        assert torch.equal(found, expected)


@given(st.data())
def test_shapes_and_offsets_are_those_that_dtensor_computes(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape))
    for rank in range(sharding.ranks):
        expected_shape, expected_offsets = _compute_local_shape_and_global_offset(
            shape, sharding.mesh_shape, list(sharding.coordinate(rank)), sharding.placements
        )
        assert local_shape(shape, sharding, rank) == expected_shape
        if boxes := local_boxes(shape, sharding, rank):
            assert boxes[0].offsets == expected_offsets


def test_plain_placements_give_one_box_and_so_does_fully_shard_inside_tensor_parallelism():
    plain = Sharding((2, 2), (ROWS, ROWS))
    nested = Sharding((2, 2), (_StridedShard(0, split_factor=2), ROWS))
    assert [local_boxes((7, 3), plain, rank)[0].offsets[0] for rank in range(4)] == [0, 2, 4, 6]
    assert [local_boxes((7, 3), nested, rank)[0].offsets[0] for rank in range(4)] == [0, 4, 2, 6]
    assert all(len(local_boxes((7, 3), sharding, rank)) == 1 for sharding in (plain, nested) for rank in range(4))


def test_a_dimension_may_be_counted_from_the_end():
    for rank in range(2):
        last, second = (local_boxes((3, 5), Sharding((2,), (Shard(dim),)), rank) for dim in (-1, 1))
        assert last == second


@settings(max_examples=300)
@given(placed_reshardings())
def test_a_plan_fills_every_shard_and_moves_exactly_the_minimum(case):
    check(*case)


@pytest.mark.parametrize("rows", [3, 5, 7])
@pytest.mark.parametrize("ranks", [2, 4])
def test_uneven_rows_move_the_minimum_between_any_two_placements(rows, ranks):
    meshes = [((ranks,), 1), ((2, ranks // 2), 2)]
    every = [
        Sharding(mesh, placements)
        for mesh, dimensions in meshes
        for placements in itertools.product([ROWS, COLUMNS, EVERYWHERE], repeat=dimensions)
    ]
    for source, destination in itertools.product(every, repeat=2):
        check((rows, 5), source, destination)


@given(placed_reshardings())
def test_gathering_and_scattering_never_moves_less(case):
    shape, source, destination, locations = case
    names = locations or Locations(range(source.ranks), range(-destination.ranks, 0))
    root = names.source[0]
    gathered = math.prod(shape) - len(numbers_at(root, shape, source, names.source))
    away = [rank for rank in range(destination.ranks) if names.destination[rank] != root]
    scattered = sum(cut(numbered(shape), destination, rank).numel() for rank in away)
    found = gather_then_scatter_bytes(shape, source, destination, ITEMSIZE, locations)
    assert found == (gathered + scattered) * ITEMSIZE
    assert found >= minimum_bytes(shape, source, destination, ITEMSIZE, locations)


@given(reshardings())
def test_a_rank_that_stands_where_its_elements_are_fetches_nothing(case):
    shape, source, _ = case
    locations = Locations(range(source.ranks), range(source.ranks))
    assert bytes_moved(plan(shape, source, source, ITEMSIZE, locations)) == 0


@given(st.data())
def test_replicas_of_the_source_share_the_work(data):
    shape = data.draw(shapes())
    destination = data.draw(shardings(shape))
    replicas = data.draw(st.integers(1, 4))
    moves = plan(shape, Sharding((replicas,), (EVERYWHERE,)), destination, ITEMSIZE)
    assume(moves)
    sent = [sum(move.bytes for move in moves if move.source == rank) for rank in range(replicas)]
    assert max(sent) - min(sent) <= max(move.bytes for move in moves)


def test_what_other_tensors_made_a_replica_send_counts_when_the_next_is_planned():
    source, destination, sent = Sharding((2,), (EVERYWHERE,)), Sharding((1,), (EVERYWHERE,)), [0, 0]
    assert [plan((4,), source, destination, ITEMSIZE, sent=sent)[0].source for _ in range(4)] == [0, 1, 0, 1]
    assert sent == [16, 16]


def test_partial_sums_are_refused():
    with pytest.raises(ValueError, match="Partial.*cannot be resharded.*redistribute it"):
        Sharding((2,), (Partial(),))


def test_a_placement_is_needed_for_each_dimension_of_the_mesh():
    with pytest.raises(ValueError, match="1 placement.*2 dimension"):
        Sharding((2, 2), (ROWS,))


def test_a_dimension_that_the_tensor_does_not_have_cannot_be_sharded():
    with pytest.raises(ValueError, match=r"dimension 1 of a tensor of shape \(4,\)"):
        local_boxes((4,), Sharding((2,), (COLUMNS,)), 0)
