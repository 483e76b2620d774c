"""Carry out a plan in one process: pieces go through rings, shards stand in for ranks, and versions
are never mixed."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_plan import COLUMNS, EVERYWHERE, ROWS, cut, shapes, shardings
from torch import nn

from zorplex_rl.course.nb07b import minimum_bytes
from zorplex_rl.course.shard_rings import ShardPublisher, pull_together
from zorplex_rl.errors import WeightPullError
from zorplex_rl.training.transports import Subscriber
from zorplex_rl.weights.layout import LayoutMismatch
from zorplex_rl.weights.reshard.plan import Sharding
from zorplex_rl.weights.reshard.sharded_model import ShardedWeight, incoming, plan_model
from zorplex_rl.weights.ring import read_rings

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)
BY_ROWS, BY_COLUMNS, WHOLE = (
    Sharding((2,), (placement,)) for placement in (ROWS, COLUMNS, EVERYWHERE)
)


@st.composite
def descriptions(draw):
    """A model of up to four parameters on both sides; each side's parameters lie on one mesh, as
    those of a model do."""
    some = [
        (shape, draw(st.sampled_from(DTYPES)))
        for shape in draw(st.lists(shapes(), min_size=1, max_size=4))
    ]
    sides = []
    for _ in range(2):
        mesh = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (2, 3)]))
        placed = [draw(shardings(shape, mesh)) for shape, _ in some]
        sides.append(
            {f"p{i}": ShardedWeight(*some[i], sharding) for i, sharding in enumerate(placed)}
        )
    return sides


def rank_of(description, rank, values=torch.zeros_like) -> nn.Module:
    """The model as ``rank`` has it. ``values`` makes a whole parameter's numbers, given an empty
    tensor of its shape and dtype."""
    model = nn.Module()
    for name, weight in description.items():
        whole = values(torch.empty(weight.shape, dtype=weight.dtype))
        model.register_buffer(name, cut(whole, weight.sharding, rank).clone())
    return model


def ranks_of(description) -> range:
    return range(next(iter(description.values())).sharding.ranks)


def bytes_of(model) -> int:
    return sum(tensor.nbytes for tensor in model.buffers())


def number(empty):
    return (torch.arange(empty.numel()) % 251).reshape(empty.shape).to(empty.dtype)


class LocalReader:
    """Reads a ring of this process, in pieces in a random order, as a network may deliver them."""

    order, transport = random.Random(0), "local"

    def __init__(self, ring):
        self.layout, self.ring, self.delivered = ring.layout, ring, 0

    async def read_headers(self):
        return self.ring.headers.clone()

    async def read_slot(self, slot, staging):
        pieces = list(zip(self.ring.slots[slot].chunk(8), staging.chunk(8), strict=True))
        self.order.shuffle(pieces)
        for source, target in pieces:
            target.copy_(source)
            await asyncio.sleep(0)
        self.delivered += 1


class FailingReader(LocalReader):
    """Reads headers only."""

    async def read_slot(self, slot, staging):
        raise WeightPullError("the source is gone")


def connect(plan, publishers, rank, model):
    readers = [
        LocalReader(publishers[source].rings[rank]) for source in incoming(plan, model, rank)
    ]
    return Subscriber(readers, lambda: list(incoming(plan, model, rank).values()))


def description(sharding, rows=4):
    return {"p": ShardedWeight((rows, 4), torch.float32, sharding)}


class Square:
    """One parameter of ``rows`` × 4, from rows over 2 ranks to columns over 2 ranks."""

    def __init__(self, rows=4):
        self.plan = plan_model(description(BY_ROWS, rows), description(BY_COLUMNS, rows))
        self.models = [rank_of(self.plan.source, rank) for rank in range(2)]
        self.publishers = [
            ShardPublisher(model, self.plan, rank, 2) for rank, model in enumerate(self.models)
        ]
        self.targets = [rank_of(self.plan.destination, rank) for rank in range(2)]
        self.subscribers = [
            connect(self.plan, self.publishers, rank, self.targets[rank]) for rank in range(2)
        ]

    def publish(self, version, ranks=(0, 1)):
        for rank in ranks:
            self.models[rank].p.fill_(version)
            self.publishers[rank].publish(self.models[rank], version)


def pull(*subscribers):
    async def fetch():
        return [await subscriber.fetch() for subscriber in subscribers]

    async def install(version):
        assert {subscriber.swap() for subscriber in subscribers} == {version}

    return asyncio.run(pull_together(fetch, install, attempts=5))


@given(descriptions())
def test_every_shard_arrives_bit_for_bit_in_no_more_bytes_than_the_minimum(sides):
    source, destination = sides
    plan = plan_model(source, destination)
    publishers = []
    for rank in ranks_of(source):
        model = rank_of(source, rank, number)
        publishers.append(ShardPublisher(model, plan, rank))
        publishers[-1].publish(model, 5)
    read, received = (
        [],
        [sum(row[rank] for row in plan.traffic()) for rank in ranks_of(destination)],
    )
    for rank in ranks_of(destination):
        model, expected = rank_of(destination, rank), rank_of(destination, rank, number)
        read.append(bytes_of(expected))
        if read[-1]:
            subscriber = connect(plan, publishers, rank, model)
            assert pull(subscriber) == 5
            assert subscriber.transfer_bytes == read[-1]
        assert all(map(torch.equal, model.buffers(), expected.buffers()))
    assert read == received
    assert sum(read) == minimum_bytes(plan) == plan.bytes_moved


def test_another_model_and_another_plan_are_refused():
    square, other = Square(), Square(8)
    with pytest.raises(LayoutMismatch, match="'p'"):
        plan_model(square.plan.source, other.plan.destination)
    with pytest.raises(LayoutMismatch, match="'q'"):
        plan_model(square.plan.source, square.plan.source | {"q": square.plan.source["p"]})
    with pytest.raises(LayoutMismatch, match=r"'p\[0\]'"):
        connect(other.plan, square.publishers, 0, other.targets[0])


def test_while_one_source_is_ahead_the_version_that_all_have_is_pulled_and_without_one_nothing():
    square = Square()
    square.publish(1, (0,))
    with pytest.raises(WeightPullError, match=r"complete for 0\.05 s"):
        readers = square.subscribers[0].readers
        staging = [torch.zeros(reader.layout.size, dtype=torch.uint8) for reader in readers]
        asyncio.run(read_rings(readers, staging, timeout=0.05))
    for version, ranks, expected in (
        (1, (1,), 1),
        (2, (0,), 1),
        (2, (1,), 2),
        (3, (1,), 2),
        (3, (0,), 3),
    ):
        square.publish(version, ranks)
        assert pull(square.subscribers[0]) == expected
        assert (square.targets[0].p == expected).all()


def test_all_destination_ranks_install_the_same_version_even_if_one_fetched_an_older_one():
    square = Square()
    first, second = square.subscribers
    square.publish(1)
    assert asyncio.run(first.fetch()) == 1
    square.publish(2)
    assert asyncio.run(second.fetch()) == 2
    assert all((target.p == 0).all() for target in square.targets)
    assert pull(first, second) == 2
    assert all((target.p == 2).all() for target in square.targets)


def test_a_fetch_that_fails_leaves_the_model_and_nothing_to_install_and_no_read_under_way():
    square = Square()
    subscriber, target = square.subscribers[0], square.targets[0]
    square.publish(1)
    assert pull(subscriber) == 1
    square.publish(2)
    assert asyncio.run(subscriber.fetch()) == 2
    whole, failing = subscriber.readers, FailingReader(square.publishers[0].rings[0])
    subscriber.readers = [failing, whole[1]]
    assert asyncio.run(subscriber.fetch()) == 2, "nothing is newer, so nothing has to be read"
    square.publish(3)
    with pytest.raises(WeightPullError, match="gone"):
        asyncio.run(subscriber.fetch())
    assert whole[1].delivered == 3, "the other read has ended"
    assert subscriber.swap() == 1, "the buffers do not hold version 2 any more"
    assert (target.p == 1).all()
    subscriber.readers = whole
    assert pull(subscriber) == 3
    assert (target.p == 3).all()


def test_sources_that_take_steps_together_are_never_read_torn_or_mixed():
    square = Square(65536)
    subscriber, target = square.subscribers[0], square.targets[0]
    stop, read, step = threading.Event(), threading.Event(), threading.Barrier(2)

    def train(rank):
        version = 0
        try:
            while True:
                step.wait()
                square.publish(version, (rank,))
                version += 1
                if stop.is_set():
                    step.abort()
                elif rank == 0 and version % 20 == 0:
                    # With cores to themselves they would lap every read.
                    read.wait()
                    read.clear()
        except threading.BrokenBarrierError:
            return

    trainers = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for trainer in trainers:
        trainer.start()
    versions = []
    try:
        while len(versions) < 100:
            versions.append(asyncio.run(subscriber.pull()))
            assert (target.p == versions[-1]).all()
            read.set()
    finally:
        stop.set()
        read.set()
        for trainer in trainers:
            trainer.join()
    assert versions == sorted(versions) and versions[-1] > 20
