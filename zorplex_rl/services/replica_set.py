"""Supervise a fixed number of replicas: start, probe and replace them, each at its place.

    place 0 ──► tools_0   ✗ failed ──► killed for good
       └──────► tools_3   a spare, or started after a back-off: set up, probed, then ready

Every place has a task that probes its replica once a second. A replica has failed when its probe is late or a call finds its process gone;
a process that hangs therefore counts as failed, and is killed. Any other code that notices a failure tells the replica (``Replica.move_to``), and
the replica tells its listeners: the supervisor, the router, the registry.

Scaling down removes the least loaded replicas, by the counts of their own processes. They get no new requests and answer what they have begun.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State, bring_up, reason_of
from zorplex_rl.services.requests import ServiceError

log = logging.getLogger(__name__)
LONG_ENOUGH_SECONDS = 10.0
"""A replica that lived longer than this did not fail because of its start, so its successor starts without a back-off."""


class GiveUp(Exception):
    """Tell the supervisor, from within a start, that further attempts are pointless. Callers that wait for the replica get ``error``."""

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
    ) -> None:
        self.name, self.options = name, options
        self.on_ready, self.on_restart = on_ready, on_restart
        self.replicas: dict[int, Replica] = {}
        """The replica at each place, including those that are being started."""
        self.draining: set[Replica] = set()
        self.restarts = 0
        self.on_change: list[Callable[[], None]] = []
        """Functions to call whenever a replica has changed its state."""
        self.closed = False
        self.broken: GiveUp | None = None
        self._start, self._numbers, self._places = start, count(), count()
        self._keepers: dict[int, asyncio.Task[None]] = {}
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
        """Wait until every spare is ready, so that their start does not disturb later requests."""
        await asyncio.gather(*self._spares)

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
            await self._shrink(number)

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

    async def _shrink(self, number: int) -> None:
        ready = [replica for replica in self.replicas.values() if replica.state is State.READY]
        await asyncio.gather(*(r.beat(self.options.probe_timeout) for r in ready), return_exceptions=True)
        by_load = sorted(self.replicas.values(), key=lambda r: (r.state is State.READY, r.load, -r.place))
        leaving = [self.spawn(self._take_out(replica)) for replica in by_load[: max(len(by_load) - number, 0)]]
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
            replica = await self._fill(place, patient=False)
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
            failures = 0 if noticed - replica.since > LONG_ENOUGH_SECONDS else replica.early_failures + 1
            dead = replica
            try:
                replica = await self._fill(dead.place, patient=True, failures=failures)
            except GiveUp as error:
                self.broken = error
                self._notify()
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

    async def _fill(self, place: int, patient: bool, failures: int = 0) -> Replica:
        """Put a replica at ``place``, ready for requests, after ``failures`` in a row. If one cannot be started, tries again if ``patient``."""
        before, placeholder = self.replicas.get(place), Replica("—")
        placeholder.place, placeholder.reason = place, before.reason if before else ""
        self.replicas[place] = placeholder
        while True:
            await asyncio.sleep(back_off(failures, self.options.back_off, self.options.max_back_off))
            try:
                replica = await self._next_replica()
                break
            except Exception as error:
                if not patient or isinstance(error, GiveUp):
                    raise
                failures += 1
                placeholder.reason = reason_of(error)
                log.warning("a replica of %r could not be started: %s", self.name, placeholder.reason)
        replica.place, replica.early_failures = place, failures
        self.replicas[place] = replica
        replica.on_change.append(lambda _: self._notify())
        replica.move_to(State.READY)
        self.on_ready(replica)
        return replica

    async def _next_replica(self) -> Replica:
        """Return a replica that has just answered a probe: a spare if there is one, else a new one."""
        spare = self._spares.pop(0) if self._spares else None
        if spare:
            self._spares.append(self._begin())
        starting = spare or self._begin()
        try:
            replica = await starting
            if spare:
                await replica.beat(self.options.probe_timeout)
            return replica
        except BaseException:
            self.spawn(_discard(starting))
            raise

    def _begin(self) -> asyncio.Task[Replica]:
        name = f"{self.name}_{next(self._numbers)}"
        return asyncio.create_task(bring_up(name, self._start, self.options.start_timeout))

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
