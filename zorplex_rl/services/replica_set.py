"""Supervise a fixed number of replicas: start, probe and replace them, each at its place.

    place 0 ──► tools_0   ✗ failed ──► killed for good
       └──────► tools_3   a spare, or started after a back-off: set up, probed, then ready

Every place has a task that probes its replica once a second. A replica has failed when its process is gone or its probe is late; a process that
hangs therefore counts as failed, and is killed. Any other code that notices a failure tells the replica (``Replica.move_to``), and the replica
tells its listeners: the supervisor, the router, the registry.

A start that fails, the first one too, and a replica that dies before it has finished anything are *failures in a row* of their place. After too
many of them the service is given up, with one error for everybody who waits: code that ends its process would do so for ever. What a set-up raises
is no accident of its process: the first replica of a place has one more attempt after it, and none if it is a ConfigError.

Scaling down removes the least loaded replicas, by the counts of their own processes. They get no new requests and answer what they have begun.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State, bring_up, reason_of
from zorplex_rl.services.requests import GivenUp, ReplicaFailed, ServiceError
from zorplex_rl.services.runtime import ActorError

log = logging.getLogger(__name__)
LONG_ENOUGH_SECONDS = 10.0
"""A replica that was asked for nothing and lived longer than this did not fail because of its start."""
LOST_REMEMBERED = 64


class GiveUp(Exception):
    """Say, also from within a start, that further attempts are pointless. Callers that wait for the replica get ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Restart:
    """Describe a replacement: which replica failed and why, which took over, and the seconds from detecting the failure to being ready."""

    died: str
    took_over: str
    seconds: float
    reason: str


