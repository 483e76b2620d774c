"""Notebook 07b: the planner on the page is the package's, heads are dealt out whole, and the reader's plan is what moves the shards."""

from __future__ import annotations

import ast
import asyncio
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
import torch
from test_actor_notebooks import written_out
from test_course import minutes
from test_notebooks import load
from torch.distributed.tensor import Replicate, Shard

from zorplex_rl.course.lesson.plug_in import plug_in
from zorplex_rl.weights.reshard.plan import plan
from zorplex_rl.weights.reshard.sharded_model import ShardedWeight, plan_model
from zorplex_rl.weights.reshard.sharding import Sharding, local_boxes, local_shape

PATH = Path(__file__).parents[2] / "notebooks" / "07b_resharding.py"


@pytest.fixture(scope="module")
def notebook() -> Iterator[ModuleType]:
    """The notebook, whose classes are copied to other processes as when it runs by itself."""
    module = load(PATH)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def shardings(*meshes: tuple[int, ...]) -> list[Sharding]:
    placed = (Shard(0), Shard(1), Replicate())
    return [Sharding(mesh, chosen) for mesh in meshes for chosen in itertools.product(placed, repeat=len(mesh))]


@pytest.fixture(scope="module")
def alone() -> dict:
    """What the page writes out, and nothing else of the notebook."""
    written: dict = {"math": math}
    exec(written_out(PATH, "box", "inside", "planned"), written)
    return written


def test_the_planner_on_the_page_has_at_most_25_lines():
    assert minutes.visible_lines(ast.parse(written_out_as_shown("box", "inside", "planned"))) <= 25


def written_out_as_shown(*names: str) -> str:
    found = [node for node in ast.parse(PATH.read_text()).body if getattr(node, "name", "") in names]
    assert all(ast.unparse(decorator) == "app.function" for node in found for decorator in node.decorator_list)
    return "\n\n".join(map(ast.unparse, found))


@pytest.mark.parametrize("shape", [(6, 4), (9, 2), (1, 5), (7, 7)])
def test_the_planner_on_the_page_alone_makes_the_packages_plans(alone, shape):
    for held, wanted in itertools.product(shardings((1,), (3,), (2, 2)), shardings((2,), (4,), (2, 2))):
        moves = plan(shape, held, wanted, itemsize=4)
        expected = [(m.source, m.destination, m.source_slices, m.destination_slices, m.bytes) for m in moves]
        assert alone["planned"](shape, held, wanted, 4) == expected


def test_a_box_is_what_dtensor_would_hold(alone):
    for sharding in shardings((4,), (2, 2)):
        for rank in range(sharding.ranks):
            bounds = alone["box"]((9, 2), sharding, rank)
            assert tuple(end - first for first, end in bounds) == local_shape((9, 2), sharding, rank)


def described(*shapes: tuple[int, ...], sharding: Sharding) -> dict[str, ShardedWeight]:
    return {str(number): ShardedWeight(shape, torch.float32, sharding) for number, shape in enumerate(shapes)}


FSDP = described((8, 6), (5, 3), (4,), sharding=Sharding((2,), (Shard(0),)))
COPIES = described((8, 6), (5, 3), (4,), sharding=Sharding((2,), (Replicate(),)))


def everything_twice(solution):
    return lambda held, wanted: 2 * solution(held, wanted)


def only_from_rank_0(held, wanted):
    return [
        (0, part)
        for part in [tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held[0], wanted, strict=True))]
        if all(a < b for a, b in part)
    ]


def test_the_readers_pieces_make_the_plan(notebook):
    """The solution moves the minimum; twice everything moves twice as much; the parts of one rank alone are too few."""

    def bytes_of(pieces):
        assert notebook.can_run(pieces, FSDP, COPIES)
        return notebook.plan_with(pieces, FSDP, COPIES).bytes_moved

    least = plan_model(FSDP, COPIES).minimum_bytes
    assert bytes_of(notebook.pieces_solution) == least
    assert bytes_of(everything_twice(notebook.pieces_solution)) == 2 * least
    assert bytes_of(only_from_rank_0) < least


def test_what_the_processes_cannot_carry_out_is_not_plugged_in(notebook):
    def used(pieces):
        found, _ = plug_in(pieces, notebook.pieces_solution, lambda p: notebook.can_run(p, FSDP, COPIES), 0.5)
        return found

    def beyond(held, wanted):
        return [(0, tuple((a, b + 1) for a, b in wanted))]

    def nothing(held, wanted):
        return []

    def for_ever(held, wanted):
        while True:
            pass

    for wrong in (notebook.pieces, beyond, nothing, for_ever, lambda held: []):
        assert used(wrong) is notebook.pieces_solution
    assert used(only_from_rank_0) is only_from_rank_0


@pytest.mark.parametrize(
    ("named", "complaint"),
    [("copies", "times"), ("rank 0", "does not fetch"), ("all of it", "does not hold it")],
)
def test_a_planner_that_is_wrong_is_told_where(notebook, named, complaint):
    wrong = {
        "copies": lambda held, wanted: [
            pair for rank in held for pair in notebook.pieces_solution({rank: held[rank]}, wanted)
        ],
        "rank 0": only_from_rank_0,
        "all of it": lambda held, wanted: [(0, wanted)],
    }[named]
    with pytest.raises(AssertionError, match=complaint):
        notebook.check_pieces(wrong)


def test_more_ranks_than_heads_hold_the_same_head_each_whole(notebook):
    heads, size = 2, 16
    attention = torch.nn.Module()
    for name, count in (("q_proj", 4), ("k_proj", heads), ("v_proj", heads)):
        attention.add_module(name, torch.nn.Linear(64, count * size))
    attention.config = SimpleNamespace(num_key_value_heads=heads, num_attention_heads=4)
    found = notebook.describe_on(SimpleNamespace(model=attention), tp=4)
    key, query = found["k_proj.weight"], found["q_proj.weight"]
    assert [local_shape(key.shape, key.sharding, rank) for rank in range(4)] == [(size, 64)] * 4
    assert [local_boxes(key.shape, key.sharding, rank)[0].offsets[0] for rank in range(4)] == [0, 0, size, size]
    assert [local_boxes(query.shape, query.sharding, rank)[0].offsets[0] for rank in range(4)] == [0, 16, 32, 48]


@pytest.mark.parametrize("plan_name", ["solution", "one rank only"])
def test_real_shards_arrive_as_the_readers_plan_says(notebook, plan_name):
    config = SimpleNamespace(width=16, steps=1)
    pieces = {"solution": notebook.pieces_solution, "one rank only": only_from_rank_0}[plan_name]
    found = asyncio.run(notebook.move_shards(config, pieces))
    assert found.whose == "your function"
    assert sum(found.read) == found.plan.bytes_moved
    ((trained, generated),) = found.losses
    if plan_name == "solution":
        assert found.equal == found.compared == len(found.plan.moves)
        assert found.plan.bytes_moved == found.plan.minimum_bytes
        assert trained == pytest.approx(generated, rel=1e-5)
    else:
        assert found.equal < found.compared
        assert abs(trained - generated) > 1e-4
