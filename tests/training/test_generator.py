"""A generator's handle knows which process its weights are in."""

from __future__ import annotations

import asyncio
import os
import signal
from inspect import unwrap

import pytest
from echo import Deaf, Parrot
from runs import until

from zorplex_rl.config import Config
from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.options import ReplicaFailed, ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.runtime import start_monarch, this_host
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.training import generator
from zorplex_rl.training.generator import NO_WEIGHTS, GeneratorActor, GeneratorHandle

pytestmark = pytest.mark.slow


class PublishedOnce:
    """A trainer with nothing new."""

    async def actor(self) -> str:
        return "the trainer"


def test_what_was_meant_for_a_process_with_weights_never_goes_to_its_successor_that_has_none():
    restarts: list[object] = []

    async def scenario():
        options = ServiceOptions(spares=1)
        async with Service("parrot", replicas_of(Parrot), options) as service:
            service.on_restart = restarts.append
            await service.spares_ready()
            handle = GeneratorHandle(service, 0)
            assert handle.version == NO_WEIGHTS
            assert await handle.pull(PublishedOnce()) == handle.version == 3
            assert await handle.call("generate", ["hello"]) == ["hello"]
            first = await service.replica_at(0)
            os.kill(first.pid, signal.SIGKILL)
            # However many calls its death ends, it counts once.
            ends = await asyncio.gather(
                *(handle.call("generate", []) for _ in range(20)), return_exceptions=True
            )
            assert {type(end) for end in ends} <= {list, ReplicaFailed}
            await until(
                lambda: (
                    service.replicas[0] is not first and service.replicas[0].state is State.READY
                )
            )
            assert handle.version == NO_WEIGHTS
            with pytest.raises(ReplicaFailed, match="pull first"):
                await handle.call("generate", ["hello"])
            assert await handle.pull(PublishedOnce()) == 3
            assert await handle.call("generate", ["hello"]) == ["hello"]
            assert len(restarts) == 1

    asyncio.run(scenario())


def test_a_generator_is_never_sent_the_address_of_a_trainer_that_died_while_it_was_replaced_itself():
    """The order of two waits, which real deaths hit only now and then: so a stand-in dies at the
    right moment."""
    subscribed = []

    class Trainer:
        address = "the first process"

        async def actor(self):
            return self.address

    class Generator(Replica):
        async def call(self, endpoint, *args):
            subscribed.extend(args)
            return 1

    class Generators:
        async def replica_at(self, index):
            trainer.address = "its successor"
            return Generator("generator_0")

    trainer = Trainer()
    assert asyncio.run(GeneratorHandle(Generators(), 0).pull(trainer)) == 1
    assert subscribed == ["its successor"]


def test_weights_that_a_trainer_offers_and_cannot_be_read_end_the_run_with_the_reason_and_no_flood(
    monkeypatch,
):
    monkeypatch.setattr(generator, "UNREADABLE_SECONDS", 1.0)
    asked = []

    class Trainer(PublishedOnce):
        async def call(self, endpoint):
            asked.append(endpoint)

    async def scenario():
        async with Service("deaf", replicas_of(Deaf)) as service:
            await GeneratorHandle(service, 0).pull(Trainer())

    with pytest.raises(WeightPullError, match="generator 0 .*: the trainer is far away"):
        asyncio.run(scenario())
    assert 1 < len(asked) < 5


def test_its_progress_forgets_what_an_exception_or_a_cancellation_has_ended():
    """What a message would call is called here: a process adds nothing to this."""
    actor = object.__new__(GeneratorActor)
    actor._calls, actor.config = [], Config(group_size=1)
    ends = asyncio.Event()

    class Failing:
        async def sample(self, requests):
            await ends.wait()
            raise ValueError("no such task")

    async def compute(*call):
        raise ValueError("no such task")

    def call(endpoint, *arguments):
        return unwrap(endpoint._method)(actor, *arguments)

    actor._stream, actor.compute = Failing(), compute

    async def scenario():
        tasks = [*enumerate(Zorplex(0).tasks(("simple",), 3))]
        cancelled, failing = (asyncio.create_task(call(actor.generate, tasks)) for _ in range(2))
        await asyncio.sleep(0)
        assert await call(actor.progress) == "0 of 6"
        cancelled.cancel()
        ends.set()
        evaluating = call(actor.evaluate, [task for _, task in tasks])
        ended = await asyncio.gather(cancelled, failing, evaluating, return_exceptions=True)
        assert [type(error) for error in ended] == [asyncio.CancelledError, ValueError, ValueError]
        assert await call(actor.progress) == "0 of 0"

    asyncio.run(scenario())


@pytest.mark.long
def test_its_progress_counts_what_is_under_way_and_forgets_what_is_over():
    async def scenario():
        procs = this_host().spawn_procs(per_host={"procs": 1})
        actor = procs.spawn(
            "generator", GeneratorActor, "generator_0", Config(group_size=1, max_tokens=4), "cpu"
        )
        await actor.setup.call_one()
        tasks = enumerate(Zorplex(0).tasks(("simple",), 3))
        await asyncio.gather(*(actor.generate.call_one([task]) for task in tasks))
        assert await actor.progress.call_one() == "0 of 0"
        await procs.stop()

    start_monarch()
    asyncio.run(scenario())
