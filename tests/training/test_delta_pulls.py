"""Changes of weights from one process to another, while the writer races on, versions are missed and
the publisher is killed: every pull is bit for bit one version, and most read only what has
changed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from dataclasses import replace

import pytest
import torch
from publishing_actor import PublishingActor
from runs import SMALL, final_weights, same_weights, train_here, undisturbed_weights
from zorplex_rl.services.worker import HOST_ADDRESS

from zorplex_rl.errors import WeightPullError
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.services.replica import spawn
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.training.transports import Publisher, subscribe
from zorplex_rl.weights.layout import Layout
from zorplex_rl.weights.ring import NOTHING_PUBLISHED

NUMBERS, SHARE, FULL_EVERY, VERSIONS, ENOUGH = 65536, 0.02, 50, 1000, 20
TRANSPORTS, PAUSE = ("shm", "tcp", "message", "rdma"), 0.004


class Weights(torch.nn.Module):
    """Weights of which each version is a function of the one before and its number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(NUMBERS, dtype=torch.bfloat16), requires_grad=False)
        self.version = 0

    def go_to(self, version: int) -> Weights:
        while self.version < version:
            self.version += 1
            chance = torch.Generator().manual_seed(self.version)
            where = torch.randint(0, NUMBERS, (int(SHARE * NUMBERS),), generator=chance)
            self.w[where] = torch.randn(len(where), generator=chance).to(torch.bfloat16)
        return self


class WriterActor(PublishingActor):
    """Publishes one version after the other; ``begin`` is the first."""

    def __init__(self, begin: int) -> None:
        self.weights = Weights().go_to(begin - 1)
        os.environ[HOST_ADDRESS] = "127.0.0.1"
        self.publisher = Publisher(self.weights, 4, full_every=FULL_EVERY)

    @concurrent_endpoint
    async def race(self, until: int, pause: float) -> None:
        def write() -> None:
            while self.weights.version < until:
                self.weights.go_to(self.weights.version + 1)
                self.publisher.publish(self.weights, self.weights.version)
                threading.Event().wait(pause)

        threading.Thread(target=write, daemon=True).start()


async def follow(writer, transport, until, expected, chance, most=0):
    """Pull until ``until`` is there, and check every version; up to ``most`` until enough pulls read
    changes, as a reader that waits for a processor is often too far behind. Returns the bytes of each
    pull that brought one."""
    model, sizes = Weights(), []
    source = replace(await writer.source.call_one(), owner=writer)
    subscriber = await subscribe(source, transport, model)
    while subscriber.version < until or (subscriber.version < most and changes_in(sizes) <= ENOUGH):
        before = subscriber.version
        try:
            version = await subscriber.pull()
        except WeightPullError:
            continue
        assert version >= before
        if version > max(before, NOTHING_PUBLISHED):
            assert torch.equal(model.w, expected.go_to(version).w), f"{transport}: {version} after {before}"
            sizes.append(subscriber.bytes_read)
        if chance.random() < 0.1:
            await asyncio.sleep(0.05)  # misses versions
    return sizes


def changes_in(sizes):
    """Return how many of the pulls read changes only."""
    return sum(size < 2 * NUMBERS / 4 for size in sizes)


def test_a_thousand_versions_of_a_racing_writer_and_of_its_successor_arrive_bit_for_bit_by_every_transport():
    expected = {transport: (Weights(), random.Random(transport)) for transport in TRANSPORTS}

    async def follow_all(begin, until, most=0):
        """Have a writer race on from version ``begin``, until all have read ``until``, and kill it.
        Returns the sizes of each reader's pulls."""
        writer = await spawn("writer", WriterActor, begin)
        try:
            await writer.actor.race.call_one(max(until, most), PAUSE)
            followed = (follow(writer.actor, name, until, *reader, most) for name, reader in expected.items())
            found = await asyncio.gather(*followed)
            os.kill(await writer.actor.process_id.call_one(), signal.SIGKILL)
        finally:
            await writer.stop()
        return found

    async def run():
        first = await follow_all(1, VERSIONS // 2, 10 * VERSIONS)
        begin = max(weights.version for weights, _ in expected.values()) + 1
        second = await follow_all(begin, begin - 1 + VERSIONS // 2)
        return [one + other for one, other in zip(first, second, strict=True)]

    for transport, sizes in zip(TRANSPORTS, asyncio.run(run()), strict=True):
        assert changes_in(sizes) > ENOUGH, f"{transport}: most pulls read what has changed"
        assert sum(size >= 2 * NUMBERS for size in sizes) >= 2, (
            f"{transport}: the first of each publisher, and what was missed, is read whole"
        )


def test_a_publisher_that_is_killed_in_mid_pull_leaves_the_model_as_it_was():
    async def run():
        writer = await spawn("writer", WriterActor, 1)
        try:
            await writer.actor.race.call_one(3, 0)
            model = Weights()
            subscriber = await subscribe(
                replace(await writer.actor.source.call_one(), owner=writer.actor), "message", model
            )
            while await subscriber.pull() < 3:
                pass
            os.kill(await writer.actor.process_id.call_one(), signal.SIGKILL)
            for _ in range(3):
                with pytest.raises(WeightPullError):
                    await subscriber.pull()
            assert torch.equal(model.w, Weights().go_to(3).w)
        finally:
            await writer.stop()

    asyncio.run(run())


def test_a_run_whose_weights_travel_as_changes_ends_in_the_weights_of_one_whose_travel_whole(
    tmp_path, sync_run, embedded
):
    config = SMALL.changed(transfer_dtype="bfloat16", learning_rate=2e-6, full_weights_every=100)
    run = train_here(config, tmp_path / "run")
    assert same_weights(final_weights(run.path), undisturbed_weights(config))
    whole, changes = (list(filter(None, bytes_of_pulls(run))) for run in (sync_run, run))
    assert set(whole) == {Layout.of(embedded.model).size}
    assert changes[0] == Layout.of(embedded.model, torch.bfloat16).size
    assert len(changes) == len(whole) and max(changes[1:]) < changes[0] / 10


def bytes_of_pulls(run):
    return [span.args["bytes"] for span in Timeline.load(run.timeline).spans if span.kind == "pull"]
