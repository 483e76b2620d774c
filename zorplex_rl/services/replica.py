"""Run a replica: one actor in its own process, so that it can die and be replaced alone.

    starting ──► ready ──► draining ──► stopped        draining: what it has begun is answered, all else is refused
        └──────────┴──────────┴───────► failed         its process is gone, or did not answer a probe in time

``spawn`` starts the process. ``bring_up`` also waits for its set-up and a first probe. A ``HealthProbe`` is a second small actor in the same
process. It says that the process answers, not that the replica is idle, so a request may take as long as it likes.

    replica = await spawn("generator_0", GeneratorActor, config)
    await replica.unless_lost(replica.actor.generate.call_one(…))    raises ReplicaFailed as soon as that process is gone
    await replica.stop()

That a process is gone is known by a pidfd (``processes.py``), of a process on another host from the keeper there. That one stands still is judged
by probes alone.

A replica can be sent to another process. What arrives there has the same ``id`` and the same addresses, and counts what that process sends.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple, TypeVar

from zorplex_rl.services import processes
from zorplex_rl.services.host import Host
from zorplex_rl.services.load import load_of_this_process
from zorplex_rl.services.requests import ReplicaFailed
from zorplex_rl.services.runtime import (
    Actor,
    ReplicaDied,
    start_runtime,
    this_host,
    uncounted_endpoint,
)
from zorplex_rl.task.call_limit import last_call

Result = TypeVar("Result")
ReplicaStart = Callable[[str], Awaitable["Replica"]]
"""Start a replica under the given name. Returns it after its set-up."""

QUIET_SECONDS = 0.25
"""A draining replica stays this long after its last request arrived, to refuse requests that are still on their way."""
BUSY_SHARE = 0.1
"""Share of one processor core: a process that uses less is not computing."""
GLANCES, SHORTEST_GLANCE_SECONDS = 8, 0.25
"""How often, within the time that a probe may take, a process that has not answered is looked at; and the shortest time between two looks."""
REPORT_SECONDS = 3.0
"""A caller's report of how many requests wait counts this long."""

log = logging.getLogger(__name__)
_turns = count(1)


class State(StrEnum):
    """Name the state of a replica; see the drawing above."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


class Beat(NamedTuple):
    """Answer a probe: the process, the requests that it serves, those that wait for it in other processes, and the endpoints that have answered."""

    pid: int
    serving: int
    waiting: int
    answered: frozenset[str]


class HealthProbe(Actor):
    """Answer probes for its process, whatever the replica in it is doing."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, float]] = {}

    @uncounted_endpoint
    async def prepare(self, modules: Sequence[str]) -> None:
        """Import ``modules``, before an actor that needs them is made in this process."""
        await asyncio.to_thread(_import, modules)

    @uncounted_endpoint
    async def begin(self) -> None:
        """Forget what this process has answered so far: that was its set-up."""
        load_of_this_process().answered.clear()

    @uncounted_endpoint
    async def beat(self, caller: str = "", waiting: int = 0) -> Beat:
        """Return the state of this process. A ``caller`` also reports how many requests are ``waiting`` in its queue."""
        now = time.monotonic()
        if caller:
            self._waiting[caller] = waiting, now
        recent = sum(number for number, reported in self._waiting.values() if now - reported < REPORT_SECONDS)
        load = load_of_this_process()
        return Beat(os.getpid(), load.serving, recent, frozenset(load.answered))

    @uncounted_endpoint
    async def drain(self) -> None:
        """Refuse new requests. Returns when all begun requests are answered."""
        await load_of_this_process().drain(QUIET_SECONDS)


