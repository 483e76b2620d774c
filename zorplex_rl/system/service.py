"""A service: replicas of one actor class behind one name, kept alive.

    async with Service("tools", replicas_of(ToolActor, config), ServiceOptions(replicas=3, idempotent={"execute"})) as tools:
        await tools.execute.route(task, call)        one healthy replica answers
        await tools.execute.fanout(task, call)       all of them; a failure is a value that names its replica
        async with tools.session() as session:       the same one as long as it lives, requests in their order
            await session.execute.route(task, call)
        print(tools.status())

Each replica is a process mesh of its own, so that it can die and be replaced alone:

    place 0 ──► tools_0   ✗ fails ──► out of rotation at once ──► stopped for good
       └──────► tools_3   a spare, or started after a back-off ──► setup ──► probe ──► in rotation

Who decides that a replica has failed: a call that finds its process gone, or a probe that is not answered in time, so that a process which
hangs counts as failed, and is killed. An exception that an endpoint raises does not count: it is the caller's.

The probe is a small actor of its own in the replica's processes. It asks whether they answer, not whether the replica is busy, so a request
may take as long as it likes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from zorplex_rl.system.calls import Method, Session
from zorplex_rl.system.member import Member, reason_of
from zorplex_rl.system.options import ServiceOptions
from zorplex_rl.system.pool import Pool
from zorplex_rl.system.pulse import Live, ReplicaStart, bring_up
from zorplex_rl.system.routing import ROUTERS
from zorplex_rl.system.status import ServiceStatus, status_of

T = TypeVar("T")
log = logging.getLogger(__name__)
LONG_ENOUGH_SECONDS = 10.0
"""A replica that lived longer than this did not fail because of how it was started: its successor starts without a back-off."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A replacement: who failed and why, who took over, and the seconds from the notice of the failure to being in rotation."""

    died: str
    took_over: str
    seconds: float
    reason: str


@dataclass(eq=False, slots=True)
class Place:
    """Where one replica belongs. ``live`` is None while it is being replaced."""

    index: int
    live: Live | None = None
    early_deaths: int = 0
    work: asyncio.Task[None] | None = None
    """Watches the live replica, or replaces the failed one."""


