"""Supervise a number of replicas, each at its place.

    place 0 ──► tools_0   ✗ failed ──► killed
       └──────► tools_3   a spare, or a new one after a back-off: set up, then ready

Every ``Place`` has a task (``_keep``): it starts a replica, probes it until it fails, kills what is
left of it, and starts the next one. Code elsewhere reports a failure with ``Replica.move_to``.

A start that fails counts as a *failure in a row* of the place, and so does a replica that dies before
it has done any work. After too many the place is given up, and all who wait for it get the same error.
"""

import asyncio
import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from zorplex_rl.errors import CheckpointError, ConfigError, HostError, TrainingDiverged
from zorplex_rl.services.options import GivenUp, ServiceError, ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State
from zorplex_rl.services.runtime import EndpointError, reason_of

log = logging.getLogger(__name__)
PERMANENT_ERRORS = (CheckpointError, ConfigError, HostError, TrainingDiverged)
"""Errors that another start would raise again."""
BACK_OFF_SECONDS = 0.25
MOST_BACK_OFF_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Describe a replacement."""

    died: str
    """The name of the replica that failed."""
    took_over: str
    """The name of its replacement."""
    seconds: float
    """From the moment the failure was noticed until the replacement was ready."""
    reason: str
    pid: int


@dataclass(slots=True)
class Place:
    """The state of one place: a number that a replica has and its replacement inherits."""

    number: int
    is_up: asyncio.Future[None]
    """Done when the first replica is ready, or cannot be started."""
    failures: int = 0
    """Failures in a row."""
    dead: Replica | None = None
    """The last replica that failed here."""
    noticed: float = 0.0
    """When its failure was noticed."""
    error: Exception | None = None
    """Why it is given up."""


class ReplicaSet:
    """Keep a number of replicas running. ``start(name)`` starts one; the callbacks report what happens."""

    def __init__(
        self,
        name: str,
        start: ReplicaStart,
        options: ServiceOptions,
        on_ready: Callable[[Replica], None],
        on_restart: Callable[[Restart], None],
        on_give_up: Callable[[Exception], None],
    ) -> None:
        self.name = name
        self.options = options
        self._start = start
        self._on_ready = on_ready
        self._on_restart = on_restart
        self._on_give_up = on_give_up
        self.replicas: dict[int, Replica] = {}
        """By place; also those that are starting."""
        self.draining: set[Replica] = set()
        self.lost: deque[tuple[uuid.UUID, str]] = deque(maxlen=64)
        """The ids of the last failed replicas, and why they failed."""
        self.given_up: dict[int, Exception] = {}
        """The places that were given up, and why."""
        self.closed = False
        self.change = asyncio.Event()
        """Set, and replaced by a new one, whenever a replica changes its state."""
        self._names = (f"{name}_{number}" for number in count())
        self._places = count()
        self._spares: list[asyncio.Task[Replica]] = []
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._beside: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``coroutine`` as a task, for which ``close`` waits."""
        task = asyncio.create_task(coroutine)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def open(self) -> None:
        """Start all replicas; returns when all are ready. If one cannot, stops all and raises."""
        try:
            await self._grow(self.options.replicas)
        except BaseException:
            await self.close()
            raise
        self._spares = [asyncio.create_task(self._bring_up()) for _ in range(self.options.spares)]

    async def close(self) -> None:
        """Stop every process."""
        self.closed = True
        self._changed()
        tasks = (*self._keeping.values(), *self._spares)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        # A finished spare task returns its replica.
        spares = [result for result in results if isinstance(result, Replica)]
        running = {*self.replicas.values(), *self.draining, *spares}
        self.replicas.clear()
        for replica in running:
            replica.move_to(State.STOPPED, "its service was closed")
        await asyncio.gather(*(replica.stop() for replica in running if replica.mesh))
        while self._beside:
            await asyncio.gather(*self._beside, return_exceptions=True)

    async def spares_ready(self) -> None:
        """Wait until every spare is ready or has failed to start, so that none slows down requests."""
        await asyncio.gather(*self._spares, return_exceptions=True)

    async def replica_at(self, place: int) -> Replica:
        """Return the replica at ``place`` as soon as it is ready. Raises the error with which the place was
        given up, or ServiceError after the time that a start may take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.start_timeout):
                while not self.closed and place in self.replicas:
                    if place in self.given_up:
                        raise self.given_up[place]
                    replica = self.replicas[place]
                    if replica.state is State.READY:
                        return replica
                    await self.change.wait()
        raise ServiceError(
            f"{self.name!r} {'is closed' if self.closed else f'has no replica at place {place}'}"
        )

    async def scale_to(self, number: int) -> None:
        """Start or stop replicas until there are ``number``. Returns when new ones are ready, or leaving ones have
        answered. Those with the least load at their last probe leave. Raises what a new one's start
        raised; the ready ones stay."""
        if number > len(self.replicas):
            await self._grow(number - len(self.replicas))
            return
        # First those that still start, then the least busy ones, of these the newest.
        by_load = sorted(
            self.replicas.values(), key=lambda r: (r.state is State.READY, r.load, -r.place)
        )
        leaving = by_load[: len(by_load) - number]
        # They leave even if the caller is cancelled while it waits here.
        tasks = [self.spawn(self._take_out(replica)) for replica in leaving]
        if tasks:
            await asyncio.wait(tasks)

    async def _grow(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        starting = {next(self._places): loop.create_future() for _ in range(number)}
        for place, is_up in starting.items():
            keeping = asyncio.create_task(self._keep(Place(place, is_up)))
            self._keeping[place] = keeping
            # If another call takes the place out meanwhile, its waiter is released.
            keeping.add_done_callback(partial(_finish, is_up))
        try:
            await asyncio.gather(*starting.values())
        except BaseException:
            not_up = [
                r
                for r in self.replicas.values()
                if r.place in starting and r.state is State.STARTING
            ]
            await asyncio.gather(*map(self._take_out, not_up))
            raise

    async def _take_out(self, replica: Replica) -> None:
        """Stop ``replica`` once it has answered its requests. It is probed until then."""
        del self.replicas[replica.place]
        keeping = self._keeping.pop(replica.place)
        if replica.state is State.READY:
            self.draining.add(replica)
            await replica.drain()
            self.draining.remove(replica)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if replica.state is State.DRAINING:
            await replica.stop()
        self._changed()

    async def _keep(self, place: Place) -> None:
        """Keep a replica running at ``place`` until it is taken out, or the place is given up."""
        while place.error is None:
            await self._back_off(place)
            replica = await self._start_at(place)
            if replica is None:
                continue
            self._put(replica, place)
            await self._probe_until_failed(replica)
            self.spawn(replica.kill())
            if replica in self.draining:
                return
            self._count_death(replica, place)
        if not place.is_up.done():
            place.is_up.set_exception(place.error)
            return
        self.given_up[place.number] = place.error
        self._changed()
        self._on_give_up(place.error)

    async def _back_off(self, place: Place) -> None:
        """Wait after the second failure in a row, and longer after each further one."""
        if place.failures > 1:
            most = min(BACK_OFF_SECONDS * 2 ** (place.failures - 2), MOST_BACK_OFF_SECONDS)
            # Random, so that replicas that failed together do not all start together.
            await asyncio.sleep(most * random.uniform(0.5, 1.0))

    async def _start_at(self, place: Place) -> Replica | None:
        """Return a replica for ``place``, set up. If its start fails, count that and return None."""
        # A placeholder, so that others see that the place is starting.
        starting = Replica("—")
        starting.place = place.number
        starting.reason = place.dead.reason if place.dead else ""
        self.replicas[place.number] = starting
        try:
            return await self._spare_or_new()
        except Exception as error:
            # An EndpointError is an exception of ``setup``: if that of the first replica raises, the next would, too.
            if isinstance(error, PERMANENT_ERRORS) or (
                place.dead is None and isinstance(error, EndpointError)
            ):
                place.error = error
            self._count_failure(place, f"its start failed: {reason_of(error)}")
            return None

    def _put(self, replica: Replica, place: Place) -> None:
        """Make ``replica`` ready at ``place``, and report that."""
        replica.place = place.number
        self.replicas[place.number] = replica
        replica.on_change.append(self._changed)
        replica.move_to(State.READY)
        self._on_ready(replica)
        if place.dead:
            seconds = time.monotonic() - place.noticed
            self._on_restart(
                Restart(place.dead.name, replica.name, seconds, place.dead.reason, replica.pid)
            )
        elif not place.is_up.done():
            place.is_up.set_result(None)

    def _count_death(self, replica: Replica, place: Place) -> None:
        """Note that ``replica`` has failed. If it had done no work, that is a failure in a row of ``place``."""
        place.dead = replica
        place.noticed = time.monotonic()
        while_doing = f" while it ran {replica.was_doing}" if replica.was_doing else ""
        message = f"{replica.name} failed{while_doing}: {replica.reason}"
        work = self.options.progress or replica.answered
        if not replica.answered.intersection(work):
            self._count_failure(place, message)
            return
        log.warning("%s: %s", self.name, message)
        place.failures = 0
        # Its work is its state: a replica that had none yet is replaced.
        if self.options.irreplaceable:
            place.error = GivenUp(f"{self.name} failed, and its state is lost: {replica.reason}")

    def _count_failure(self, place: Place, message: str) -> None:
        """Count a failure in a row of ``place``. After too many, give it up."""
        log.warning("%s: %s", self.name, message)
        place.failures += 1
        if place.failures > self.options.max_failures and place.error is None:
            times = f"has failed {place.failures} times in a row without finishing anything"
            place.error = GivenUp(f"{self.name} {times}; the last time, {message}")

    async def _probe_until_failed(self, replica: Replica) -> None:
        """Probe ``replica`` regularly. Returns when it has failed or was stopped."""
        while not replica.ended.is_set():
            # Wait for the next probe, or for its end.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.probe_every):
                    await replica.ended.wait()
                    return
            try:
                await replica.beat(self.options.probe_timeout)
            except TimeoutError:
                replica.move_to(
                    State.FAILED,
                    f"it did not answer a probe within {self.options.probe_timeout:g} s",
                )
            except Exception as error:
                replica.move_to(State.FAILED, reason_of(error))

    async def _spare_or_new(self) -> Replica:
        """Return the first spare, once it is loaded, if there is one that lives; else a new replica."""
        if self._spares:
            self._spares.append(asyncio.create_task(self._bring_up()))
            spare = await self._spares.pop(0)
            if not spare.ended.is_set():
                return spare
        return await self._bring_up()

    async def _bring_up(self) -> Replica:
        """Start a replica. Raises TimeoutError after ``start_timeout`` seconds."""
        try:
            async with asyncio.timeout(self.options.start_timeout):
                return await self._start(next(self._names))
        except TimeoutError as error:
            raise TimeoutError(
                f"it was not ready within {self.options.start_timeout:g} s"
            ) from error

    def _changed(self, replica: Replica | None = None) -> None:
        if replica and replica.state is State.FAILED:
            self.lost.append((replica.id, replica.reason))
        self.change.set()
        self.change = asyncio.Event()


def _finish(is_up: asyncio.Future[None], keeping: asyncio.Task[None]) -> None:
    if not is_up.done():
        is_up.set_result(None)
