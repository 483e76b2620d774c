"""Run the ranks of notebook 07b: a small model on two meshes, and the check of ``pieces``.

SmallModel ──► Rank, on both sides, by FSDP or tensor parallel ──► two_meshes, on_all
random cuts of a tensor, with copies and empty shards ──► check_pieces
"""

import asyncio
import itertools
import math
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zorplex_rl.course import shard_rings
from zorplex_rl.course.lesson.checks import agree, shortest
from zorplex_rl.services.runtime import Actor, current_rank, endpoint, start_monarch, this_host
from zorplex_rl.weights.reshard.plan import local_box
from zorplex_rl.weights.reshard.sharded_model import ModelPlan, describe, rank_in

Box = tuple[tuple[int, int], ...]
Pieces = Callable[[dict[int, Box], Box, dict[int, int]], list[tuple[int, Box]]]


class Block(nn.Module):
    """Two matrices beside a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class SmallModel(nn.Module):
    """An embedding, four blocks and an output layer."""

    def __init__(self, width: int, tokens: int = 512, blocks: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Rank(Actor):
    """A rank of either side. Plain endpoints: collectives need all ranks in step."""

    @endpoint
    def meet(self, meeting: Any) -> None:
        torch.set_num_threads(1)
        rank, ranks = current_rank().rank, current_rank().extent.nelements
        torch.distributed.init_process_group(
            "gloo", f"file://{meeting}", rank=rank, world_size=ranks
        )

    @endpoint
    def join(self, cut: Callable[..., nn.Module], side: str, width: int, seed: int) -> Any:
        torch.manual_seed(seed)
        ranks = torch.distributed.get_world_size()
        self.mesh = torch.distributed.init_device_mesh("cpu", (ranks,), mesh_dim_names=(side,))
        self.model = cut(SmallModel(width), self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return describe(self.model, self.mesh)

    def loss_of_all(self) -> Tensor:
        tokens = torch.arange(512)
        return nn.functional.cross_entropy(self.model(tokens[:-1]), tokens[1:])

    @endpoint
    def loss(self) -> float:
        return self.loss_of_all().item()

    @endpoint
    def step(self) -> None:
        self.loss_of_all().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @endpoint
    def whole(self) -> dict[str, Tensor]:
        """Return all weights, gathered by torch itself."""
        parameters: Any = self.model.named_parameters()
        return {name: parameter.full_tensor().detach().clone() for name, parameter in parameters}

    @endpoint
    def offer(self, plan: Any) -> Any:
        self.publisher = shard_rings.ShardPublisher(self.model, plan, rank_in(self.mesh))
        return shard_rings.offer_all(self.publisher)

    @endpoint
    def publish(self, version: int) -> None:
        self.publisher.publish(self.model, version)

    @endpoint
    def subscribe(self, offers: Any, plan: Any) -> int:
        subscribing = shard_rings.subscribe(offers, self.model, plan, rank_in(self.mesh))
        self.subscriber = asyncio.run(subscribing)
        return self.subscriber.transfer_bytes

    @endpoint
    def fetch(self) -> int:
        return asyncio.run(self.subscriber.fetch())

    @endpoint
    def install(self, version: int) -> None:
        assert self.subscriber.swap() == version


def minimum_bytes(plan: ModelPlan) -> int:
    """Return the bytes of all destination ranks' shards."""
    total = 0
    for weight in plan.destination.values():
        for rank in range(weight.sharding.ranks):
            box = local_box(weight.shape, weight.sharding, rank)
            total += math.prod(box.sizes) * weight.dtype.itemsize
    return total


@asynccontextmanager
async def two_meshes(ranks: int) -> AsyncIterator[list[Any]]:
    """Start trainer and generator ranks, with a group each; they end with the block."""
    start_monarch()
    meshes: list[Any] = []
    try:
        for name in ("trainer", "generator"):
            meshes.append(this_host().spawn_procs(per_host={"procs": ranks}, name=name))
        sides = [
            mesh.spawn(name, Rank)
            for mesh, name in zip(meshes, ("trainer", "generator"), strict=True)
        ]
        await asyncio.gather(
            *(on_all(side.meet, f"{tempfile.mkdtemp()}/meeting") for side in sides)
        )
        yield sides
    finally:
        await asyncio.gather(*(mesh.stop().as_asyncio() for mesh in meshes), return_exceptions=True)


async def on_all(endpoint: Any, *args: Any) -> list[Any]:
    """Return the answers of all ranks, which work at the same time."""
    return [value for _, value in (await endpoint.call(*args)).items()]


def drawn_boxes(draw: random.Random) -> tuple[dict[int, Box], Box, dict[int, int]]:
    """Cut a tensor at drawn places; a box has one holder or more, and a part is wanted."""
    shape = [draw.randint(1, 6) for _ in range(draw.randint(1, 3))]
    ranges = []
    for size in shape:
        ends = sorted([0, size, *(draw.randint(0, size) for _ in range(draw.randint(0, 2)))])
        ranges.append(list(itertools.pairwise(ends)))
    boxes = [box for box in itertools.product(*ranges) for _ in range(draw.choice((1, 1, 2, 3)))]
    draw.shuffle(boxes)
    held = dict(enumerate(boxes))
    wanted = []
    for size in shape:
        first = draw.randrange(size)
        wanted.append((first, draw.randint(first + 1, size)))
    return held, tuple(wanted), {rank: 4 * draw.randint(0, 20) for rank in held}


