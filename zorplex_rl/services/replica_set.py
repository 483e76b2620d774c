"""Supervise a number of replicas, each at its place.

    place 0 ──► tools_0   ✗ failed ──► killed for good
       └──────► tools_3   a spare, or started after a back-off: set up, probed, then ready

Every place has a task (``_keep``) with three duties:

    notice the dead   its process is gone, or does not answer a probe in time: then it is killed
    replace           put a spare or a new replica at its place, after a back-off
    keep the spares   start another one for each that is taken (``supply.py`` does both)

Other code that notices a failure tells the replica (``Replica.fail``), and that tells its
listeners. A start that fails, the first one too, and a replica that dies before it has finished
anything are *failures in a row* of their place. After too many of them the service is given up,
with one error for everybody who waits. Scaling down removes the least loaded replicas, by the
counts of their own processes. They get no new requests and answer what they have begun.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from zorplex_rl.services.endpoint_error import reason_of
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State
from zorplex_rl.services.service_errors import GivenUp, ServiceError
from zorplex_rl.services.supply import GiveUp, Streak, Supply
from zorplex_rl.services.tasks import Background

log = logging.getLogger(__name__)
LONG_ENOUGH_SECONDS = 10.0
"""A replica that nobody asked and that lived longer did not fail because of its start."""
LOST_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Restart:
    """Describe a replacement, with the seconds from noticing the failure to being ready."""

    died: str
    took_over: str
    seconds: float
    reason: str


class ReplicaSet:
    """Supervise replicas that ``start(name)`` starts, and tell others of what happens to them."""

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
        self._background = Background()
        self.spawn = self._background.spawn
        self._supply, self._places = Supply(name, start, options, self.spawn), count()
        self.spares_ready = self._supply.spares_ready
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The task of each place."""
        self._given_up: set[int] = set()
        self._change = asyncio.Event()

    async def open(self) -> None:
        """Start all replicas; returns when all are ready. If one cannot, stops all and raises."""
        try:
            await self._grow(self.options.replicas)
        except BaseException:
            await self.close()
            raise
        self._supply.keep_spares(self.options.spares)

    async def close(self) -> None:
        """Stop every process."""
        self.closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        running = {*self.replicas.values(), *self.draining, *await self._supply.close()}
        self.replicas.clear()
        for replica in running:
            replica.move_to(State.STOPPED, "its service was closed")
        await asyncio.gather(*(replica.stop() for replica in running if replica.process.mesh))
        await self._background.finish()

    @property
    def is_given_up(self) -> bool:
        """Return whether no place has a replica or will get one."""
        return self._given_up >= self.replicas.keys()

    async def replica_at(self, place: int) -> Replica:
        """Return the replica at ``place``; ServiceError if that takes longer than a start may."""
        try:
            async with asyncio.timeout(self.options.start_timeout):
                while not self.closed and place in self.replicas:
                    if (replica := self.replicas[place]).state is State.READY:
                        return replica
                    if self.broken:
                        raise self.broken.error from self.broken
                    await self._change.wait()
        except TimeoutError:
            why = f"{self.options.start_timeout:g} s: {self.replicas[place].reason or 'its start is not done'}"
            raise ServiceError(f"place {place} of {self.name!r} has had no replica for {why}") from None
        raise ServiceError(f"{self.name!r} {'is closed' if self.closed else f'has no place {place}'}")

    async def scale_to(self, number: int) -> None:
        """Have ``number`` replicas. Returns when new ones are ready, or leaving ones have answered.
        If a new replica cannot be started, raises why. Then, or if cancelled, those up stay."""
        if number < 1:
            raise ValueError(f"a service of {number} replicas answers nothing; scale to 1 or more, or close it")
        if number > len(self.replicas):
            await self._grow(number - len(self.replicas))
        elif number < len(self.replicas):
            await self.shrink(lambda: number)

    async def _grow(self, number: int) -> None:
        places = [next(self._places) for _ in range(number)]
        starting = [self.spawn(self._start_at(place)) for place in places]
        self._tasks |= dict(zip(places, starting, strict=True))
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
        """Have at most ``target()`` replicas, asked after the probes, right before some leave."""
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
        task = self._tasks[replica.place]
        if replica.state is State.READY:
            self.draining.add(replica)
            await replica.drain()
            self.draining.remove(replica)
        task.cancel()
        if replica.state is State.DRAINING:
            await replica.stop()
        self._notify()

    async def _start_at(self, place: int) -> None:
        """Start the first replica of ``place``, and keep one there; if it fails, the place goes."""
        streak = self._supply.streak()
        self._clear(place)
        try:
            replica = await self._fill(place, streak, first=True)
        except BaseException:
            self.replicas.pop(place, None)
            raise
        self._tasks[place] = asyncio.create_task(self._keep(replica, streak))

    async def _keep(self, replica: Replica, streak: Streak) -> None:
        """Keep a replica in place of ``replica``: see its failure, replace it, watch that one."""
        while True:
            await self._until_failed(replica)
            dead, noticed = replica, time.monotonic()
            self.spawn(dead.kill())
            if dead in self.draining:
                return
            log.warning("%s failed: %s", dead.name, dead.reason)
            try:
                replica = await self._replace(dead, streak, noticed)
            except GiveUp as error:
                self.broken = error
                self._given_up.add(dead.place)
                self._notify()
                self.on_give_up(error.error)
                return
            self.restarts += 1
            self.on_restart(Restart(dead.name, replica.name, time.monotonic() - noticed, dead.reason))

    async def _until_failed(self, replica: Replica) -> None:
        """Probe ``replica``. Returns when it has failed, or was stopped."""
        while not replica.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.probe_every):
                    await replica.ended.wait()
                    return
            try:
                await replica.beat(self.options.probe_timeout, busy_timeout=self.options.busy_timeout)
            except TimeoutError:
                replica.fail(f"it did not answer a probe within {self.options.probe_timeout:g} s")
            except Exception as error:
                replica.fail(reason_of(error))

    async def _replace(self, dead: Replica, streak: Streak, noticed: float) -> Replica:
        """Replace ``dead``. Raises GiveUp if that is impossible, or has happened too often."""
        worked = dead.traffic.answered.intersection(self.options.progress or dead.traffic.answered)
        if self.options.irreplaceable and worked:
            raise GiveUp(GivenUp(f"{self.name} is lost, and with it what it alone knew: {dead.reason}"))
        self._clear(dead.place, dead.reason)
        if worked or (not dead.traffic.sent and noticed - dead.since > LONG_ENOUGH_SECONDS):
            streak.count = 0
        else:
            await streak.add(f"{dead.name}{dead.was_doing}: {dead.reason}")
        return await self._fill(dead.place, streak)

    async def _fill(self, place: int, streak: Streak, first: bool = False) -> Replica:
        """Put a replica at ``place``, ready for requests. Raises GiveUp after too many failures."""
        replica = await self._supply.take(streak, first)
        replica.place = place
        self.replicas[place] = replica
        replica.on_change.append(self._changed)
        replica.move_to(State.READY)
        self.on_ready(replica)
        return replica

    def _clear(self, place: int, reason: str = "") -> None:
        """Show at ``place`` a replica that is starting, after one that failed for ``reason``."""
        starting = self.replicas[place] = Replica("—")
        starting.place, starting.reason = place, reason

    def _changed(self, replica: Replica) -> None:
        if replica.state is State.FAILED:
            self.lost.append((replica.id, replica.reason))
        self._notify()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        for listener in list(self.on_change):
            listener()