class Replica:
    """Hold one replica: its process, its state, its load. Without ``procs`` and ``actor`` it is a replica that is being started."""

    def __init__(self, name: str, procs: Any = None, actor: Any = None, width: int = 1) -> None:
        self.name, self.procs, self.actor, self.width = name, procs, actor, width
        self.processes = width
        self.id = uuid.uuid4().hex
        self.place = 0
        """Its number in its set. A replacement gets the same number."""
        self.probe: Any = None
        self.host: Host | None = None
        """The host that it lives on, or None for this one."""
        self.pid = 0
        self.pids: tuple[int, ...] = ()
        """Its processes on the machine that it lives on. They are known as soon as they answer for the first time."""
        self.state, self.reason = State.STARTING, ""
        self.ended = asyncio.Event()
        """Set when it has failed or stopped."""
        self.on_change: list[Callable[[Replica], None]] = []
        self.since = time.monotonic()
        self.failures = 0
        """How many starts and replicas at its place have failed in a row before it."""
        self.was_doing = ""
        """What it ran when it failed, in words."""
        self.requests = 0
        self.answered: set[str] = set()
        """The endpoints that it has answered, those for other processes as of the last probe."""
        self.in_flight: dict[Any, asyncio.Future[Any]] = {}
        """Requests that this process has sent to it and that have no answer yet, in order."""
        self.load_elsewhere = self.waiting_elsewhere = 0
        self.turn = next(_turns)
        """Its position in the round robin: larger after every request that it gets."""
        self._methods: dict[str, Callable[..., Any]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._killed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_elsewhere, (self.name, self.actor, self.width, self.id, self.place, self.probe)

    @property
    def load(self) -> int:
        """Return its number of requests: those of this process, and those of others as of the last probe."""
        return len(self.in_flight) + self.load_elsewhere

    def take_turn(self) -> None:
        """Move to the end of the round robin."""
        self.turn = next(_turns)

    def method(self, name: str) -> Callable[..., Any]:
        """Return the function that sends a request to endpoint ``name``. Raises AttributeError if there is none."""
        if name not in self._methods:
            found = getattr(self.actor, name)
            self._methods[name] = found.call_one if self.width == 1 else found.call
        return self._methods[name]

    def move_to(self, state: State, reason: str = "") -> None:
        """Enter ``state`` and tell all listeners. A failed or stopped replica stays in its state."""
        if self.ended.is_set() or state is self.state:
            return
        if state is State.FAILED and (call := last_call(self.name)):
            reason += f"; its code was at {call.place}"
        self.state, self.reason = state, reason
        if doing := sorted({request.method for request in self.in_flight}):
            self.was_doing = f" while it ran {', '.join(map(repr, doing))}"
        if state in (State.FAILED, State.STOPPED):
            self.ended.set()
        for listener in list(self.on_change):
            listener(self)

    async def meet(self, modules: Sequence[str]) -> None:
        """Learn which processes it has, watch them from then on, and have them import ``modules``. Raises ReplicaFailed if one ends."""
        beats = await self.unless_lost(self.probe.beat.call().as_asyncio())
        self.pids = tuple(beat.pid for _, beat in beats)
        self.pid = self.pids[0]
        self._watching = asyncio.create_task(self._fail_when_one_ends())
        await self.unless_lost(self.probe.prepare.call(modules).as_asyncio())

    async def _fail_when_one_ends(self) -> None:
        watcher = self.host.until_one_ends if self.host else processes.until_one_ends
        self.fail(await watcher(self.pids))

    async def unless_lost(self, doing: Awaitable[Result]) -> Result:
        """Return what ``doing`` returns. Raises ReplicaFailed, and cancels it, as soon as this has failed: its process or its host is gone."""
        asked, ended = asyncio.ensure_future(doing), asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        except ReplicaDied as error:
            self.fail(reason_of(error))
        finally:
            for future in (asked, ended):
                future.cancel()
                # Nobody waits for it any more, so its exception has been seen.
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise ReplicaFailed(self.name, f"{self.name} has {self.state}: {self.reason}")

    def fail(self, reason: str) -> None:
        """Count as failed from now on."""
        self.move_to(State.FAILED, reason)

    async def beat(self, timeout: float, caller: str = "", waiting: int = 0, busy_timeout: float = 0.0) -> list[Beat]:
        """Probe all its processes and note their load.

        Raises ReplicaFailed if one is gone, and TimeoutError after ``timeout`` seconds. This time begins again whenever its processes on this host
        are seen to compute, up to ``busy_timeout`` in all: one that is stopped, or waits for something that never comes, uses no processor time.
        """
        own_before, now = len(self.in_flight), time.monotonic()
        give_up_at, was_busy_at = now + max(timeout, busy_timeout), now
        # Looked at more often than once a ``timeout``: a process that is stopped has had no time for anything from that moment on.
        glance = min(timeout, max(timeout / GLANCES, SHORTEST_GLANCE_SECONDS))
        asked = asyncio.ensure_future(self.unless_lost(self.probe.beat.call(caller, waiting).as_asyncio()))
        try:
            while not asked.done():
                before, late_at = await self._processor_seconds(), min(was_busy_at + timeout, give_up_at)
                await asyncio.wait({asked}, timeout=min(glance, late_at - now))
                now = time.monotonic()
                if not asked.done() and await self._processor_seconds() - before > BUSY_SHARE * glance:
                    was_busy_at = now
                if not asked.done() and now >= min(was_busy_at + timeout, give_up_at):
                    raise TimeoutError
            beats = [beat for _, beat in asked.result()]
        finally:
            asked.cancel()
        # An estimate: some of this process's own requests may have been answered between the count there and now.
        own = max(own_before, len(self.in_flight))
        self.load_elsewhere = max(0, max(beat.serving for beat in beats) - own)
        self.waiting_elsewhere = max(beat.waiting for beat in beats)
        self.answered.update(*(beat.answered for beat in beats))
        return beats

    async def drain(self) -> None:
        """Let it answer what it has begun and refuse the rest. Returns when all answers have arrived, or it has failed."""
        self.move_to(State.DRAINING)
        with contextlib.suppress(ReplicaFailed):
            await self.unless_lost(self.probe.drain.call().as_asyncio())
        if self.in_flight:
            await asyncio.wait(self.in_flight.values())

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop its processes in good order, or kill them after ``timeout`` seconds. Does nothing for processes that are gone."""
        self.move_to(State.STOPPED)
        try:
            async with asyncio.timeout(timeout):
                await self.procs.stop().as_asyncio()
        except TimeoutError:
            self._kill_local()
        except Exception as error:
            log.debug("%s was gone before it was stopped: %s", self.name, error)

    async def kill(self) -> None:
        """Kill its processes at once: a process that hangs does not react to anything else."""
        if self.host:
            await self.host.kill(self.pids)
        else:
            self._kill_local()
        await self.stop()

    async def _processor_seconds(self) -> float:
        """Return the processor seconds of its processes; 0.0 if nobody can say."""
        return await self.host.processor_seconds(self.pids) if self.host else processes.processor_seconds(self.pids)

    def _kill_local(self) -> None:
        # Only once: afterwards the process id may belong to another process.
        if not (self._killed or self.host):
            self._killed = True
            processes.kill(self.pids)


async def spawn(
    name: str,
    actor_class: type[Actor],
    *args: Any,
    procs: int = 1,
    host: Host | None = None,
    kind: type[Replica] = Replica,
    **kwargs: Any,
) -> Replica:
    """Start ``actor_class(*args, **kwargs)`` as ``name`` in a new process on ``host``, or one in each of ``procs``. Without a host: on this one.

    What it imports can be much; a class says in ``imports`` which modules, beyond its own, a process should import before its actor is made.
    Raises ReplicaFailed, or what Monarch says, if a process ends before that.
    """
    start_runtime()
    replica = kind(
        name, (host.mesh if host else this_host()).spawn_procs(per_host={"procs": procs}, name=name), width=procs
    )
    if host:
        replica.host = host
        host.replicas.append(replica)
    # The probe comes first: it says at once which process this is.
    replica.probe = replica.procs.spawn(f"{name}_probe", HealthProbe)
    try:
        await replica.meet((actor_class.__module__, *getattr(actor_class, "imports", ())))
    except BaseException:
        await replica.stop()
        raise
    replica.actor = replica.procs.spawn(name, actor_class, *args, **kwargs)
    return replica


def replicas_of(
    actor_class: type[Actor], *args: Any, procs: int = 1, named: bool = False, host: Host | None = None, **kwargs: Any
) -> ReplicaStart:
    """Return a function that starts ``actor_class(*args, **kwargs)`` on ``procs`` processes, and calls its ``setup`` if it has one.

    A ``named`` actor is also given the replica's name, as its first argument.
    """

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


async def bring_up(name: str, start: ReplicaStart, start_timeout: float) -> Replica:
    """Start a replica and probe it. Leaves no process behind if either fails. Raises TimeoutError after ``start_timeout`` seconds."""
    async with asyncio.timeout(start_timeout):
        replica = await start(name)
        try:
            await replica.unless_lost(replica.actor.initialized.as_asyncio())
            await replica.unless_lost(replica.probe.begin.call().as_asyncio())
        except BaseException:
            await replica.stop()
            raise
    replica.since = time.monotonic()
    return replica


def reason_of(error: BaseException) -> str:
    """Return the cause in a few words. Monarch's report of a dead process first names everything that died with it, and the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if isinstance(error, ReplicaDied) else 0]


def _from_elsewhere(name: str, actor: Any, width: int, identity: str, place: int, probe: Any) -> Replica:
    replica = Replica(name, None, actor, width)
    replica.id, replica.place, replica.probe, replica.state = identity, place, probe, State.READY
    return replica


def _import(modules: Sequence[str]) -> None:
    """Import what the actors of a new process need.

    These are unpickled side by side, and might otherwise meet in modules that are half imported. Of the million objects that importing torch
    and transformers makes none is garbage: with the collector looking for some, it takes a quarter longer.
    """
    gc.disable()
    for module in modules:
        # A class made in a notebook has no module; for any other, unpickling reports what is missing.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
