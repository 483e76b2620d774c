"""What a caller is told when an endpoint raises: type, message and trace, as text."""

from __future__ import annotations

import asyncio
import threading

import pytest
from echo import in_flight, service_of

from zorplex_rl.errors import TaskError
from zorplex_rl.services.runtime import (
    Actor,
    ActorError,
    EndpointError,
    ReplicaDied,
    concurrent_endpoint,
)
from zorplex_rl.services.spawn import spawn

pytestmark = pytest.mark.slow

PATIENCE = 30.0
"""Seconds after which a caller counts as one who waits for ever."""


class TwoArguments(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


RAISED = (
    ValueError("x"),
    KeyError("a"),
    TwoArguments(1, 2),
    asyncio.CancelledError(),
    SystemExit(3),
)


class Troubled(Actor):
    """Raises and returns what it is asked for."""

    @concurrent_endpoint
    async def fail(self, number: int) -> None:
        raise RAISED[number]

    @concurrent_endpoint
    async def fail_with_a_lock(self) -> None:
        raise Unpicklable

    @concurrent_endpoint
    async def give_a_lock(self) -> object:
        return threading.Lock()

    @concurrent_endpoint
    async def refuse_the_task(self) -> None:
        raise TaskError("its file is empty")

    @concurrent_endpoint
    async def nap(self) -> None:
        await asyncio.sleep(60)


async def test_whatever_an_endpoint_raises_is_an_answer_and_leaves_its_process_alone():
    options = {"idempotent": ("fail",), "max_in_flight": 1}
    async with service_of(Troubled, **options) as service, asyncio.timeout(PATIENCE):
        (before,) = service.replicas
        for number, error in enumerate(RAISED):
            with pytest.raises(EndpointError) as found:
                await service.fail.route(number)
            assert (found.value.kind, found.value.message) == (type(error).__name__, str(error))
            assert "in fail" in found.value.trace
        with pytest.raises(EndpointError, match="it holds a lock"):
            await service.fail_with_a_lock.route()
        with pytest.raises(ActorError, match="lock"):
            await service.give_a_lock.route()
        assert [type(answer) for answer in await service.fail.fanout(0)] == [EndpointError]
        assert service.replicas == [before] and in_flight(service) == 0
        counts = service.router.counts
        assert (counts["raised"], counts["failed"], counts["retries"]) == (len(RAISED) + 2, 0, 0)


async def test_an_error_of_this_package_arrives_as_itself():
    async with service_of(Troubled) as service:
        with pytest.raises(TaskError, match="^its file is empty"):
            await service.refuse_the_task.route()


async def test_a_call_whose_actor_is_stopped_ends_as_if_its_process_had_died():
    replica = await spawn("troubled", Troubled)
    call = replica.method("nap")().as_asyncio()
    await asyncio.sleep(0.2)
    await replica.stop()
    with pytest.raises(ReplicaDied):
        await asyncio.wait_for(call, PATIENCE)
