"""Provide a service: replicas of one actor class behind one name. Replicas that fail are replaced.

    async with Service("tools", replicas_of(ToolActor, config), ServiceOptions(replicas=3, idempotent={"execute"})) as tools:
        await tools.execute.route(task, call)        one ready replica answers
        await tools.execute.fanout(task, call)       all of them; a failure is a value that names its replica
        async with tools.session() as session:       always the same replica as long as it lives, requests in order
            await session.execute.route(task, call)
        print(tools.status())

    route ──► Router: the queue and its order ──► Replica: its process ──► the endpoint
                 ▲
              ReplicaSet: starts, probes, replaces, scales. Each replica has a *place*, a number that its replacement inherits

A caller in another process has only the router (``registry.py``).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any, Self

from zorplex_rl.services.autoscale import follow_the_load
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart
from zorplex_rl.services.replica_set import ReplicaSet, Restart
from zorplex_rl.services.requests import Method, Session
from zorplex_rl.services.router import Router
from zorplex_rl.services.status import ServiceStatus, status_of


class ServiceEndpoints:
    """Offer what callers of a service use: an attribute for every endpoint, and sessions."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name, self.options = name, options
        self.router = Router(name, options)

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        found = self.__dict__[method] = Method(self.router, method)
        return found

    @asynccontextmanager
    async def session(self, key: Hashable = None) -> AsyncIterator[Session]:
        """Route to one replica: sessions of one ``key`` share it; without a key each has its own."""
        yield self.router.session(key)


class Service(ServiceEndpoints):
    """Start and keep replicas, with ``start(name)``. Calls ``on_restart`` for each new one."""

    def __init__(
        self,
        name: str,
        start: ReplicaStart,
        options: ServiceOptions = ServiceOptions(),
        on_restart: Callable[[Restart], None] = lambda restart: None,
    ) -> None:
        super().__init__(name, options)
        self.on_restart = on_restart
        self.on_give_up: Callable[[Exception], None] = lambda error: None
        """Called when a replica is given up."""
        self.replica_set = ReplicaSet(
            name, start, options, self.router.join, lambda restart: self.on_restart(restart), self._gave_up
        )
        self.replica_at, self.scale_to = self.replica_set.replica_at, self.replica_set.scale_to
        self.spares_ready, self.call = self.replica_set.spares_ready, self.router.call
        self.on_close: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Awaited at the end of ``close``."""
        self._autoscaling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start all replicas; returns when all are ready. If one cannot, stops all and raises."""
        await self.replica_set.open()
        least, most = self.options.bounds
        if least < most:
            self._autoscaling = asyncio.create_task(follow_the_load(self.replica_set, lambda: len(self.router.queue)))

    async def close(self) -> None:
        """Stop every process. Requests that wait or are in flight fail."""
        if self._autoscaling:
            self._autoscaling.cancel()
            await asyncio.gather(self._autoscaling, return_exceptions=True)
        self.router.close("was closed")
        await self.replica_set.close()
        for tell in self.on_close:
            await tell()

    def _gave_up(self, error: Exception) -> None:
        if self.replica_set.is_given_up:
            self.router.close("was given up", error)
        self.on_give_up(error)

    @property
    def replicas(self) -> list[Replica]:
        """Return the replica of each place, whether ready or starting."""
        return [replica for _, replica in sorted(self.replica_set.replicas.items())]

    def status(self) -> ServiceStatus:
        """Return replicas, queue and counts at this moment; ``print`` shows them as a table."""
        return status_of(self.replica_set, self.router)
