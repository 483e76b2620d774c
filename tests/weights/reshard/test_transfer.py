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

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights.layout import LayoutMismatch
from zorplex_rl.weights.reshard.plan import Locations
from zorplex_rl.weights.reshard.sharded_model import ShardedWeight, plan_model
from zorplex_rl.weights.reshard.sharding import Sharding
from zorplex_rl.weights.reshard.transfer import (
    LocalReader,
    ShardPublisher,
    ShardSubscriber,
    pull_together,
    read_together,
)
from zorplex_rl.weights.ring import NothingPublished

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)
BY_ROWS, BY_COLUMNS, WHOLE = (Sharding((2,), (placement,)) for placement in (ROWS, COLUMNS, EVERYWHERE))


@st.composite
def descriptions(draw):
    """A model of up to four parameters on both sides; each side's parameters lie on one mesh, as
    those of a model do."""
    some = [(shape, draw(st.sampled_from(DTYPES))) for shape in draw(st.lists(shapes(), min_size=1, max_size=4))]
    sides = []
    for _ in range(2):
        mesh = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (2, 3)]))
        placed = [draw(shardings(shape, mesh)) for shape, _ in some]
        sides.append({f"p{i}": ShardedWeight(*some[i], sharding) for i, sharding in enumerate(placed)})
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


def number(empty):
    return (torch.arange(empty.numel()) % 251).reshape(empty.shape).to(empty.dtype)


def connect(plan, publishers, rank, model):
    readers = {s: LocalReader(p.rings[rank]) for s, p in enumerate(publishers) if rank in p.rings}
    return ShardSubscriber(readers, model, plan, rank)


def square(rows=4):
    """One parameter of ``rows`` × 4, from rows over 2 ranks to columns over 2 ranks."""
    source, destination = ({"p": ShardedWeight((rows, 4), torch.float32, side)} for side in (BY_ROWS, BY_COLUMNS))
    return source, destination, plan_model(source, destination)


def fill(model, value) -> nn.Module:
    for tensor in model.buffers():
        tensor.fill_(value)
    return model


def pull(*subscribers):
    async def fetch():
        return [await subscriber.fetch() for subscriber in subscribers]

    async def install(version):
        for subscriber in subscribers:
            subscriber.install(version)

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
    read = 0
    for rank in ranks_of(destination):
        model = rank_of(destination, rank)
        if not any(tensor.numel() for tensor in model.buffers()):
            with pytest.raises(ValueError, match=f"rank {rank} holds no part"):
                connect(plan, publishers, rank, model)
            continue
        subscriber = connect(plan, publishers, rank, model)
        assert pull(subscriber) == 5
        expected = rank_of(destination, rank, number)
        assert all(map(torch.equal, model.buffers(), expected.buffers()))
        read += subscriber.transfer_bytes
    assert read == plan.bytes_moved == plan.minimum_bytes <= plan.gather_then_scatter_bytes


@given(descriptions(), st.booleans())
def test_the_traffic_matrix_adds_up_to_the_bytes_moved(sides, near):
    source, destination = sides
    locations = Locations(ranks_of(source), ranks_of(destination)) if near else None
    plan = plan_model(source, destination, locations)
    matrix = plan.traffic()
    assert [len(row) for row in matrix] == [len(ranks_of(destination))] * len(ranks_of(source))
    assert sum(map(sum, matrix)) == plan.bytes_moved == plan.minimum_bytes
    assert not near or not any(matrix[rank][rank] for rank in set(ranks_of(source)) & set(ranks_of(destination)))


def test_replicas_share_the_parameters_of_a_model():
    source = {f"p{i}": ShardedWeight((8,), torch.float32, WHOLE) for i in range(6)}
    assert [sum(row) for row in plan_model(source, source).traffic()] == [192, 192]


def test_another_model_is_refused_by_the_name_of_the_parameter():
    source, _, _ = square()
    with pytest.raises(LayoutMismatch, match=r"'p' is \(5, 4\).*\(4, 4\)"):
        plan_model(source, square(5)[1])
    with pytest.raises(LayoutMismatch, match="'q' is only on one side"):
        plan_model(source, source | {"q": source["p"]})


def test_a_reader_that_follows_another_plan_is_refused():
    source, _, plan = square()
    publishers = [ShardPublisher(rank_of(source, rank), plan, rank) for rank in range(2)]
    _, other, other_plan = square(8)
    with pytest.raises(LayoutMismatch, match="'p\\[0\\]'"):
        connect(other_plan, publishers, 0, rank_of(other, 0))


def test_while_one_source_is_ahead_the_version_that_all_have_is_pulled():
    source, destination, plan = square()
    models = [rank_of(source, rank) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank) for rank, model in enumerate(models)]
    target = rank_of(destination, 0)
    subscriber = connect(plan, publishers, 0, target)

    def publish(rank, version):
        publishers[rank].publish(fill(models[rank], version), version)

    for ahead, behind, expected in ((1, 1, 1), (2, None, 1), (None, 2, 2), (None, 3, 2), (3, None, 3)):
        for rank, version in ((0, ahead), (1, behind)):
            if version is not None:
                publish(rank, version)
        assert pull(subscriber) == expected
        assert (target.p == expected).all()


def test_without_a_common_version_nothing_is_installed():
    source, destination, plan = square()
    models = [fill(rank_of(source, rank), 1) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank) for rank, model in enumerate(models)]
    target = rank_of(destination, 0)
    subscriber = connect(plan, publishers, 0, target)
    for rank in range(2):
        publishers[rank].publish(models[rank], rank)
    subscriber.timeout = 0.1
    with pytest.raises(NothingPublished, match="all 2 sources have whole for 0.1 s"):
        pull(subscriber)
    with pytest.raises(WeightPullError, match="version 1 cannot be installed"):
        subscriber.install(1)
    assert (target.p == 0).all()


