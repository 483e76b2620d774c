"""A generator's handle knows which process its weights are in."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from echo import Deaf, Parrot

from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.replica import ReplicaFailed, ServiceOptions, replicas_of
from zorplex_rl.services.service import Service
from zorplex_rl.training import generator
from zorplex_rl.training.generator import NO_WEIGHTS, GeneratorHandle

pytestmark = pytest.mark.slow


class PublishedOnce:
    """A trainer with nothing new."""

    async def actor(self) -> str:
        return "the trainer"


def test_what_was_meant_for_a_process_with_weights_never_goes_to_its_successor_that_has_none():
    async def scenario():
        async with Service("parrot", replicas_of(Parrot), ServiceOptions(spares=1)) as service:
            await service.spares_ready()
            handle = GeneratorHandle(service, 0)
            assert handle.version == NO_WEIGHTS
            assert await handle.pull(PublishedOnce()) == handle.version == 3
            assert await handle.generate(["hello"]) == ["hello"]
            first = await service.replica_at(0)
            os.kill(service.replicas[0].pid, signal.SIGKILL)
            while await service.replica_at(0) is first:
                await asyncio.sleep(0.02)
            assert handle.version == NO_WEIGHTS
            with pytest.raises(ReplicaFailed, match="was replaced; pull first"):
                await handle.generate(["hello"])
            assert await handle.pull(PublishedOnce()) == 3
            assert await handle.generate(["hello"]) == ["hello"]

    asyncio.run(scenario())


def test_one_death_counts_once_however_many_calls_it_ends():
    async def scenario():
        async with Service("parrot", replicas_of(Parrot)) as service:
            handle = GeneratorHandle(service, 0)
            for _ in range(2):
                await handle.pull(PublishedOnce())
                os.kill(service.replicas[0].pid, signal.SIGKILL)
                ends = await asyncio.gather(*(handle.generate([]) for _ in range(20)), return_exceptions=True)
                assert {type(end) for end in ends} <= {list, ReplicaFailed}
                while handle.version != NO_WEIGHTS:
                    await asyncio.sleep(0.02)
                await service.replica_at(0)

    asyncio.run(scenario())


def test_a_generator_is_never_sent_the_address_of_a_trainer_that_died_while_it_was_replaced_itself():
    """The order of two waits, which real deaths hit only now and then: so a stand-in dies at the
    right moment."""
    subscribed = []

    class Trainer:
        address = "the first process"

        async def actor(self):
            return self.address

    class Generators:
        async def replica_at(self, index):
            trainer.address = "its successor"
            return "a replica"

        async def call(self, replica, endpoint, *args):
            subscribed.extend(args)
            return 1

    trainer = Trainer()
    assert asyncio.run(GeneratorHandle(Generators(), 0).pull(trainer)) == 1
    assert subscribed == ["its successor"]


def test_weights_that_a_trainer_offers_and_nobody_can_read_end_the_run_with_the_reason_and_no_flood(monkeypatch):
    monkeypatch.setattr(generator, "UNREADABLE_SECONDS", 1.0)
    asked = []

    class Trainer(PublishedOnce):
        async def call(self, endpoint):
            asked.append(endpoint)

    async def scenario():
        async with Service("deaf", replicas_of(Deaf)) as service:
            await GeneratorHandle(service, 0).pull(Trainer())

    with pytest.raises(WeightPullError, match="generator 0 cannot read the trainer's weights: the trainer is far away"):
        asyncio.run(scenario())
    assert 1 < len(asked) < 5