class ReplicaSet:
    """Supervise replicas that ``start(name)`` starts. Calls ``on_ready`` for each ready replica, ``on_restart`` after every replacement."""

    def __init__(
        self,
        name: str,
        start: ReplicaStart,
        options: ServiceOptions,
        on_ready: Callable[[Replica], None] = lambda replica: None,
        on_restart: Callable[[Restart], None] = lambda restart: None,
        on_give_up: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.name, self.options = name, options
        self.on_ready, self.on_restart, self.on_give_up = on_ready, on_restart, on_give_up
        self.replicas: dict[int, Replica] = {}
        """The replica at each place, including those that are being started."""
        self.draining: set[Replica] = set()
        self.lost: deque[tuple[str, str]] = deque(maxlen=LOST_REMEMBERED)
        """The ids of the replicas that failed last, and why."""
        self.restarts = 0
        self.on_change: list[Callable[[], None]] = []
        """Functions to call whenever a replica has changed its state."""
        self.closed = False
        self.broken: GiveUp | None = None
        self._start, self._numbers, self._places = start, count(), count()
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._given_up: set[int] = set()
        self._spares: list[asyncio.Task[Replica]] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._change = asyncio.Event()

    async def open(self) -> None:
        """Start all replicas. Returns when each is ready. If one cannot be started, stops the others and raises the cause."""
        try:
            await self._grow(self.options.replicas)
        except BaseException:
            await self.close()
            raise
        self._spares = [self._begin() for _ in range(self.options.spares)]

    async def close(self) -> None:
        """Stop every process."""
        self.closed = True
        tasks = [*self._keepers.values(), *self._spares]
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        spares = [outcome for outcome in outcomes if isinstance(outcome, Replica)]
        running = [replica for replica in (*self.replicas.values(), *self.draining, *spares) if replica.procs]
        self.replicas.clear()
        for replica in running:
            replica.move_to(State.STOPPED, "its service was closed")
        await asyncio.gather(*(replica.stop() for replica in running))
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def spares_ready(self) -> None:
        """Wait until every spare is ready, or cannot be started, so that their start does not disturb later requests."""
        await asyncio.gather(*self._spares, return_exceptions=True)

    @property
    def is_given_up(self) -> bool:
        """Return whether no place has a replica or will get one."""
        return self._given_up >= self.replicas.keys()

    async def replica_at(self, place: int) -> Replica:
        """Return the replica at ``place``; waits while it is being replaced, as long as a start may take. Raises ServiceError after that."""
        try:
            async with asyncio.timeout(self.options.start_timeout):
                while not self.closed and place in self.replicas:
                    if (replica := self.replicas[place]).state is State.READY:
                        return replica
                    if self.broken:
                        raise self.broken.error from self.broken
                    await self._change.wait()
        except TimeoutError:
            why = self.replicas[place].reason or "its start is not done"
            limit = f"{self.options.start_timeout:g} s"
            raise ServiceError(f"place {place} of {self.name!r} has had no replica for {limit}: {why}") from None
        raise ServiceError(f"{self.name!r} {'is closed' if self.closed else f'has no place {place}'}")

    async def scale_to(self, number: int) -> None:
        """Have ``number`` replicas. Returns when new ones are ready, or those that are to go have answered what they had begun.

        If a new replica cannot be started, raises why. Then, and if this is cancelled, those that are up by that time stay, and no other.
        """
        if number < 1:
            raise ValueError(f"a service of {number} replicas answers nothing; scale to 1 or more, or close it")
        if number > len(self.replicas):
            await self._grow(number - len(self.replicas))
        elif number < len(self.replicas):
            await self.shrink(lambda: number)

    async def _grow(self, number: int) -> None:
        places = [next(self._places) for _ in range(number)]
        starting = [self.spawn(self._start_at(place)) for place in places]
        self._keepers |= dict(zip(places, starting, strict=True))
        try:
            await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in starting:
                task.cancel()
            outcomes = await asyncio.gather(*starting, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, GiveUp):
                raise outcome.error from outcome
            if isinstance(outcome, Exception):
                raise outcome

    async def shrink(self, target: Callable[[], int]) -> None:
        """Have at most ``target()`` replicas, which is asked after the probes, so when nothing else can happen before some leave."""
        ready = [replica for replica in self.replicas.values() if replica.state is State.READY]
        await asyncio.gather(*(r.beat(self.options.probe_timeout) for r in ready), return_exceptions=True)
        by_load = sorted(self.replicas.values(), key=lambda r: (r.state is State.READY, r.load, -r.place))
        leaving = [self.spawn(self._take_out(replica)) for replica in by_load[: max(len(by_load) - target(), 0)]]
        if leaving:
            # They leave even if the caller that waits here is cancelled.
            await asyncio.wait(leaving)

    async def _take_out(self, replica: Replica) -> None:
        """Let ``replica`` answer what it has begun, then stop it. It is probed until then."""
        del self.replicas[replica.place]
        keeper = self._keepers[replica.place]
        if replica.state is State.READY:
            self.draining.add(replica)
            await replica.drain()
            self.draining.remove(replica)
        keeper.cancel()
        if replica.state is State.DRAINING:
            await replica.stop()
        self._notify()

    async def _start_at(self, place: int) -> None:
        """Start a replica at ``place`` and keep one there from then on. Leaves the place empty if it cannot be started."""
        try:
            replica = await self._fill(place)
        except BaseException:
            self.replicas.pop(place, None)
            raise
        self._keepers[place] = asyncio.create_task(self._keep(replica))

    async def _keep(self, replica: Replica) -> None:
        """Watch ``replica``. When it fails, replace it, with as many attempts as necessary, and watch the replacement."""
        while True:
            await self._watch(replica)
            noticed = time.monotonic()
            self.spawn(replica.kill())
            if replica in self.draining:
                return
            log.warning("%s failed: %s", replica.name, replica.reason)
            dead = replica
            try:
                replica = await self._fill(dead.place, self._failures_with(dead, noticed))
            except GiveUp as error:
                self.broken = error
                self._given_up.add(dead.place)
                self._notify()
                self.on_give_up(error.error)
                return
            self.restarts += 1
            self.on_restart(Restart(dead.name, replica.name, time.monotonic() - noticed, dead.reason))

    async def _watch(self, replica: Replica) -> None:
        """Probe ``replica``. Returns when it has failed."""
        while not replica.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.probe_every):
                    await replica.ended.wait()
                    return
            try:
                await replica.beat(self.options.probe_timeout, busy_timeout=self.options.busy_timeout)
            except TimeoutError:
                late = f"it did not answer a probe within {self.options.probe_timeout:g} s"
                replica.move_to(State.FAILED, late)
            except Exception as error:
                replica.move_to(State.FAILED, reason_of(error))

    def _failures_with(self, dead: Replica, now: float) -> int:
        """Return how many failures in a row there are at a place with the one of ``dead``. Raises GiveUp if it cannot be replaced."""
        worked = dead.answered.intersection(self.options.progress or dead.answered)
        if self.options.irreplaceable and worked:
            raise GiveUp(GivenUp(f"{self.name} is lost, and with it what it alone knew: {dead.reason}"))
        return 0 if worked or (not dead.requests and now - dead.since > LONG_ENOUGH_SECONDS) else dead.failures + 1

    async def _fill(self, place: int, failures: int = 0) -> Replica:
        """Put a replica at ``place``, ready for requests, after ``failures`` in a row. Raises GiveUp after too many."""
        before, placeholder = self.replicas.get(place), Replica("—")
        placeholder.place, placeholder.reason = place, before.reason if before else ""
        self.replicas[place] = placeholder
        if before:
            await self._after_failure(failures, f"{before.name}{before.was_doing}: {before.reason}")
        while (replica := await self._next_replica(failures, first=before is None)) is None:
            failures += 1
            await self._after_failure(failures, "a spare had died before it took over")
        replica.place = place
        self.replicas[place] = replica
        replica.on_change.append(self._changed)
        replica.move_to(State.READY)
        self.on_ready(replica)
        return replica

    async def _next_replica(self, failures: int, first: bool) -> Replica | None:
        """Return a replica that has just answered a probe: a spare if there is one, else a new one. Returns None for a spare that does not answer."""
        spare = bool(self._spares)
        starting = self._spares.pop(0) if spare else self._begin(failures, first)
        if spare:
            self._spares.append(self._begin())
        try:
            replica = await starting
            if spare:
                replica.failures = failures
                await replica.beat(self.options.probe_timeout)
            return replica
        except (TimeoutError, ReplicaFailed):
            self.spawn(_discard(starting))
            return None
        except BaseException:
            self.spawn(_discard(starting))
            raise

    def _begin(self, failures: int = 0, first: bool = False) -> asyncio.Task[Replica]:
        return asyncio.create_task(self._bring_up(failures, first))

    async def _bring_up(self, failures: int, first: bool) -> Replica:
        """Start a replica, after ``failures`` in a row. Tries again until one is up. Raises GiveUp, or what its set-up raised."""
        raised = 0
        while True:
            try:
                name = f"{self.name}_{next(self._numbers)}"
                replica = await bring_up(name, self._start, self.options.start_timeout)
                replica.failures = failures
                return replica
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
                failures += 1
                await self._after_failure(failures, f"{name} could not be started: {reason}")

    async def _after_failure(self, failures: int, last: str) -> None:
        """Wait, the longer the more ``failures`` there were in a row. Raises GiveUp after too many."""
        if failures > self.options.max_failures:
            times = f"has failed {failures} times in a row without finishing anything"
            look = f"; look at {self.options.runs}" if self.options.runs else ""
            raise GiveUp(GivenUp(f"{self.name} {times}; the last time, {last}{look}"))
        await asyncio.sleep(back_off(failures, self.options.back_off, self.options.max_back_off))

    def _changed(self, replica: Replica) -> None:
        if replica.state is State.FAILED:
            self.lost.append((replica.id, replica.reason))
        self._notify()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        for listener in list(self.on_change):
            listener()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``coroutine`` beside everything else, known to ``close``."""
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def back_off(failures: int, base: float, most: float) -> float:
    """Return how many seconds to wait before the next start, after so many early failures in a row.

    Nothing after the first, ``base`` after the second, then doubled up to ``most``; less up to half by chance, so that replicas that failed
    together do not all start together. The exponent is bounded: a float is not, and a place may fail for days.
    """
    if failures < 2:
        return 0.0
    return min(base * 2 ** min(failures - 2, 30), most) * random.uniform(0.5, 1.0)


async def _discard(starting: asyncio.Task[Replica]) -> None:
    """Stop what ``starting`` has started or still starts: nobody waits for it any more."""
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, Replica):
        await outcome.kill()
