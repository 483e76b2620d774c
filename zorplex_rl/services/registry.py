"""Find a service by its name, from any process of a run.

    owner      await register_service(tools)         stores its replicas' addresses, again after each change
    actor      tools = await get_service("tools")    a router over the same replicas; polls for changes

Closing a service removes its entry and frees its name.
"""

from dataclasses import replace
from itertools import count
from typing import Any

from zorplex_rl.services.options import ServiceError
from zorplex_rl.services.replica import State
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, get_or_spawn_controller
from zorplex_rl.services.service import Entry, Service, ServiceClient


class ServiceRegistry(Actor):
    """Hold the entries of all services. A run has one registry."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._changes = count(1)

    @concurrent_endpoint
    async def put(self, entry: Entry) -> bool:
        """Store ``entry``. Returns False if another service has the name."""
        if self._entries.get(entry.name, entry).owner != entry.owner:
            return False
        self._entries[entry.name] = replace(entry, change=next(self._changes))
        return True

    @concurrent_endpoint
    async def remove(self, name: str) -> None:
        del self._entries[name]

    @concurrent_endpoint
    async def find(self, name: str) -> Entry | None:
        return self._entries.get(name)


NAME = "zorplex_services"
_clients: dict[str, ServiceClient] = {}


async def register_service(service: Service) -> None:
    """Make ``service`` available by name to all actors. Raises ServiceError if the name is taken."""
    registry: Any = await get_or_spawn_controller(NAME, ServiceRegistry)
    replica_set = service.replica_set

    async def put() -> bool:
        ready = tuple(
            (r.id, r.name, r.actor, r.width) for r in service.replicas if r.state is State.READY
        )
        lost = tuple(replica_set.lost)
        entry = Entry(service.name, service.options, ready, lost, service.id)
        return await registry.put.call_one(entry)

    async def follow() -> None:
        while not replica_set.closed:
            change = replica_set.change
            await put()
            await change.wait()
        await registry.remove.call_one(service.name)

    if not await put():
        raise ServiceError(
            f"a service {service.name!r} is registered already; close it, or choose another name"
        )
    replica_set.spawn(follow())


async def get_service(name: str) -> ServiceClient:
    """Return a client of the service ``name``. A process has only one, so its queue stays bounded."""
    registry: Any = await get_or_spawn_controller(NAME, ServiceRegistry)

    async def ask() -> Entry | None:
        return await registry.find.call_one(name)

    entry = await ask()
    if entry is None:
        raise ServiceError(f"no service {name!r} is registered, or it has been closed")
    if name not in _clients or _clients[name].following.done():
        _clients[name] = ServiceClient(entry, ask)
    _clients[name].update(entry)
    return _clients[name]
