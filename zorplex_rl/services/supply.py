"""Supply a service with replicas: spares first, else new ones, started until one is up.

    take ──► a spare? ── yes ──► does it answer a probe? ── yes ──► it, and another spare is started
               │ no                       │ no: it had died
               └──► start ──► it fails ───┴──► back off, start, …    after ``max_failures`` in a row: GiveUp

Spares are set up and get no requests. If a set-up raises, the first replica of a place gets one
more attempt, but not after ConfigError.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.endpoint_error import reason_of
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart
from zorplex_rl.services.runtime import ActorError
from zorplex_rl.services.service_errors import GivenUp, ReplicaFailed

Spawn = Callable[[Coroutine[Any, Any, Any]], Any]
log = logging.getLogger(__name__)


class GiveUp(Exception):
    """Say, also from within a start, that further attempts are pointless. Callers get ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Streak:
    """Count the failures in a row of one place: of starts, and of replicas without an answer."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name, self.options, self.count = name, options, 0

    async def add(self, last: str) -> None:
        """Count a failure, and wait, longer each time. Raises GiveUp after too many."""
        self.count += 1
        if self.count > self.options.max_failures:
            times = f"has failed {self.count} times in a row without finishing anything"
            look = f"; look at {self.options.runs}" if self.options.runs else ""
            raise GiveUp(GivenUp(f"{self.name} {times}; the last time, {last}{look}"))
        await asyncio.sleep(back_off(self.count, self.options.back_off, self.options.max_back_off))


class Supply:
    """Start the replicas of one service with ``start(name)``, and keep its spares. ``spawn`` runs
    on the side what ends those that nobody wants any more."""

    def __init__(self, name: str, start: ReplicaStart, options: ServiceOptions, spawn: Spawn) -> None:
        self.name, self._start, self._options, self._spawn = name, start, options, spawn
        self._numbers = count()
        self._spares: list[asyncio.Task[Replica]] = []
        """Those that are ready are done."""

    def keep_spares(self, number: int) -> None:
        """Start ``number`` spares."""
        self._spares += [asyncio.create_task(self._start_one(self.streak())) for _ in range(number)]

    def streak(self) -> Streak:
        """Return the count of a new place."""
        return Streak(self.name, self._options)

    async def spares_ready(self) -> None:
        """Wait until every spare is ready or cannot start, so that none disturbs requests."""
        await asyncio.gather(*self._spares, return_exceptions=True)

    async def take(self, streak: Streak, first: bool = False) -> Replica:
        """Return a replica that has just answered a probe; ``first`` means the first of its place.
        Raises GiveUp, or what the set-up of a first one raised."""
        while True:
            spare = bool(self._spares)
            starting = self._spares.pop(0) if spare else asyncio.create_task(self._start_one(streak, first))
            if spare:
                self.keep_spares(1)
            try:
                replica = await starting
                if spare:
                    await replica.beat(self._options.probe_timeout)
                return replica
            except BaseException as error:
                self._spawn(_discard(starting))
                if not isinstance(error, TimeoutError | ReplicaFailed):
                    raise
            await streak.add("a spare had died before it took over")

    async def close(self) -> list[Replica]:
        """Start no more. Returns the spares that are up, for their end."""
        for task in self._spares:
            task.cancel()
        outcomes = await asyncio.gather(*self._spares, return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, Replica)]

    async def _start_one(self, streak: Streak, first: bool = False) -> Replica:
        """Start a replica, again and again until one is up."""
        raised = 0
        while True:
            name = f"{self.name}_{next(self._numbers)}"
            try:
                return await bring_up(name, self._start, self._options.start_timeout)
            except GiveUp:
                raise
            except Exception as error:
                cause = error.exception if isinstance(error, ActorError) else error
                raised += isinstance(error, ActorError)
                if isinstance(cause, ConfigError):
                    raise GiveUp(cause) from error
                if first and raised > 1:
                    raise
                reason = reason_of(error) or type(error).__name__
                log.warning("a replica of %r could not be started: %s", self.name, reason)
                await streak.add(f"{name} could not be started: {reason}")


async def bring_up(name: str, start: ReplicaStart, start_timeout: float) -> Replica:
    """Start a replica, wait for its set-up, and probe it. Leaves no process behind if that fails.
    Raises TimeoutError after ``start_timeout`` seconds."""
    try:
        async with asyncio.timeout(start_timeout) as limit:
            replica = await start(name)
            try:
                await replica.unless_lost(replica.actor.initialized.as_asyncio())
                await replica.unless_lost(replica.probe.begin.call().as_asyncio())
            except BaseException:
                await replica.stop()
                raise
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"it was not ready within {start_timeout:g} s") from error
    replica.since = time.monotonic()
    return replica


def back_off(failures: int, base: float, most: float) -> float:
    """Return how many seconds to wait before the next start, after so many early failures in a row.

    Nothing after the first, ``base`` after the second, then doubled up to ``most``; less up to half
    by chance, so that replicas that failed together do not all start together. The exponent is
    bounded: a float is not, and a place may fail for days.
    """
    if failures < 2:
        return 0.0
    return min(base * 2 ** min(failures - 2, 30), most) * random.uniform(0.5, 1.0)


async def _discard(starting: asyncio.Task[Replica]) -> None:
    """End what ``starting`` has started or still starts: nobody waits for it any more."""
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, Replica):
        await outcome.kill()
