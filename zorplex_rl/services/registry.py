"""Find a service by its name, from any process of a run.

    owner      await register_service(tools)            the addresses of its replicas go to the registry, again whenever one joins or leaves
    actor      tools = await get_service("tools")       a router of its own over the same replicas
               await tools.execute.route(task, call)    straight to a replica: neither the owner nor the registry is in between

    registry (one actor for the whole run)    "tools" ──► version 2: tools_0, tools_3, tools_2

The registry is the control plane and is asked once; requests are the data plane and never pass
through it. Clients follow its changes in the background, so they hear of a new replica at once. The
owner watches the health: it tells the clients which replicas it has lost, and they give up what
they had sent there. A client tells the replicas' probes how many of its requests wait.

A name that is registered again, after its service was closed or forgotten, gets a newer *version*.
Clients switch to it and ignore later reports of the older one. Replicas are identified by their
``id``, not by their name, because both services may use the same names.
"""

import asyncio
import os
import socket
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.requests import ServiceError
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, get_or_spawn_controller, uncounted_endpoint
from zorplex_rl.services.service import Service, ServiceEndpoints

REGISTRY = "zorplex_services"
FOLLOW_SECONDS = 30.0
ALIVE_SECONDS = 5.0


class UnknownService(ServiceError):
    """Report that no service is registered under that name."""


class StaleService(ServiceError):
    """Report that the name is registered, but none of its processes answers any more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold what the registry knows of a service. ``change`` numbers all changes of all entries."""

    name: str
    owner: str
    options: ServiceOptions
    replicas: tuple[Replica, ...]
    lost: tuple[tuple[str, str], ...]
    """The ids of the replicas that failed last, and why."""
    closed: bool = False
    version: int = 0
    change: int = 0


class ServiceRegistry(Actor):
    """Hold the entries and the callers that wait for newer ones."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._versions: Counter[str] = Counter()
        """How often each name was registered."""
        self._changes = count(1)
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def put(self, entry: Entry) -> int:
        """Store an owner's entry, anew with version 0. Returns its version, or 0 for an old one."""
        async with self._changed:
            name, version = entry.name, entry.version
            if not version:
                self._versions[name] += 1
                version = self._versions[name]
            elif name not in self._entries or self._entries[name].version != version:
                return 0
            self._entries[name] = replace(entry, version=version, change=next(self._changes))
            self._changed.notify_all()
            return version

    @uncounted_endpoint
    async def get(self, name: str, newer_than: int = 0, timeout: float = 0.0) -> Entry | None:
        """Return the entry ``name`` once newer than ``newer_than``, or in ``timeout`` seconds."""

        def is_newer() -> bool:
            return name not in self._entries or self._entries[name].change > newer_than

        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait_for(is_newer)
            return self._entries.get(name)

    @concurrent_endpoint
    async def remove(self, name: str) -> bool:
        """Remove the entry ``name``. Returns False if there is none."""
        async with self._changed:
            self._changed.notify_all()
            return self._entries.pop(name, None) is not None

    @concurrent_endpoint
    async def entries(self) -> list[Entry]:
        """Return all entries."""
        return list(self._entries.values())


class ServiceClient(ServiceEndpoints):
    """Use another process's service: ``METHOD.route``, ``METHOD.fanout`` and ``session``."""

    def __init__(self, entry: Entry, registry: Any) -> None:
        super().__init__(entry.name, entry.options)
        self.version, self.change = 0, 0
        self.replicas: dict[str, Replica] = {}
        """Id → replica. A failed one stays until the owner has noticed its failure too."""
        self.update(entry)
        self._id = uuid.uuid4().hex
        self._tasks = [asyncio.create_task(self._follow(registry)), asyncio.create_task(self._report())]

    @property
    def is_current(self) -> bool:
        """Return True while it follows the registry: until the service is closed or forgotten."""
        return not self._tasks[0].done()

    def update(self, entry: Entry) -> None:
        """Use the replicas of ``entry``. Others still answer what they have begun."""
        if entry.change <= self.change:
            return
        self.version, self.change = entry.version, entry.change
        named = {replica.id: replica for replica in entry.replicas}
        known, self.replicas = self.replicas, named | {i: r for i, r in self.replicas.items() if i in named}
        for identity in named.keys() - known.keys():
            self.router.join(named[identity])
        for identity in known.keys() - named.keys():
            known[identity].move_to(State.DRAINING)
        lost = dict(entry.lost)
        # Also those that have been draining since an earlier entry.
        for replica in [replica for replica in self.router.replicas if replica.id in lost]:
            replica.move_to(State.FAILED, lost[replica.id])

    async def _follow(self, registry: Any) -> None:
        """Follow the changes in the registry until the service is closed or forgotten."""
        while (entry := await registry.get.call_one(self.name, self.change, FOLLOW_SECONDS)) and not entry.closed:
            self.update(entry)
        self.router.close("was closed")
        for replica in self.replicas.values():
            replica.move_to(State.FAILED, f"service {self.name!r} was closed")
        self._tasks[1].cancel()

    async def _report(self) -> None:
        """Report this queue's length to the probes, and read what the replicas serve for others."""
        idle = False
        while True:
            await asyncio.sleep(self.options.probe_every)
            waiting = len(self.router.queue)
            if waiting or self.router.in_flight or not idle:
                beats = (
                    replica.beat(self.options.probe_timeout, self._id, 0 if index else waiting)
                    for index, replica in enumerate(self.router.ready)
                )
                await asyncio.gather(*beats, return_exceptions=True)
            idle = not (waiting or self.router.in_flight)


