"""Finding a service by its name, from any process of a run.

    owner      await register_service(tools)            its replicas' addresses go to the registry, again whenever one joins or leaves
    actor      tools = await get_service("tools")       a pool of its own over the same replicas
               await tools.execute.route(task, call)    straight to a replica: neither the owner nor the registry is in between

    registry (one actor for the whole run)    "tools" → version 4: tools_0, tools_3, tools_2

The registry is the control plane and is asked once; requests are the data plane and never pass through it. Each finder follows the
registry's versions in the background, so it hears of a new replica as soon as there is one. Bounds hold for what each finder itself has in
flight. Health stays the owner's business: a finder that runs into a dead replica drops it and waits to be told of the next one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from zorplex_rl.system.calls import Method, Session
from zorplex_rl.system.member import Member
from zorplex_rl.system.pool import Pool
from zorplex_rl.system.requests import Limits, ServiceError
from zorplex_rl.system.routing import ROUTERS
from zorplex_rl.system.runtime import Actor, concurrent_endpoint, get_or_spawn_controller
from zorplex_rl.system.service import Service

REGISTRY = "zorplex_services"
FOLLOW_SECONDS = 30.0
ALIVE_SECONDS = 5.0


class UnknownService(ServiceError):
    """Nobody has registered a service under that name."""


class StaleService(ServiceError):
    """There is an entry of that name, but nothing behind it answers any more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the registry knows of a service. ``replicas`` holds name, actor, number of processes and pulse of each."""

    name: str
    owner: str
    limits: Limits
    router: str
    idempotent: frozenset[str]
    replicas: tuple[tuple[str, Any, int, Any], ...]
    closed: bool = False
    version: int = 0


class ServiceRegistry(Actor):
    """The entries, and who waits for a newer one."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def put(self, entry: Entry) -> None:
        async with self._changed:
            before = self._entries.get(entry.name)
            self._entries[entry.name] = replace(entry, version=before.version + 1 if before else 1)
            self._changed.notify_all()

    @concurrent_endpoint
    async def get(self, name: str, newer_than: int = 0, timeout: float = 0.0) -> Entry | None:
        """The entry ``name``, as soon as its version is above ``newer_than``; after ``timeout`` seconds whatever there is."""
        async with self._changed:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self._version(name) > newer_than), timeout)
            return self._entries.get(name)

    @concurrent_endpoint
    async def remove(self, name: str) -> bool:
        async with self._changed:
            return self._entries.pop(name, None) is not None

    @concurrent_endpoint
    async def entries(self) -> list[Entry]:
        async with self._changed:
            return list(self._entries.values())

    def _version(self, name: str) -> int:
        return self._entries[name].version if name in self._entries else -1


@dataclass(eq=False)
class ServiceClient:
    """A service as seen from a process that does not own it: ``METHOD.route``, ``METHOD.fanout``, ``session`` as there."""

    name: str
    pool: Pool
    version: int = 0
    _following: asyncio.Task[None] | None = field(default=None, repr=False)

    def __getattr__(self, method: str) -> Method:
        if method.startswith("_"):
            raise AttributeError(method)
        return Method(self.pool, method)

    @asynccontextmanager
    async def session(self, key: Hashable = None) -> AsyncIterator[Session]:
        """Sticky routing, as in ``Service.session``."""
        yield Session(self.pool, key)

    @property
    def is_current(self) -> bool:
        """Whether it still follows the registry: until the service is closed or forgotten."""
        return self._following is not None and not self._following.done()

    def update(self, entry: Entry) -> None:
        """Take over the replicas of ``entry``."""
        self.version = entry.version
        known = {member.name: member for member in self.pool.members}
        for name, actor, procs, _ in entry.replicas:
            if name not in known:
                self.pool.join(Member(name, actor, procs))
        for name in known.keys() - {name for name, *_ in entry.replicas}:
            self.pool.withdraw(known[name])

    def follow(self, registry: Any) -> None:
        """Keep up with the registry from now on."""
        self._following = asyncio.create_task(self._follow(registry))

    async def _follow(self, registry: Any) -> None:
        while True:
            entry = await registry.get.call_one(self.name, self.version, FOLLOW_SECONDS)
            if entry is None or entry.closed:
                for member in list(self.pool.members):
                    self.pool.fail(member, f"service {self.name!r} was closed")
                return
            if entry.version > self.version:
                self.update(entry)