def test_all_destination_ranks_install_the_same_version_even_if_one_fetched_an_older_one():
    source, destination, plan = square()
    models = [rank_of(source, rank) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank) for rank, model in enumerate(models)]
    targets = [rank_of(destination, rank) for rank in range(2)]
    first, second = (connect(plan, publishers, rank, target) for rank, target in enumerate(targets))

    def publish(version):
        for publisher, model in zip(publishers, models, strict=True):
            publisher.publish(fill(model, version), version)

    publish(1)
    assert asyncio.run(first.fetch()) == 1
    publish(2)
    assert asyncio.run(second.fetch()) == 2
    assert pull(first, second) == 2
    assert all((target.p == 2).all() for target in targets)


def test_nothing_is_installed_while_the_ranks_hold_different_versions():
    fetched, installed = iter([[1, 2], [2, 3], [3, 3]]), []

    async def fetch():
        return next(fetched)

    async def install(version):
        installed.append(version)

    assert asyncio.run(pull_together(fetch, install)) == 3
    assert installed == [3]


class FailingReader(LocalReader):
    """Reads headers only."""

    async def read_slot(self, slot, staging):
        raise WeightPullError("the source is gone")


class SlowReader(LocalReader):
    """Delivers a slot after everybody else had a turn, and says so."""

    delivered = False

    async def read_slot(self, slot, staging):
        for _ in range(10):
            await asyncio.sleep(0)
        await super().read_slot(slot, staging)
        self.delivered = True


def test_a_fetch_that_fails_leaves_the_model_and_nothing_to_install_and_no_read_under_way():
    source, destination, plan = square()
    models = [rank_of(source, rank) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank) for rank, model in enumerate(models)]
    target = rank_of(destination, 0)
    subscriber = connect(plan, publishers, 0, target)

    def publish(version):
        for publisher, model in zip(publishers, models, strict=True):
            publisher.publish(fill(model, version), version)

    publish(1)
    assert pull(subscriber) == 1
    whole = dict(subscriber.readers)
    slow = SlowReader(publishers[1].rings[0])
    subscriber.readers |= {0: FailingReader(publishers[0].rings[0]), 1: slow}
    assert asyncio.run(subscriber.fetch()) == 1, "nothing is newer, so nothing has to be read"
    publish(2)
    with pytest.raises(WeightPullError, match="gone"):
        asyncio.run(subscriber.fetch())
    assert slow.delivered
    with pytest.raises(WeightPullError, match="cannot be installed"):
        subscriber.install(1)
    assert (target.p == 1).all()
    subscriber.readers |= whole
    assert pull(subscriber) == 2
    assert (target.p == 2).all()


class ChunkedReader(LocalReader):
    """Delivers a slot in pieces in a random order, as a network may."""

    order = random.Random(0)

    async def read_slot(self, slot, staging):
        pieces = list(zip(self._ring.slots[slot].chunk(8), staging.chunk(8), strict=True))
        self.order.shuffle(pieces)
        for source, target in pieces:
            target.copy_(source)
            await asyncio.sleep(0)


def test_sources_that_take_steps_together_are_never_read_torn_or_mixed():
    source, _, plan = square(65536)
    models = [rank_of(source, rank) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank) for rank, model in enumerate(models)]
    readers = {rank: ChunkedReader(publisher.rings[0]) for rank, publisher in enumerate(publishers)}
    staging = {rank: torch.zeros(reader.layout.size, dtype=torch.uint8) for rank, reader in readers.items()}
    stop, read, step = threading.Event(), threading.Event(), threading.Barrier(2)

    def train(rank):
        version = 0
        try:
            while True:
                step.wait()
                publishers[rank].publish(fill(models[rank], version), version)
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
    whole, last = 0, -1
    try:
        for _ in range(200):
            try:
                version = asyncio.run(read_together(readers, staging, attempts=3))
            except WeightPullError:
                continue
            values = torch.cat([buffer.view(torch.float32) for buffer in staging.values()])
            assert (values == version).all(), f"version {version} holds {values.unique()[:4].tolist()}"
            assert version >= last
            whole, last = whole + 1, version
            read.set()
    finally:
        stop.set()
        read.set()
        for trainer in trainers:
            trainer.join()
    assert whole > 10
    assert last > 20


def test_weights_may_be_rounded_to_travel_and_arrive_as_their_own_type():
    source, _, _ = square()
    destination = {"p": ShardedWeight((4, 4), torch.float32, Sharding((1,), (EVERYWHERE,)))}
    plan = plan_model(source, destination)
    thirds = [rank_of(source, rank, lambda empty: number(empty) / 3) for rank in range(2)]
    publishers = [ShardPublisher(model, plan, rank, dtype=torch.bfloat16) for rank, model in enumerate(thirds)]
    for publisher, model in zip(publishers, thirds, strict=True):
        publisher.publish(model, 1)
    model = rank_of(destination, 0)
    readers = {rank: LocalReader(publisher.rings[0]) for rank, publisher in enumerate(publishers)}
    subscriber = ShardSubscriber(readers, model, plan, 0, torch.bfloat16)
    pull(subscriber)
    whole = number(torch.empty(4, 4)) / 3
    assert torch.equal(model.p, whole.bfloat16().float()) and not torch.equal(model.p, whole)
    assert subscriber.transfer_bytes == 2 * 16
    with pytest.raises(LayoutMismatch):
        ShardSubscriber(readers, model, plan, 0)
