"""Notebook 07b: the planner on the page is the package's, heads are dealt out whole, and the
reader's plan is what moves the shards."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
import torch
from test_answers import answers, refusals
from test_course import minutes
from test_notebooks import load
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from zorplex_rl.course.nb07b import SmallModel, minimum_bytes
from zorplex_rl.policy.load import load_policy
from zorplex_rl.weights.reshard.plan import Sharding, local_box, plan
from zorplex_rl.weights.reshard.sharded_model import ShardedWeight, plan_model

pytestmark = pytest.mark.slow

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
    return [
        Sharding(mesh, chosen)
        for mesh in meshes
        for chosen in itertools.product(placed, repeat=len(mesh))
    ]


def test_box_on_the_page_has_at_most_15_lines_and_no_finished_pieces_is_visible():
    shown = ast.parse(written_out_as_shown("box"))
    solutions = [
        node
        for node in ast.parse(PATH.read_text()).body
        if getattr(node, "name", "") == "Solutions"
    ]
    assert minutes.visible_lines(shown) <= 15
    assert len(solutions) == 1 and minutes.visible_lines(ast.Module(solutions, [])) == 0


def written_out_as_shown(*names: str) -> str:
    found = [
        node for node in ast.parse(PATH.read_text()).body if getattr(node, "name", "") in names
    ]
    assert all(
        ast.unparse(decorator) == "app.function"
        for node in found
        for decorator in node.decorator_list
    )
    return "\n\n".join(map(ast.unparse, found))


@pytest.mark.parametrize("shape", [(6, 4), (9, 2), (1, 5), (7, 7)])
def test_the_planner_on_the_page_makes_the_packages_plans(notebook, shape):
    for held, wanted in itertools.product(
        shardings((1,), (3,), (2, 2)), shardings((2,), (4,), (2, 2))
    ):
        sent = dict.fromkeys(range(held.ranks), 0)
        found = notebook.planned(notebook.Solutions.pieces, shape, held, wanted, 4, sent)
        assert tuple(found) == plan(shape, held, wanted, itemsize=4, sent=[0] * held.ranks)


def test_eight_rows_on_2_by_2_lie_as_the_table_says():
    grid = Sharding((2, 2), (_StridedShard(0, split_factor=2), Shard(0)))
    for rank in range(4):
        held = local_box((8,), grid, rank)
        (first,), (end,) = held.offsets, held.ends
        assert f"rank {grid.coordinate(rank)}: {first}–{end - 1} |" in PATH.read_text()


def test_the_small_model_has_the_parameters_that_the_page_counts():
    sizes = [parameter.dim() for parameter in SmallModel(8).parameters()]
    counted = f"{len(sizes)} parameters: {sizes.count(2)} matrices and {sizes.count(1)} biases"
    assert counted in PATH.read_text()


def test_the_trainers_ranks_share_the_sending(notebook):
    policy = load_policy("embedded", "cpu")
    for ranks, generator in itertools.product((2, 4), ({"TP": 2}, {"TP": 4}, {"copies": 2})):
        sides = [notebook.describe_on(policy, **mesh) for mesh in ({"FSDP": ranks}, generator)]
        found = notebook.plan_with(notebook.Solutions.pieces, *sides)
        busiest = max(map(sum, found.traffic()))
        assert minimum_bytes(found) / busiest == pytest.approx(ranks, rel=0.1)


@pytest.mark.parametrize(
    ("name", "attempt", "words"),
    [
        ("overlap", "what_either_has", "take what both boxes contain"),
        ("overlap", "touching_is_overlapping", "boxes that only touch have nothing in common"),
        ("overlap", "an_empty_overlap", "where nothing is in common, return `None`"),
        ("overlap", "the_first_dimension_alone", "look at every dimension"),
        ("pieces", "from_every_copy", "fetches row 0 from ranks 0 and 1"),
        (
            "pieces",
            "keeps_what_is_none",
            "`overlap` is `None` where two boxes have nothing in common",
        ),
        ("pieces", "only_from_rank_0", "row 2 is fetched from nobody"),
        ("pieces", "from_the_first_copy", "another rank with the same box has sent less"),
        ("busiest_sends", "in_all", "you count what all of them send"),
        ("busiest_sends", "shared_by_the_generators", "not by the generator ranks"),
        ("busiest_sends", "gathers_on_the_same_link", "that is the other direction"),
        ("pieces", "keeps_the_account", "`sent` is kept up to date by the page: do not change it"),
    ],
)
def test_a_likely_mistake_is_told_in_words(name, attempt, words):
    said = refusals("07b", name, [getattr(answers("07b"), attempt)])[attempt]
    assert words in said


def described(*shapes: tuple[int, ...], sharding: Sharding) -> dict[str, ShardedWeight]:
    return {
        str(number): ShardedWeight(shape, torch.float32, sharding)
        for number, shape in enumerate(shapes)
    }


FSDP = described((8, 6), (5, 3), (4,), sharding=Sharding((2,), (Shard(0),)))
COPIES = described((8, 6), (5, 3), (4,), sharding=Sharding((2,), (Replicate(),)))


def everything_twice(solution):
    return lambda held, wanted, sent: 2 * solution(held, wanted, sent)


def only_from_rank_0(held, wanted, sent):
    return [
        (0, part)
        for part in [
            tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held[0], wanted, strict=True))
        ]
        if all(a < b for a, b in part)
    ]


def test_the_readers_pieces_make_the_plan(notebook):
    """The solution moves the minimum; twice everything moves twice as much; the parts of one rank
    alone are too few."""

    def bytes_of(pieces):
        return notebook.plan_with(pieces, FSDP, COPIES).bytes_moved

    least = minimum_bytes(plan_model(FSDP, COPIES))
    assert bytes_of(notebook.Solutions.pieces) == least
    assert notebook.plan_with(notebook.Solutions.pieces, COPIES, FSDP) == plan_model(
        COPIES, FSDP
    ), "copies share the work"
    assert bytes_of(everything_twice(notebook.Solutions.pieces)) == 2 * least
    assert bytes_of(only_from_rank_0) < least


def test_more_ranks_than_heads_hold_the_same_head_each_whole(notebook):
    heads, size = 2, 16
    attention = torch.nn.Module()
    for name, count in (("q_proj", 4), ("k_proj", heads), ("v_proj", heads)):
        attention.add_module(name, torch.nn.Linear(64, count * size))
    attention.config = SimpleNamespace(num_key_value_heads=heads, num_attention_heads=4)
    found = notebook.describe_on(SimpleNamespace(model=attention), TP=4)
    key, query = found["k_proj.weight"], found["q_proj.weight"]
    assert [local_box(key.shape, key.sharding, rank).sizes for rank in range(4)] == [(size, 64)] * 4
    assert [local_box(key.shape, key.sharding, rank).offsets[0] for rank in range(4)] == [
        0,
        0,
        size,
        size,
    ]
    assert [local_box(query.shape, query.sharding, rank).offsets[0] for rank in range(4)] == [
        0,
        16,
        32,
        48,
    ]


@pytest.mark.long
def test_real_shards_arrive_as_the_readers_plan_says(notebook, monkeypatch):
    """The solution's and one that asks rank 0 alone, with the same processes."""
    config = SimpleNamespace(width=16, steps=1)

    async def both():
        async with notebook.two_meshes(ranks=2) as meshes:
            monkeypatch.setattr(notebook, "two_meshes", lambda ranks: nullcontext(meshes))
            return [
                await notebook.move_shards(config, pieces, lambda: None)
                for pieces in (notebook.Solutions.pieces, only_from_rank_0)
            ]

    right, wrong = asyncio.run(both())
    assert right.equal == right.compared == len(right.plan.moves)
    assert right.plan.bytes_moved == minimum_bytes(right.plan)
    for found in (right, wrong):
        assert sum(found.read) == found.plan.bytes_moved
    ((trained, generated),) = right.losses
    assert trained == pytest.approx(generated, rel=1e-5)
    assert wrong.equal < wrong.compared
    ((trained, generated),) = wrong.losses
    assert abs(trained - generated) > 1e-4