_clients: dict[tuple[str, asyncio.AbstractEventLoop], ServiceClient] = {}
_searches: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Task[ServiceClient]] = {}
"""Searches under way, shared: two clients could send twice as much as one may."""


async def register_service(service: Service) -> None:
    """Let all actors find ``service`` by name. Raises ServiceError if another answers to it."""
    registry = await _registry()
    before = await registry.get.call_one(service.name)
    if before is not None and not before.closed and await _answers(before):
        raise ServiceError(
            f"a service {service.name!r} is registered already, by {before.owner}; choose another name or unregister that one"
        )
    version = await registry.put.call_one(_entry_of(service, 0))
    one_at_a_time = asyncio.Lock()

    async def publish() -> None:
        async with one_at_a_time:
            if not await registry.put.call_one(_entry_of(service, version)) and changed in listeners:
                listeners.remove(changed)

    def changed() -> None:
        if not service.replica_set.closed:
            service.replica_set.spawn(publish())

    listeners = service.replica_set.on_change
    listeners.append(changed)
    service.on_close.append(publish)


async def unregister_service(name: str) -> None:
    """Remove the entry ``name``. Raises UnknownService if there is none."""
    if not await (await _registry()).remove.call_one(name):
        raise UnknownService(await _unknown(name))


async def list_services() -> dict[str, str]:
    """Return the registered services: for each name its owner and its number of replicas."""
    entries = await (await _registry()).entries.call_one()
    return {
        entry.name: f"{'closed' if entry.closed else f'{len(entry.replicas)} replicas'}, owned by {entry.owner}"
        for entry in sorted(entries, key=lambda entry: entry.name)
    }


async def get_service(name: str) -> ServiceClient:
    """Return the service ``name``; in one event loop always the same client, to keep its bounds.
    Raises UnknownService, or StaleService if nothing behind the entry answers."""
    key = (name, asyncio.get_running_loop())
    if key not in _searches:
        _searches[key] = asyncio.create_task(_find(name))
        _searches[key].add_done_callback(lambda search: _searches.pop(key))
    # A caller that stops waiting must not end the search for the others.
    return await asyncio.shield(_searches[key])


async def _find(name: str) -> ServiceClient:
    key, registry = (name, asyncio.get_running_loop()), await _registry()
    entry, began = await registry.get.call_one(name), time.monotonic()
    if entry is None:
        raise UnknownService(await _unknown(name))
    if not entry.closed and (client := _clients.get(key)) and client.is_current:
        client.update(entry)
        return client
    while not entry.closed:
        if await _answers(entry):
            client = _clients[key] = ServiceClient(entry, registry)
            return client
        # A replica may stand still for a while; an owner without any is replacing them.
        patience = max(ALIVE_SECONDS, entry.options.probe_timeout if entry.replicas else entry.options.start_timeout)
        if time.monotonic() - began > patience:
            break
        entry = await registry.get.call_one(name, entry.change, 1.0) or replace(entry, closed=True)
    why = "has been closed" if entry.closed else "has no replica that answers"
    raise StaleService(
        f"the entry {name!r}, registered by {entry.owner}, is stale: the service {why}; start it again and register it anew"
    )


async def _answers(entry: Entry) -> bool:
    """Return whether any replica of ``entry`` is alive."""
    beats = [asyncio.create_task(replica.beat(2.0)) for replica in entry.replicas]
    try:
        for beat in asyncio.as_completed(beats):
            with suppress(Exception):
                await beat
                return True
    finally:
        for beat in beats:
            beat.cancel()
    return False


async def _unknown(name: str) -> str:
    names = ", ".join(await list_services()) or "none"
    return f"no service {name!r} is registered; there are: {names}"


async def _registry() -> Any:
    return await get_or_spawn_controller(REGISTRY, ServiceRegistry)


def _entry_of(service: Service, version: int) -> Entry:
    ready = tuple(replica for replica in service.replicas if replica.state is State.READY)
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    lost = tuple(service.replica_set.lost)
    return Entry(service.name, owner, service.options, ready, lost, bool(service.router.closed), version)
