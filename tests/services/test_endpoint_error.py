"""What a caller is told when an endpoint raises, whatever that is: real processes, and exceptions
as odd as a user's code may have."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading

import pytest
from zorplex_rl.services.endpoint_error import MOST_CHARACTERS, RemoteException

from zorplex_rl.errors import TaskError
from zorplex_rl.services.replica import ServiceOptions, replicas_of, spawn
from zorplex_rl.services.router import Failure
from zorplex_rl.services.runtime import (
    Actor,
    ActorError,
    EndpointError,
    Refused,
    ReplicaDied,
    concurrent_endpoint,
    fail_if_cancelled_inside,
    reason_of,
    run_together,
)
from zorplex_rl.services.service import Service

PATIENCE = 30.0
"""Seconds after which a caller counts as one who waits for ever."""


class TwoArguments(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Liar(Exception):
    def __reduce__(self):
        return str, ("another thing",)


class Deserter(Exception):
    def __reduce__(self):
        return _raise, (SystemExit(3),)


class Unprintable(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class Alien(BaseException):
    pass


def homeless() -> Exception:
    """An exception whose class does not say of which module it is, which stops pytest, too."""

    class Homeless(type):
        @property
        def __module__(cls):
            raise RuntimeError("it is of no module")

    return Homeless("homeless", (Exception,), {})("x")


class Brittle:
    """Can be sent, and cannot be received."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _raise, (self.error,)


def _raise(error):
    raise error


ODD = (
    asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopIteration(1), StopAsyncIteration(), Alien("x"),
    BaseExceptionGroup("all", [Alien("x")]), TwoArguments(1, 2), Unpicklable, Liar("x"), Deserter("x"), Unprintable("x"), ValueError("x" * 10**7),
    Refused("not by its process"), homeless,
)  # fmt: skip


class Troubled(Actor):
    """Raises and returns what it is asked for."""

    @concurrent_endpoint
    async def fail(self, number: int) -> None:
        error = ODD[number]
        raise error if isinstance(error, BaseException) else error()

    @concurrent_endpoint
    async def fail_in_a_thread(self) -> None:
        await asyncio.to_thread(_raise, asyncio.CancelledError())

    @concurrent_endpoint
    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @concurrent_endpoint
    async def give(self, what: str) -> object:
        return {
            "a lock": threading.Lock(),
            "an error": Brittle(KeyError("x")),
            "a cancellation": Brittle(asyncio.CancelledError()),
        }[what]

    @concurrent_endpoint
    async def nap(self) -> int:
        await asyncio.sleep(60)
        return os.getpid()


def troubled(**options):
    endpoints = {"fail", "fail_in_a_thread", "give"}
    return Service("troubled", replicas_of(Troubled), ServiceOptions(idempotent=endpoints, start_timeout=60, **options))


def test_whatever_an_endpoint_raises_is_an_answer_and_leaves_its_process_alone():
    async def scenario():
        async with troubled(max_in_flight=1) as service, asyncio.timeout(PATIENCE):
            (before,) = service.replicas
            for number, error in enumerate(ODD):
                with pytest.raises(ActorError, match=getattr(error, "__name__", type(error).__name__)):
                    await service.fail.route(number)
            with pytest.raises(ActorError, match="CancelledError"):
                await service.fail_in_a_thread.route()
            assert [type(answer) for answer in await service.fail.fanout(0)] == [Failure]
            assert service.replicas == [before] and service.router.in_flight == 0
            counts = service.status()
            assert (counts.application_errors, counts.errors, counts.retries) == (len(ODD) + 2, 0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["a lock", "an error", "a cancellation"])
def test_an_answer_that_cannot_be_sent_or_received_is_an_error(what):
    async def scenario():
        async with troubled(max_in_flight=1) as service, asyncio.timeout(PATIENCE):
            (before,) = service.replicas
            for _ in range(2):
                with pytest.raises(ActorError):
                    await service.give.route(what)
            assert [type(answer) for answer in await service.give.fanout(what)] == [Failure]
            assert service.replicas == [before] and service.router.counts["raised"] == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["nap", "cancel_itself"])
def test_a_call_whose_task_is_cancelled_ends_as_if_its_process_had_died(method):
    async def scenario():
        replica = await spawn("troubled", Troubled)
        call = replica.method(method)().as_asyncio()
        if method == "nap":
            await asyncio.sleep(0.2)
            await replica.stop()
        with pytest.raises(ReplicaDied):
            await asyncio.wait_for(call, PATIENCE)
        await replica.stop()

    asyncio.run(scenario())


def sent(error: BaseException) -> EndpointError:
    return pickle.loads(pickle.dumps(EndpointError.of(error, "It failed.")))


@pytest.mark.parametrize("error", [TaskError("no"), OSError(28, "full"), KeyError("a"), asyncio.CancelledError()])
def test_an_exception_that_survives_the_way_arrives_as_it_was(error):
    found = sent(sent(error)).exception.exception
    assert (type(found), found.args) == (type(error), error.args)


@pytest.mark.parametrize(
    "error", [TwoArguments(1, 2), Unpicklable(), Liar("it lies"), Deserter("it exits"), ValueError("x" * 10**6)]
)
def test_of_any_other_exception_type_message_notes_and_causes_arrive_as_text(error):
    error.add_note("this is a note")
    try:
        raise error from KeyError("the cause")
    except Exception as raised:
        found = sent(raised)
    assert isinstance(found.exception, RemoteException)
    assert type(error).__name__ in str(found.exception) and str(error)[:100] in str(found.exception)
    assert found.exception.__notes__ == ["this is a note"]
    for text in ("the cause", "this is a note", "in test_of_any_other"):
        assert text in str(found)
    assert len(str(found)) < MOST_CHARACTERS + 100


def test_a_class_that_the_caller_does_not_have_is_no_obstacle(monkeypatch):
    content = pickle.dumps(EndpointError.of(Alien("unknown here"), "It failed."))
    monkeypatch.delattr("test_endpoint_error.Alien")
    assert str(pickle.loads(content).exception) == "test_endpoint_error.Alien: unknown here"


def test_a_cancellation_that_nobody_asked_for_ends_what_runs_together():
    async def cancelled():
        raise asyncio.CancelledError

    async def scenario():
        with pytest.raises(RuntimeError, match="cancelled was cancelled from inside"):
            await asyncio.wait_for(run_together(cancelled(), asyncio.sleep(60)), PATIENCE)
        waiting = asyncio.create_task(fail_if_cancelled_inside(asyncio.sleep(60)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())


def test_a_reason_in_a_few_words_names_the_call_and_what_it_raised():
    failed = EndpointError.of(MemoryError("no room\nfor more"), "Actor call GeneratorActor.setup failed.")
    assert reason_of(failed) == "Actor call GeneratorActor.setup failed: MemoryError: no room"