class Service:
    """A pool of replicas, started by ``start(name)``, and its upkeep. ``on_restart`` is told of every replacement."""

    def __init__(
        self,
        name: str,
        start: ReplicaStart,
        options: ServiceOptions = ServiceOptions(),
        on_restart: Callable[[Restart], None] = lambda restart: None,
    ) -> None:
        self.name, self.options, self.on_restart = name, options, on_restart
        self.pool = Pool(name, options.limits, ROUTERS[options.router](), options.idempotent, self._on_failure)
        self.places: list[Place] = []
        self.on_change: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Called whenever a replica has joined or left, and awaited at the end of ``close``; discovery hooks in here."""
        self._start, self._started = start, 0
        self._spares: list[asyncio.Task[Live]] = []
        self._changed = asyncio.Event()
        self._scaling = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()
        self.closed = False

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        found = self.__dict__[method] = Method(self.pool, method)
        return found

    async def __aenter__(self) -> Service:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start all replicas; returns when each is set up and has answered a probe. If one cannot be, raises why, and stops the others."""
        from zorplex_rl.system.autoscale import follow_the_queue

        try:
            await self.scale_to(self.options.replicas, patient=False)
        except BaseException:
            await self.close()
            raise
        self._spares = [self._begin() for _ in range(self.options.spares)]
        least, most = self.options.bounds
        if least < most:
            self._spawn(follow_the_queue(self, least, most))

    async def close(self) -> None:
        """Stop every process. Requests that are still waiting or in flight fail."""
        self.closed = True
        tasks = [*self._background, *self._spares, *(place.work for place in self.places if place.work)]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        lives = [place.live for place in self.places if place.live] + [live for live in ended if isinstance(live, Live)]
        self.places.clear()
        for live in lives:
            self.pool.fail(live.member, f"service {self.name!r} was closed")
        await asyncio.gather(*(live.stop() for live in lives))
        self._notify()
        if self.on_change:
            await self.on_change()

    @asynccontextmanager
    async def session(self, key: Hashable = None) -> AsyncIterator[Session]:
        """Sticky routing. Sessions with the same ``key`` share a replica; one without a key has its own choice."""
        yield Session(self.pool, key)

    async def spares_ready(self) -> None:
        """Wait until every spare is up, so that starting them disturbs nobody later."""
        await asyncio.gather(*self._spares)

    async def member_at(self, index: int) -> Member:
        """Who fills place ``index``; waits while it is being replaced."""
        while (live := self.places[index].live) is None:
            await self.membership_changed()
        return live.member

    async def membership_changed(self) -> None:
        """Wait until a replica joins or leaves."""
        changed = self._changed
        await changed.wait()

    async def scale_to(self, replicas: int, patient: bool = True) -> None:
        """Have ``replicas`` of them: new ones are started; those that are to go first answer what they have been given.

        A new one that cannot be started is tried again and again if ``patient``, else its error is raised.
        """
        if replicas < 1:
            raise ValueError(f"a service of {replicas} replicas answers nothing; scale to 1 or more, or close it")
        async with self._scaling:
            new = [Place(index) for index in range(len(self.places), replicas)]
            gone, self.places = self.places[replicas:], self.places[:replicas] + new
            await asyncio.gather(
                *(self._fill(place, patient) for place in new), *(self._empty(place) for place in gone)
            )

    def status(self) -> ServiceStatus:
        """Replicas, queues and counts at this moment; ``print`` shows a table."""
        return status_of(self)

    def _on_failure(self, member: Member, reason: str) -> None:
        for place in self.places:
            if place.live and place.live.member is member:
                dead, place.live = place.live, None
                if place.work:
                    place.work.cancel()
                self._notify()
                place.work = asyncio.create_task(self._replace(place, dead, reason))
                log.warning("%s failed: %s", member.name, reason)

    async def _replace(self, place: Place, dead: Live, reason: str) -> None:
        """Stop the ``dead`` replica for good and put another one in its place, sooner or later."""
        noticed = time.monotonic()
        self._spawn(dead.kill())
        place.early_deaths = 0 if noticed - dead.since > LONG_ENOUGH_SECONDS else place.early_deaths + 1
        await asyncio.sleep(self._back_off(place.early_deaths))
        await self._fill(place)
        self.pool.metrics.restarts += 1
        self.on_restart(Restart(dead.name, place.live.name, time.monotonic() - noticed, reason))

    async def _fill(self, place: Place, patient: bool = True) -> None:
        """Bring up a replica for ``place``, as often as it takes, and put it into rotation."""
        while True:
            try:
                live = await self._next_live()
                break
            except Exception as error:
                if not patient:
                    raise
                place.early_deaths += 1
                log.warning("a replica of %r could not be started: %s", self.name, reason_of(error))
                await asyncio.sleep(self._back_off(place.early_deaths))
        if self.closed or place not in self.places:
            await live.stop()
            return
        place.live = live
        self.pool.join(live.member)
        place.work = asyncio.create_task(self._watch(place, live))
        self._notify()

    async def _next_live(self) -> Live:
        """A replica that has just answered a probe: a spare if there is one, else a new one."""
        if not self._spares:
            return await self._begin()
        self._spares.append(self._begin())
        live = await self._spares.pop(0)
        try:
            await live.beat(self.options.probe_timeout)
        except BaseException:
            self._spawn(live.kill())
            raise
        return live

    async def _watch(self, place: Place, live: Live) -> None:
        """Probe ``live`` until it fails or leaves."""
        # Not left to cancellation alone: wait_for may swallow one that comes in the moment of the answer (Python 3.11).
        while place.live is live and not self.closed:
            await asyncio.sleep(self.options.probe_every)
            try:
                await live.beat(self.options.probe_timeout)
            except Exception as error:
                timed_out = isinstance(error, asyncio.TimeoutError)
                late = f"it did not answer a probe within {self.options.probe_timeout:g} s"
                self.pool.fail(live.member, late if timed_out else reason_of(error))
                return

    async def _empty(self, place: Place) -> None:
        """Have the replica of ``place`` finish what it was given, and stop it."""
        if place.work:
            place.work.cancel()
        if (live := place.live) is None:
            return
        place.live = None
        self._notify()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.pool.leave(live.member), self.options.drain_timeout)
        self.pool.fail(live.member, f"it was still busy {self.options.drain_timeout:g} s after it was to stop")
        await live.stop()

    def _begin(self) -> asyncio.Task[Live]:
        name = f"{self.name}_{self._started}"
        self._started += 1
        return self._spawn(bring_up(name, self._start, self.options.start_timeout, self.options.probe_timeout))

    def _back_off(self, early_deaths: int) -> float:
        """Seconds to wait before the next start. The exponent is bounded: a float is not, and a place may fail for days."""
        doubled = min(early_deaths - 2, 30)
        return 0.0 if doubled < 0 else min(self.options.back_off * 2**doubled, self.options.max_back_off)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.on_change and not self.closed:
            self._spawn(self.on_change())

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``coroutine`` beside everything else, known to ``close``."""
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
