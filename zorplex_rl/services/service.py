"""Provide a service: replicas of one actor class behind one name. Replicas that fail are replaced.

    async with Service("tools", replicas_of(ToolActor, config), ServiceOptions(replicas=3)) as tools:
        await tools.execute.route(task, call)        one ready replica answers
        await tools.execute.fanout(task, call)       all of them answer; an exception is a value
        async with tools.session() as session:       the same replica as long as it lives, requests in order
            await session.execute.route(task, call)

    route ──► Router: the queue and its order ──► Replica: its process ──► the endpoint
                 ▲
              ReplicaSet: starts, probes, replaces, scales

Each replica has a *place*: a number that its replacement inherits.

A caller in another process has a ServiceClient: a router over the same replicas (``registry.py``).
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from zorplex_rl.services.options import ServiceError, ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State
from zorplex_rl.services.replica_set import MOST_BACK_OFF_SECONDS, ReplicaSet, Restart
from zorplex_rl.services.router import Method, Router, Session
from zorplex_rl.services.runtime import reason_of
from zorplex_rl.services.scaler import CALM_SECONDS, CHECK_SECONDS, wanted

log = logging.getLogger(__name__)
FOLLOW_SECONDS = 0.5
"""Pause between two polls of a client; shorter than QUIET_SECONDS."""


class ServiceEndpoints:
    """Hold what callers of a service use: an attribute for every endpoint, and sessions."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name = name
        self.options = options
        self.router = Router(name, options)

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        endpoint = Method(self.router, method)
        # Stored, so that Python finds it without this call next time.
        setattr(self, method, endpoint)
        return endpoint

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Yield a session: its requests go to one replica as long as that lives."""
        yield Session(self.router)


class Service(ServiceEndpoints):
    """Own the replicas that ``start(name)`` starts, and replace those that fail."""

    def __init__(
        self, name: str, start: ReplicaStart, options: ServiceOptions = ServiceOptions()
    ) -> None:
        super().__init__(name, options)
        self.id = uuid.uuid4()
        self.on_restart: Callable[[Restart], None] = lambda restart: None
        """Called after each replacement."""
        self.on_give_up: Callable[[Exception], None] = lambda error: None
        """Called with the reason when a place is given up."""
        self.replica_set = ReplicaSet(
            name,
            start,
            options,
            self.router.join,
            lambda restart: self.on_restart(restart),
            self._gave_up,
        )
        self.replica_at = self.replica_set.replica_at
        self.scale_to = self.replica_set.scale_to
        self.spares_ready = self.replica_set.spares_ready
        self._scaling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start all replicas. Returns when all are ready. If one cannot start, stops all and raises why."""
        await self.replica_set.open()
        if self.options.max_replicas:
            self._scaling = asyncio.create_task(self._follow_the_load())

    async def close(self) -> None:
        """Stop every process. Unanswered requests fail."""
        if self._scaling:
            self._scaling.cancel()
        self.router.close(
            ServiceError(f"service {self.name!r} was closed; the request was not carried out")
        )
        await self.replica_set.close()

    async def _follow_the_load(self) -> None:
        """Scale within the bounds of the options until cancelled."""
        calm_since = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            present = len(self.replica_set.replicas)
            served = sum(replica.load for replica in self.replica_set.replicas.values())
            number = wanted(present, len(self.router.queue), served, self.options.max_in_flight)
            number = min(max(number, self.options.min_replicas), self.options.max_replicas)
            if number >= present:
                calm_since = time.monotonic()
            if number > present:
                await self._grow_to(number)
            elif time.monotonic() - calm_since > CALM_SECONDS:
                calm_since = time.monotonic()
                # A task, so that this loop can react to new load while the leaving replica drains.
                self.replica_set.spawn(self.scale_to(number))

    async def _grow_to(self, number: int) -> None:
        try:
            await self.scale_to(number)
        except Exception as error:
            log.warning(
                "%r could not be scaled to %d replicas: %s", self.name, number, reason_of(error)
            )
            await asyncio.sleep(MOST_BACK_OFF_SECONDS)

    def _gave_up(self, error: Exception) -> None:
        if self.replica_set.given_up.keys() >= self.replica_set.replicas.keys():
            self.router.close(error)
        self.on_give_up(error)

    @property
    def replicas(self) -> list[Replica]:
        """The replica of each place, whether ready or starting."""
        return [replica for _, replica in sorted(self.replica_set.replicas.items())]


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe a service in the registry."""

    name: str
    options: ServiceOptions
    replicas: tuple[tuple[uuid.UUID, str, Any, int], ...]
    """(id, name, actor, width) of each ready replica."""
    lost: tuple[tuple[uuid.UUID, str], ...]
    """(id, reason) of the replicas that failed last."""
    owner: uuid.UUID
    """The id of the service."""
    change: int = 0
    """A number that grows with every change in the registry."""


class ServiceClient(ServiceEndpoints):
    """Use another process's service. ``ask`` returns its newest entry, None once it is closed."""

    def __init__(self, entry: Entry, ask: Callable[[], Awaitable[Entry | None]]) -> None:
        super().__init__(entry.name, entry.options)
        self.change = 0
        self.replicas: dict[uuid.UUID, Replica] = {}
        self.update(entry)
        self.following = asyncio.create_task(self._follow(ask))

    def update(self, entry: Entry) -> None:
        """Send new requests only to the replicas of ``entry``. Others still answer those that they have."""
        if entry.change <= self.change:
            return
        self.change = entry.change
        for identity, name, actor, width in entry.replicas:
            if identity not in self.replicas:
                replica = Replica(name, actor, width, id=identity, state=State.READY)
                self.replicas[identity] = replica
                self.router.join(replica)
        present = {identity for identity, *_ in entry.replicas}
        for identity in self.replicas.keys() - present:
            self.replicas.pop(identity).move_to(State.DRAINING)
        lost = dict(entry.lost)
        for replica in list(self.router.replicas):
            if replica.id in lost:
                replica.move_to(State.FAILED, lost[replica.id])

    async def _follow(self, ask: Callable[[], Awaitable[Entry | None]]) -> None:
        """Apply new entries until the service is closed."""
        while entry := await ask():
            self.update(entry)
            await asyncio.sleep(FOLLOW_SECONDS)
        self.router.close(ServiceError(f"service {self.name!r} was closed"))
        for replica in self.replicas.values():
            replica.move_to(State.FAILED, f"service {self.name!r} was closed")
