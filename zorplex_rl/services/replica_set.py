"""Supervise a number of replicas, each at its place.

    place 0 ──► tools_0   ✗ failed ──► killed for good
       └──────► tools_3   a spare, or started after a back-off: set up, then ready

Every place has a task (``_keep``): it starts a replica, probes it until it has failed, kills what is
left of it, and replaces it. Other code that notices a failure tells the replica (``move_to``).

A start that fails and a replica that dies before it has finished anything are *failures in a row*
of their place. After too many the place is given up, with one error for everyone who waits.
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

from zorplex_rl.errors import CheckpointError, ConfigError, HostError, TrainingDiverged
from zorplex_rl.services.replica import GivenUp, Replica, ReplicaStart, ServiceError, ServiceOptions, State
from zorplex_rl.services.runtime import EndpointError, reason_of

log = logging.getLogger(__name__)
FINAL = (CheckpointError, ConfigError, HostError, TrainingDiverged)  # a start would raise it again
BACK_OFF_SECONDS, MOST_BACK_OFF_SECONDS = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Describe a replacement, with the seconds from noticing the failure to being ready."""

    died: str
    took_over: str
    seconds: float
    reason: str
    pid: int


class ReplicaSet:
    """Supervise replicas that ``start(name)`` starts, and tell others of what happens to them."""

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
        self.replicas: dict[int, Replica] = {}  # by place; also those that are being started
        self.draining: set[Replica] = set()
        self.lost: deque[tuple[str, str]] = deque(maxlen=64)  # ids of the last failed replicas, and why
        self.given_up: dict[int, Exception] = {}  # places that get no replica any more, and why
        self.closed = False
        self.change = asyncio.Event()  # set, and replaced, whenever a replica changes its state
        self._names, self._places = (f"{name}_{number}" for number in count()), count()
        self._spares: list[asyncio.Task[Replica]] = []
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._beside: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``coroutine`` beside everything else; ``close`` waits for it."""
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
        found = await asyncio.gather(*tasks, return_exceptions=True)
        spares = [replica for replica in found if isinstance(replica, Replica)]
        running = {*self.replicas.values(), *self.draining, *spares}
        self.replicas.clear()
        for replica in running:
            replica.move_to(State.STOPPED, "its service was closed")
        await asyncio.gather(*(replica.stop() for replica in running if replica.mesh))
        while self._beside:
            await asyncio.gather(*self._beside, return_exceptions=True)

    async def spares_ready(self) -> None:
        """Wait until every spare is ready or cannot start, so that none disturbs requests."""
        await asyncio.gather(*self._spares, return_exceptions=True)

    async def replica_at(self, place: int) -> Replica:
        """Return the replica at ``place``; waits for it as long as a start may take. Raises
        ServiceError, or why it was given up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.start_timeout):
                while not self.closed and place in self.replicas:
                    if place in self.given_up:
                        raise self.given_up[place]
                    if (replica := self.replicas[place]).state is State.READY:
                        return replica
                    await self.change.wait()
        raise ServiceError(f"{self.name!r} {'is closed' if self.closed else f'has no replica at place {place}'}")

    async def scale_to(self, number: int) -> None:
        """Have ``number`` replicas. Returns when new ones are ready, or leaving ones have answered:
        those with the least load at their last probe. If a new one cannot be started, raises why;
        those that are up stay."""
        if number > len(self.replicas):
            await self._grow(number - len(self.replicas))
            return
        by_load = sorted(self.replicas.values(), key=lambda r: (r.state is State.READY, r.load, -r.place))
        # They leave even if the caller that waits here is cancelled.
        if leaving := [self.spawn(self._take_out(r)) for r in by_load[: max(len(by_load) - number, 0)]]:
            await asyncio.wait(leaving)

    async def _grow(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        starting = {next(self._places): loop.create_future() for _ in range(number)}
        for place, is_up in starting.items():
            keeping = self._keeping[place] = asyncio.create_task(self._keep(place, is_up))
            # Another call may take the place out meanwhile: then there is nothing to wait for.
            keeping.add_done_callback(lambda _, up=is_up: up.done() or up.set_result(None))  # type: ignore[misc]
        try:
            await asyncio.gather(*starting.values())
        except BaseException:
            not_up = [r for r in self.replicas.values() if r.place in starting and r.state is State.STARTING]
            await asyncio.gather(*map(self._take_out, not_up))
            raise

    async def _take_out(self, replica: Replica) -> None:
        """Let ``replica`` answer what it has begun, then stop it. It is probed until then."""
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

    async def _keep(self, place: int, is_up: asyncio.Future[None]) -> None:
        """Keep a replica at ``place``. ``is_up`` is done when there is the first one, or none can be
        started; what the set-up of the first one raises is not tried again."""
        failures, noticed = 0, 0.0
        dead: Replica | None = None
        error: Exception | None = None
        while error is None:
            starting = self.replicas[place] = Replica("—")
            starting.place, starting.reason = place, dead.reason if dead else ""
            try:
                replica = await self._spare_or_new()
            except Exception as why:
                last, worked = f"its start failed: {reason_of(why)}", False
                if isinstance(why, FINAL) or (dead is None and isinstance(why, EndpointError)):
                    error = why
            else:
                replica.place = place
                self.replicas[place] = replica
                replica.on_change.append(self._changed)
                replica.move_to(State.READY)
                self._on_ready(replica)
                if dead:
                    seconds = time.monotonic() - noticed
                    self._on_restart(Restart(dead.name, replica.name, seconds, dead.reason, replica.pid))
                elif not is_up.done():
                    is_up.set_result(None)
                await self._until_failed(replica)
                self.spawn(replica.kill())
                if replica in self.draining:
                    return
                dead, noticed = replica, time.monotonic()
                worked = bool(dead.answered.intersection(self.options.progress or dead.answered))
                last = f"{dead.name} failed{f' while it ran {dead.was_doing}' if dead.was_doing else ''}: {dead.reason}"
                if self.options.irreplaceable and worked:
                    error = GivenUp(f"{self.name} is lost, and with it what it alone knew: {dead.reason}")
            log.warning("%s: %s", self.name, last)
            failures = 0 if worked else failures + 1
            if failures > self.options.max_failures:
                times = f"has failed {failures} times in a row without finishing anything"
                error = error or GivenUp(f"{self.name} {times}; the last time, {last}")
            if error is None and failures > 1:
                # By chance, so that replicas that failed together do not all start together.
                most = min(BACK_OFF_SECONDS * 2 ** (failures - 2), MOST_BACK_OFF_SECONDS)
                await asyncio.sleep(most * random.uniform(0.5, 1.0))
        if not is_up.done():
            is_up.set_exception(error)
            return
        self.given_up[place] = error
        self._changed()
        self._on_give_up(error)

    async def _until_failed(self, replica: Replica) -> None:
        """Probe ``replica``. Returns when it has failed, or was stopped."""
        while not replica.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.probe_every):
                    await replica.ended.wait()
                    return
            try:
                await replica.beat(self.options.probe_timeout)
            except TimeoutError:
                replica.move_to(State.FAILED, f"it did not answer a probe within {self.options.probe_timeout:g} s")
            except Exception as error:
                replica.move_to(State.FAILED, reason_of(error))

    async def _spare_or_new(self) -> Replica:
        """Return a spare, if there is one and it lives, or a new replica."""
        if not self._spares:
            return await self._bring_up()
        spare = self._spares.pop(0)
        self._spares.append(asyncio.create_task(self._bring_up()))
        replica = await spare
        return await self._bring_up() if replica.ended.is_set() else replica

    async def _bring_up(self) -> Replica:
        """Start a replica. Raises TimeoutError after ``start_timeout`` seconds."""
        try:
            async with asyncio.timeout(self.options.start_timeout):
                return await self._start(next(self._names))
        except TimeoutError as error:
            raise TimeoutError(f"it was not ready within {self.options.start_timeout:g} s") from error

    def _changed(self, replica: Replica | None = None) -> None:
        if replica and replica.state is State.FAILED:
            self.lost.append((replica.id, replica.reason))
        change, self.change = self.change, asyncio.Event()
        change.set()
