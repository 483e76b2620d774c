"""Run a replica: one actor in its own process, so that it can die and be replaced alone.

    starting ──► ready ──► draining ──► stopped   draining: what it has begun is answered, all else refused
        └──────────┴──────────┴───────► failed    its process is gone, or did not answer a probe in time

    Replica ──┬── process    ``replica_process.py``: which it is, whether it is there, how it ends
              ├── traffic    ``load.py``: what it was sent, what it answered, its turn
              └── probe      ``probe.py``: a second actor in its process, which answers at any time

A replica can be sent to another process: the same ``id`` and actors arrive, but no process to end.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from zorplex_rl.services.endpoint_error import reason_of
from zorplex_rl.services.host import Host, Tenant
from zorplex_rl.services.load import Traffic
from zorplex_rl.services.probe import HealthProbe, Heartbeat, answer_in_time
from zorplex_rl.services.replica_process import ReplicaProcess
from zorplex_rl.services.runtime import Actor, ReplicaDied, is_made, start_runtime, this_host
from zorplex_rl.services.service_errors import ReplicaFailed
from zorplex_rl.services.tasks import Result, done_before

ReplicaStart = Callable[[str], Awaitable["Replica"]]
"""Start a replica under the given name. Returns it after its set-up."""


class State(StrEnum):
    """Name the state of a replica; see the drawing above."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


