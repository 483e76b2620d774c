"""Serve notebook 01: play a learner's actors in this process, as Monarch would, and take times.

Mailbox(Summer, rank=1, size=4).add.call_one([1, 2])       a copy, in order, one at a time; nothing is started
expect_a_summer(Summer)                                    raises AssertionError with a sentence that shows the calls
expect_long_rallies(MendedPlayer)
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import random
import time
from collections.abc import Awaitable, Callable
from itertools import accumulate
from statistics import median
from types import SimpleNamespace
from typing import Any

from monarch._src.actor import actor_mesh

from zorplex_rl.course.lesson.compare import difference
from zorplex_rl.course.lesson.exercise import same, shortest
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, endpoint, monarch

PATIENCE_S = 2.0
"""How long a check waits until it calls a rally of some dozen hits a deadlock."""


async def _nothing(self: Any) -> None: ...


_ONE_AT_A_TIME, _SIDE_BY_SIDE = type(endpoint(_nothing)), type(concurrent_endpoint(_nothing))


class Reply(asyncio.Task[Any]):
    """Hold the answer of a call, as Monarch's future does."""

    def as_asyncio(self) -> asyncio.Future[Any]:
        """Return the asyncio future behind it."""
        return self


class Mailbox:
    """Play one actor in the running event loop; it may itself be sent in a message."""

    def __init__(self, actor_class: type, rank: int = 0, size: int = 1) -> None:
        name = actor_class.__name__
        assert isinstance(actor_class, type) and issubclass(actor_class, Actor), (
            f"`{name}` does not inherit from `Actor`"
        )
        kinds = {
            inspect.iscoroutinefunction(inspect.unwrap(found._method))
            for found in _endpoints(actor_class).values()
        }
        assert len(kinds) < 2, (
            f"`{name}` has endpoints with `async def` and with `def`: Monarch wants one kind in a class"
        )
        self._class = actor_class
        self._place = (rank, size)
        self._lock = asyncio.Lock()
        self._self = actor_class()

    def __getattr__(self, name: str) -> SimpleNamespace:
        found = _endpoints(self._class).get(name)
        if found is None:
            raise AttributeError(f"{self._class.__name__} has no endpoint {name}")
        send = functools.partial(self.send, found, self._place)
        return SimpleNamespace(
            call_one=send, choose=send, broadcast=lambda *sent: send(*sent) and None
        )

    def __deepcopy__(self, memo: object) -> Mailbox:
        return self

    def send(self, found: Any, place: tuple[int, int], *sent: Any) -> Reply:
        """Put a copy of ``sent`` into the mailbox, for a mesh in which this is its ``place``."""
        reply = Reply(self._answer(found, place, copy.deepcopy(sent)))
        # Of a broadcast, nobody ever asks.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        return reply

    async def ask(self, name: str, *sent: Any, rank: int, size: int) -> Any:
        """Send a message, as to ``rank`` in a mesh of ``size``. Returns the answer."""
        found = getattr(self, name) and _endpoints(self._class)[name]
        return await self.send(found, (rank, size), *sent)

    async def _answer(self, found: Any, place: tuple[int, int], sent: tuple[Any, ...]) -> Any:
        rank, size = place
        point = monarch.actor.Point(rank, monarch.actor.Extent(["actors"], [size]))
        # Each task has its own context, so no other one sees this rank.
        actor_mesh._context.set(SimpleNamespace(message_rank=point))
        method = inspect.unwrap(found._method)
        if type(found) is _SIDE_BY_SIDE:
            return await method(self._self, *sent)
        async with self._lock:
            answer = method(self._self, *sent)
            return copy.deepcopy(await answer if inspect.isawaitable(answer) else answer)


def _endpoints(actor_class: type) -> dict[str, Any]:
    found = {name: getattr(actor_class, name, None) for name in dir(actor_class)}
    return {name: each for name, each in found.items() if isinstance(each, _ONE_AT_A_TIME)}