def check_overlap(overlap: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare overlaps of boxes in one to three dimensions with ``solution``."""

    def drawn(draw: random.Random) -> tuple[Box, Box]:
        dimensions = range(draw.randint(1, 3))
        held, wanted = (
            tuple((first := draw.randint(0, 6), first + draw.randint(1, 6)) for _ in dimensions)
            for _ in range(2)
        )
        return held, wanted

    def ranges(held: Box, wanted: Box) -> Box:
        return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True))

    agree(
        overlap,
        solution,
        drawn,
        times=60,
        examples=[
            (((4, 8),), ((2, 6),)),
            (((0, 4),), ((4, 8),)),
            (((0, 2),), ((4, 8),)),
            (((0, 2), (0, 2)), ((0, 2), (1, 2))),
            (((0, 2), (0, 2)), ((0, 2), (4, 5))),
        ],
        mistakes={
            "an end is no part of a box, so boxes that only touch have nothing in common": lambda *boxes: (
                ranges(*boxes) if all(a <= b for a, b in ranges(*boxes)) else None
            ),
            "where nothing is in common, return `None`": ranges,
            "look at every dimension": lambda held, wanted: (
                (*part, *wanted[1:]) if (part := solution(held[:1], wanted[:1])) else None
            ),
            "take what both boxes contain, not what either of them does": lambda held, wanted: (
                tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True))
            ),
        },
    )


def check_busiest_sends(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare what the busiest rank sends with ``solution``."""

    def drawn(draw: random.Random) -> tuple[int, int, int, bool]:
        sources, destinations = draw.randint(1, 6), draw.randint(1, 6)
        size = sources * destinations * draw.randint(1, 400)
        return size, sources, destinations, draw.random() < 0.5

    def of(pair: Callable[..., Any]) -> Callable[..., Any]:
        return lambda size, sources, destinations, whole: pair(
            *solution(size, sources, destinations, whole), size, sources, destinations
        )

    agree(
        attempt,
        solution,
        drawn,
        times=60,
        examples=[(1200, 3, 2, False), (1200, 3, 2, True), (1200, 1, 2, True)],
        mistakes={
            "with `whole` every generator rank wants all of it": lambda *given: solution(
                *given[:3], False
            ),
            "without `whole` the generator ranks want it once, together": lambda *given: solution(
                *given[:3], True
            ),
            "with the plan the trainer ranks share the sending; you count what all of them send": of(
                lambda plan, wanted, *_: (wanted, wanted)
            ),
            "the sending is shared by the trainer ranks, not by the generator ranks": of(
                lambda plan, wanted, size, sources, destinations: (wanted / destinations, wanted)
            ),
            "what rank 0 gathers it receives, and that is the other direction": of(
                lambda plan, wanted, size, sources, _: (plan, wanted + size - size / sources)
            ),
        },
    )


def named(place: tuple[int, ...]) -> str:
    """Return the place of an element in words: row 1, column 0."""
    return ", ".join(
        f"{axis} {at}" for axis, at in zip(("row", "column", "layer"), place, strict=False)
    )


def check_pieces(pieces: Pieces) -> None:
    """Ask for drawn boxes: each element comes once, from the holder that has sent least."""

    def ask(held: dict[int, Box], wanted: Box, sent: dict[int, int]) -> None:
        called = f"`pieces({held}, {wanted}, {sent})`"
        given = dict(sent)
        found = pieces(dict(held), wanted, given)
        assert given == sent, (
            f"`sent` is kept up to date by the page: do not change it. {called} does"
        )
        assert isinstance(found, list), f"{called} gives `{found!r}`, and should give a list"
        givers: dict[Any, list[int]] = {
            place: [] for place in itertools.product(*(range(a, b) for a, b in wanted))
        }
        for item in found:
            assert isinstance(item, tuple | list) and len(item) == 2 and item[0] in held, (
                f"{called} gives the item `{item!r}`, and should give pairs of a rank and a part"
            )
            rank, part = item
            assert part is not None, (
                f"`overlap` is `None` where two boxes have nothing in common: leave rank {rank} out. {called} gives `{item}`"
            )
            assert len(part) == len(wanted) and all(a < b for a, b in part), (
                f"where two boxes have nothing in common, leave the rank out. {called} gives the empty part `{part!r}`"
            )
            for place in itertools.product(*(range(a, b) for a, b in part)):
                assert place in givers, (
                    f"{named(place)} is not wanted, and is fetched. You return `{found}` for {called}"
                )
                owns = all(a <= at < b for at, (a, b) in zip(place, held[rank], strict=True))
                assert owns, (
                    f"{named(place)} is fetched from rank {rank}, which does not hold it. You return `{found}` for {called}"
                )
                givers[place].append(rank)
        for place, ranks in givers.items():
            assert ranks, (
                f"{named(place)} is fetched from nobody. You return `{found}` for {called}"
            )
            twice = " and ".join(map(str, ranks))
            assert len(ranks) == 1, (
                f"each element is fetched once, also where ranks hold the same box. {called} fetches {named(place)} from ranks {twice}"
            )
        for rank, _ in found:
            least = min(sent[other] for other in held if held[other] == held[rank])
            assert sent[rank] == least, (
                f"{called} asks rank {rank}, and another rank with the same box has sent less"
            )

    ask({0: ((0, 2),), 1: ((2, 4),)}, ((1, 4),), {0: 0, 1: 0})
    ask({0: ((0, 2),), 1: ((2, 4),)}, ((0, 2),), {0: 0, 1: 0})
    # Two ranks are enough for most mistakes: copies, and a second dimension.
    ask({0: ((0, 2),), 1: ((0, 2),)}, ((0, 2),), {0: 4, 1: 0})
    ask({0: ((0, 2), (0, 1)), 1: ((0, 2), (1, 2))}, ((1, 2), (0, 2)), {0: 0, 1: 0})
    shortest(lambda draw: ask(*drawn_boxes(draw)), times=150)