_clients: dict[tuple[str, asyncio.AbstractEventLoop], ServiceClient] = {}
_searches: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Task[ServiceClient]] = {}
"""Under way. Whoever asks meanwhile shares the answer: two clients would each send as much as one may."""


async def register_service(service: Service) -> None:
    """Let every actor find ``service`` by its name. Raises ServiceError if another one that still answers has that name."""
    registry = await _registry()
    before = await registry.get.call_one(service.name)
    if before is not None and not before.closed and await _answers(before):
        raise ServiceError(
            f"a service {service.name!r} is registered already, by {before.owner}; choose another name or unregister that one"
        )
    writing = asyncio.Lock()

    async def publish() -> None:
        async with writing:
            await registry.put.call_one(_entry_of(service))

    await publish()
    service.on_change = publish


async def unregister_service(name: str) -> None:
    """Forget the entry ``name``. Raises UnknownService if there is none."""
    if not await (await _registry()).remove.call_one(name):
        raise UnknownService(await _unknown(name))


async def list_services() -> dict[str, str]:
    """What is registered: for each name, who owns it and how many replicas it has."""
    entries = await (await _registry()).entries.call_one()
    return {
        entry.name: f"{'closed' if entry.closed else f'{len(entry.replicas)} replicas'}, owned by {entry.owner}"
        for entry in sorted(entries, key=lambda entry: entry.name)
    }


async def get_service(name: str) -> ServiceClient:
    """The service ``name``, from wherever this is called; within one event loop always the same client, so that its bounds hold.

    Raises UnknownService, or StaleService if nothing behind the entry answers.
    """
    key = (name, asyncio.get_running_loop())
    if key not in _searches:
        _searches[key] = asyncio.create_task(_find(name))
        _searches[key].add_done_callback(lambda search: _searches.pop(key))
    # One who stops waiting does not end the search for the others.
    return await asyncio.shield(_searches[key])


async def _find(name: str) -> ServiceClient:
    key = (name, asyncio.get_running_loop())
    registry = await _registry()
    entry = await registry.get.call_one(name)
    if entry is None:
        raise UnknownService(await _unknown(name))
    if entry.closed or not ((client := _clients.get(key)) and client.is_current):
        client = _clients[key] = await _client_of(entry, registry)
    return client


async def _client_of(entry: Entry, registry: Any) -> ServiceClient:
    """A new client of the service behind ``entry``. Raises StaleService."""
    name, began = entry.name, time.monotonic()
    while not entry.closed and not await _answers(entry):
        # An owner that has withdrawn all replicas is replacing them, which may take as long as a request may wait for it.
        patience = ALIVE_SECONDS if entry.replicas else max(ALIVE_SECONDS, entry.limits.wait_timeout)
        if time.monotonic() - began > patience:
            break
        entry = await registry.get.call_one(name, entry.version, 1.0) or entry
    else:
        if not entry.closed:
            client = ServiceClient(name, Pool(name, entry.limits, ROUTERS[entry.router](), entry.idempotent))
            client.update(entry)
            client.follow(registry)
            return client
    why = "has been closed" if entry.closed else "has no replica that answers"
    raise StaleService(
        f"the entry {name!r}, registered by {entry.owner}, is stale: the service {why}; start it again and register it anew"
    )


async def _answers(entry: Entry) -> bool:
    """Whether any replica of ``entry`` is alive."""
    beats = [asyncio.ensure_future(pulse.beat.call().as_asyncio()) for *_, pulse in entry.replicas]
    try:
        for beat in asyncio.as_completed(beats, timeout=2.0):
            with suppress(Exception):
                await beat
                return True
    except asyncio.TimeoutError:
        pass
    finally:
        for beat in beats:
            beat.cancel()
    return False


async def _unknown(name: str) -> str:
    names = ", ".join(await list_services()) or "none"
    return f"no service {name!r} is registered; there are: {names}"


async def _registry() -> Any:
    return await get_or_spawn_controller(REGISTRY, ServiceRegistry)


def _entry_of(service: Service) -> Entry:
    lives = [place.live for place in service.places if place.live]
    return Entry(
        service.name,
        f"process {os.getpid()} on {socket.gethostname()}",
        service.options.limits,
        service.options.router,
        service.pool.idempotent,
        tuple((live.name, live.replica.actor, live.member.procs, live.pulse) for live in lives),
        service.closed,
    )