def expect_a_summer(actor_class: type) -> None:
    """Compare an actor with ``Summer`` on random messages. Raises AssertionError."""
    shortest(lambda draw: asyncio.run(_expect_a_summer(actor_class, draw)), times=60)


async def _expect_a_summer(actor_class: type, draw: random.Random) -> None:
    actor = Mailbox(actor_class)
    total = 0
    before = cause = ""
    for _ in range(8):
        size = draw.randint(1, 5)
        rank = draw.randrange(size)
        if draw.random() < 0.4:
            end = draw.choice((0, 3, draw.randint(0, 60)))
            call, wanted = f"add_range({end})", sum(range(rank, end, size))
            sent: tuple[Any, ...] = ("add_range", end)
        else:
            numbers = [draw.randint(-9, 20) for _ in range(draw.randint(0, 4))]
            numbers += [-total - sum(numbers) - draw.randint(0, 2)] * (draw.random() < 0.3)
            call, sent = f"add({numbers})", ("add", numbers)
            wanted = total + sum(numbers)
        where = f"`{call}` to rank {rank} of {size}" if sent[0] == "add_range" else f"`{call}`"
        fails = sent[0] == "add" and wanted < 0
        try:
            answer = await actor.ask(*sent, rank=rank, size=size)
        except Exception as error:
            said = f"{before}{where} raises `{type(error).__name__}: {error}`"
            if sent[0] == "add":
                cause = cause or _why_refused(total, numbers)
            assert fails, f"{cause}{said}, and should give `{wanted}`"
            if not isinstance(error, ValueError):
                raise AssertionError(f"{said}, and should raise `ValueError`") from None
            cause = "the total has changed in a call that raised. "
            where += ", which rightly raised"
        else:
            assert not fails, (
                f"{before}{where} gives `{answer}`, and should raise `ValueError`: the total would be {wanted}"
            )
            if sent[0] == "add_range":
                ways = _wrong_ranges(rank, end, size)
                cause = next((f"{said}. " for said, way in ways.items() if way == answer), "")
            assert same(answer, wanted), cause + difference(before + where, answer, wanted)
            total = wanted if sent[0] == "add" else total
        before = f"After {where}, " if not before else f"{before.removesuffix(', ')} and {where}, "


def _why_refused(total: int, numbers: list[int]) -> str:
    """Return why an actor may have refused ``numbers``, as a sentence; or nothing."""
    if min(accumulate(numbers, initial=total)) < 0:
        return "only the total after the whole list counts. "
    return "a total of exactly 0 is allowed. " if total + sum(numbers) == 0 else ""


def _wrong_ranges(rank: int, end: int, size: int) -> dict[str, int]:
    """Return what ``add_range`` gives, by the mistake that makes it."""
    ways = {
        # Longest sentence first, since the check tells its shortest complaint: a mistake that agrees with
        # a longer one in some case is told by its own sentence from another case.
        "a rank stored in `__init__` is the place in the whole mesh: in a slice the actor has another one, so read it in each message": range(
            0, end, size
        ),
        "every actor adds up all numbers: read the rank, and how many actors are called, in each message": range(
            0, end
        ),
        "the step is the number of actors that are called, not always 4": range(rank, end, 4),
        "an actor gets every n-th number, not a block of them": range(
            rank * end // size, (rank + 1) * end // size
        ),
        "`end` itself does not belong to the sum": range(rank, end + 1, size),
    }
    return {said: sum(numbers) for said, numbers in ways.items()}


def expect_long_rallies(actor_class: type) -> None:
    """Let two players play. Raises AssertionError where a rally stops, or hits are lost."""
    asyncio.run(_expect_long_rallies(actor_class))