class Replica:
    """Hold a replica: ``width`` processes, each of which gets every request; none while starting."""

    def __init__(self, name: str, process: ReplicaProcess | None = None, actor: Any = None, width: int = 1) -> None:
        self.name, self.actor, self.width = name, actor, width
        self.id = uuid.uuid4().hex
        self.place = 0
        """Its number in its set. A replacement gets the same number."""
        self.probe: Any = None
        self.process = process or ReplicaProcess()
        self.traffic = Traffic()
        self.state, self.reason, self.was_doing = State.STARTING, "", ""
        """``was_doing`` says what it ran when it failed, in words."""
        self.ended = asyncio.Event()
        """Set when it has failed or stopped."""
        self.on_change: list[Callable[[Replica], None]] = []
        self.since = time.monotonic()
        self._methods: dict[str, Callable[..., Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_elsewhere, (self.name, self.actor, self.width, self.id, self.place, self.probe)

    @property
    def pids(self) -> tuple[int, ...]:
        """Return its processes on its own machine; none until they have answered once."""
        return self.process.pids

    @property
    def pid(self) -> int:
        """Return the first of ``pids``, or 0."""
        return next(iter(self.process.pids), 0)

    @property
    def host(self) -> Host | None:
        """Return the host that it lives on, or None for this one."""
        return self.process.host

    @property
    def load(self) -> int:
        """Return its number of requests, those of other processes as of the last probe."""
        return self.traffic.load

    @property
    def turn(self) -> int:
        """Return its position in the round robin."""
        return self.traffic.turn

    def method(self, name: str) -> Callable[..., Any]:
        """Return the function that calls endpoint ``name``, or raise AttributeError."""
        if name not in self._methods:
            found = getattr(self.actor, name)
            self._methods[name] = found.call_one if self.width == 1 else found.call
        return self._methods[name]

    def move_to(self, state: State, reason: str = "") -> None:
        """Enter ``state`` and tell all listeners. A failed or stopped replica stays so."""
        if self.ended.is_set() or state is self.state:
            return
        self.state, self.reason = state, reason
        self.was_doing = self.traffic.doing or self.was_doing
        if state in (State.FAILED, State.STOPPED):
            self.ended.set()
        for listener in list(self.on_change):
            listener(self)

    def fail(self, reason: str) -> None:
        """Count as failed from now on."""
        self.move_to(State.FAILED, reason)

    async def meet(self, modules: Sequence[str]) -> None:
        """Watch its processes, and have them import ``modules``. Raises ReplicaFailed."""
        beats = await self.unless_lost(self.probe.beat.call().as_asyncio())
        self.process.watch([beat.pid for _, beat in beats], self.fail)
        await self.unless_lost(self.probe.prepare.call(modules).as_asyncio())

    async def unless_lost(self, doing: Awaitable[Result]) -> Result:
        """Return what ``doing`` returns. Cancels it, and raises ReplicaFailed, if this fails."""
        try:
            if done := await done_before(doing, self.ended):
                return done.result()
        except ReplicaDied as error:
            self.fail(reason_of(error))
        raise ReplicaFailed(self.name, f"{self.name} has {self.state}: {self.reason}")

    async def beat(
        self, timeout: float, caller: str = "", waiting: int = 0, busy_timeout: float = 0.0
    ) -> list[Heartbeat]:
        """Probe all its processes and note their load; ``waiting`` requests wait at ``caller``.

        Raises ReplicaFailed if one is gone, and TimeoutError if it is late; see ``answer_in_time``.
        """
        own_before = len(self.traffic.in_flight)
        asked = self.unless_lost(self.probe.beat.call(caller, waiting).as_asyncio())
        found = await answer_in_time(asked, self.process.processor_seconds, timeout, busy_timeout)
        beats = [beat for _, beat in found]
        most = max(beat.serving for beat in beats), max(beat.waiting for beat in beats)
        self.traffic.note(own_before, *most, set().union(*(beat.answered for beat in beats)))
        return beats

    async def drain(self) -> None:
        """Let it answer what it has begun, no more. Returns when it has, or has failed."""
        self.move_to(State.DRAINING)
        with contextlib.suppress(ReplicaFailed):
            await self.unless_lost(self.probe.drain.call().as_asyncio())
        if self.traffic.in_flight:
            await asyncio.wait(self.traffic.in_flight.values())

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop its processes in good order, or kill them after ``timeout`` seconds."""
        self.move_to(State.STOPPED)
        await self.process.stop(timeout)

    async def kill(self) -> None:
        """Kill its processes at once: a process that hangs does not react to anything else."""
        await self.process.kill()
        await self.stop()


async def spawn(
    name: str,
    actor_class: type[Actor],
    *args: Any,
    procs: int = 1,
    host: Host | None = None,
    kind: type[Replica] = Replica,
    **kwargs: Any,
) -> Replica:
    """Start ``actor_class(*args, **kwargs)`` as ``name`` in a new process, or in ``procs`` of them.

    Does so on ``host``; without one on this machine. What it imports can be much: a class says in
    ``imports`` which modules, beyond its own, a process should import before its actor is made.
    Returns when ``__init__`` has. Raises ReplicaFailed, or what Monarch says, if a process ends
    before that.
    """
    start_runtime()
    mesh = (host.mesh if host else this_host()).spawn_procs(per_host={"procs": procs}, name=name)
    replica = kind(name, ReplicaProcess(mesh, host), width=procs)
    if host:
        host.tenants.append(Tenant(name, procs, replica.ended.is_set, replica.fail))
    # The probe comes first: it says at once which process this is.
    replica.probe = mesh.spawn(f"{name}_probe", HealthProbe)
    try:
        await replica.meet((actor_class.__module__, *getattr(actor_class, "imports", ())))
        replica.actor = mesh.spawn(name, actor_class, *args, **kwargs)
        await replica.unless_lost(is_made(replica.actor).call().as_asyncio())
    except BaseException:
        await replica.stop()
        raise
    return replica


def replicas_of(
    actor_class: type[Actor], *args: Any, procs: int = 1, named: bool = False, host: Host | None = None, **kwargs: Any
) -> ReplicaStart:
    """Return a function that starts the actor on ``procs`` processes and calls any ``setup``. A
    ``named`` actor is also given the replica's name, as its first argument."""

    async def start(name: str) -> Replica:
        replica = await spawn(name, actor_class, *([name] if named else []), *args, procs=procs, host=host, **kwargs)
        if hasattr(actor_class, "setup"):
            try:
                await replica.unless_lost(replica.actor.setup.call().as_asyncio())
            except BaseException:
                await replica.stop()
                raise
        return replica

    return start


def _from_elsewhere(name: str, actor: Any, width: int, identity: str, place: int, probe: Any) -> Replica:
    replica = Replica(name, None, actor, width)
    replica.id, replica.place, replica.probe, replica.state = identity, place, probe, State.READY
    return replica
