"""Find a service by its name, from any process of a run.

    owner      await register_service(tools)         its replicas' addresses go to the registry, again after each change
    actor      tools = await get_service("tools")    a router over the same replicas, which asks the registry for changes

A name that is registered again, after its service was closed or forgotten, gets a newer *version*.
"""

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

from zorplex_rl.services.replica import ServiceError, State
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, get_or_spawn_controller
from zorplex_rl.services.service import Entry, Service, ServiceClient


class UnknownService(ServiceError):
    """No service is registered under that name."""


class StaleService(ServiceError):
    """The service of that name has been closed."""


class ServiceRegistry(Actor):
    """Hold the entries. One actor for the whole run."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._versions: Counter[str] = Counter()
        self._changes = count(1)

    @concurrent_endpoint
    async def put(self, entry: Entry) -> int:
        """Store ``entry``. Returns its version, or 0 if another service has the name."""
        known = self._entries.get(entry.name)
        if entry.version == 0 and (known is None or known.closed):
            self._versions[entry.name] += 1
        elif known is None or known.version != entry.version:
            return 0
        version = self._versions[entry.name]
        self._entries[entry.name] = replace(entry, version=version, change=next(self._changes))
        return version

    @concurrent_endpoint
    async def entries(self) -> dict[str, Entry]:
        return self._entries

    @concurrent_endpoint
    async def remove(self, name: str) -> bool:
        return self._entries.pop(name, None) is not None


_clients: dict[str, ServiceClient] = {}


async def _registry() -> Any:
    return await get_or_spawn_controller("zorplex_services", ServiceRegistry)


async def register_service(service: Service) -> None:
    """Let all actors find ``service`` by name. Raises ServiceError if another one has the name."""
    registry, replica_set = await _registry(), service.replica_set

    async def put(version: int) -> int:
        ready = tuple((r.id, r.name, r.actor, r.width) for r in service.replicas if r.state is State.READY)
        lost, closed = tuple(replica_set.lost), replica_set.closed
        return await registry.put.call_one(Entry(service.name, service.options, ready, lost, closed, version))

    async def follow(version: int) -> None:
        change = replica_set.change
        while await put(version) and not replica_set.closed:
            await change.wait()
            change = replica_set.change

    if not (version := await put(0)):
        raise ServiceError(f"a service {service.name!r} is registered already; unregister it, or choose another name")
    replica_set.spawn(follow(version))


async def unregister_service(name: str) -> None:
    """Forget ``name``. Raises UnknownService if there is none."""
    if not await (await _registry()).remove.call_one(name):
        raise UnknownService(f"no service {name!r} is registered")


async def list_services() -> dict[str, str]:
    entries = await (await _registry()).entries.call_one()
    return {name: "closed" if entry.closed else f"{len(entry.replicas)} replicas" for name, entry in entries.items()}


async def get_service(name: str) -> ServiceClient:
    """Return the service ``name``; in one process always the same client, to keep its bounds."""
    registry = await _registry()

    async def ask() -> Entry | None:
        return (await registry.entries.call_one()).get(name)

    if (entry := await ask()) is None:
        raise UnknownService(f"no service {name!r} is registered")
    if entry.closed:
        raise StaleService(f"the entry {name!r} is stale: the service has been closed; start it and register it anew")
    if name not in _clients or _clients[name].following.done():
        _clients[name] = ServiceClient(entry, ask)
    _clients[name].update(entry)
    return _clients[name]