async def _expect_long_rallies(actor_class: type) -> None:
    for left in (0, 1, 2, 7, 60):
        ping, pong = Mailbox(actor_class), Mailbox(actor_class)
        await ping.meet.call_one(pong)
        await pong.meet.call_one(ping)
        rally = ping.hit.call_one(left)
        called = f"`ping.hit({left})`"
        wanted = left // 2 + 1, (left + 1) // 2
        end, found = time.monotonic() + PATIENCE_S, (0, 0)
        try:
            while found != wanted or len(asyncio.all_tasks()) > 1:
                assert time.monotonic() < end
                nobody_plays = len(asyncio.all_tasks()) == 1
                found = await asyncio.wait_for(_ask_both(ping, pong), PATIENCE_S)
                assert sum(found) <= sum(wanted)
                assert found == wanted or not nobody_plays
            await rally
        except TimeoutError:
            raise AssertionError(
                f"each player waits in a plain endpoint for the other one. {called}: a deadlock, no player answers `hits_so_far` any more"
            ) from None
        except AssertionError:
            cause = (
                "is the ball passed on with `left - 1`, and only while `left` is above 0"
                if sum(found) > sum(wanted)
                else "does the ball reach the other player"
                if not found[1]
                else "is nothing awaited between reading `self.hits` and writing it"
            )
            raise AssertionError(
                f"{called}: ping counts {found[0]} hits and pong {found[1]}, and they should count {wanted[0]} and {wanted[1]}; {cause}?"
            ) from None
        except Exception as error:
            if "coroutine was expected" in str(error):
                raise AssertionError(
                    f"{called}: `call_one` has already sent the message, and there is no coroutine to wrap into a task"
                ) from None
            raise AssertionError(f"{called} raises `{type(error).__name__}: {error}`") from None


async def _ask_both(ping: Mailbox, pong: Mailbox) -> tuple[int, int]:
    await asyncio.sleep(0)
    return await ping.hits_so_far.call_one(), await pong.hits_so_far.call_one()


def listed(answers: Any) -> str:
    """Write the answers of several actors, a ValueMesh or a list, one after the other."""
    return ", ".join(
        f"`{answer}`" for answer in (answers if isinstance(answers, list) else answers.values())
    )


def draw_naps(draw: random.Random) -> tuple[list[float], bool]:
    """Draw the arguments of ``answer_times``."""
    return [draw.randint(1, 40) / 10 for _ in range(draw.randint(0, 6))], draw.random() < 0.5


async def two_players(procs: Any, player_class: type) -> tuple[Any, Any]:
    """Start two players in two processes of row 1, and introduce them to each other."""
    ping, pong = (
        procs.slice(rows=1, columns=column).spawn(name, player_class)
        for column, name in enumerate(("ping", "pong"))
    )
    await ping.meet.call_one(pong)
    await pong.meet.call_one(ping)
    return ping, pong


async def play(ping: Any, pong: Any, hits: int) -> float:
    """Play a rally of ``hits``. Returns the seconds until all of it is counted."""
    start = time.monotonic()
    rally = ping.hit.call_one(hits - 1)
    while await ping.hits_so_far.call_one() + await pong.hits_so_far.call_one() < hits:
        pass
    await rally
    return time.monotonic() - start


async def answers_within(seconds: float, reply: Any) -> bool:
    """Return True if ``reply`` comes in time."""
    try:
        await asyncio.wait_for(reply.as_asyncio(), seconds)
    except TimeoutError:
        return False
    return True


async def timed(work: Awaitable[Any]) -> tuple[Any, float]:
    """Wait for ``work``. Returns its result and the seconds that it took."""
    start = time.perf_counter()
    return await work, time.perf_counter() - start


async def seconds_each(
    work: Callable[[], Awaitable[Any]], times: int = 1, within: float = 0.4
) -> float:
    """Return the median seconds of ``work``, for one of ``times`` things that it does."""
    runs: list[float] = []
    end = time.perf_counter() + within
    while not runs or time.perf_counter() < end:
        runs.append((await timed(work()))[1] / times)
    return median(runs)
