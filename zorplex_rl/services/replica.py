"""Run a replica: one actor in a process that can die and be replaced alone.

    starting ──► ready ──► draining ──► stopped   draining: it gets no more requests, and answers those that it has
        └──────────┴──────────┴───────► failed    its process is gone, or did not answer a probe in time

Its process has a second, small actor, the ``HealthProbe``, which answers whatever the first is
doing: its silence means that the process hangs. That a process is *gone* is known at once, from a
pidfd, a file that the system makes readable when the process ends.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from zorplex_rl.errors import ZorplexError
from zorplex_rl.services.runtime import (
    Actor,
    EndpointError,
    ReplicaDied,
    Result,
    done_before,
    load_of_this_process,
    reason_of,
    start_monarch,
    this_host,
    uncounted_endpoint,
)

ReplicaStart = Callable[[str], Awaitable["Replica"]]  # starts one under the given name, and sets it up
QUIET_SECONDS = 2.0  # after so long all callers know that a replica drains
STOP_SECONDS = 5.0


class ServiceError(ZorplexError):
    """A request got no answer; the message says why."""


class Overloaded(ServiceError):
    """No replica had a free slot in time. The request was not sent."""


class GivenUp(ServiceError):
    """A service was given up; the message names the last failure."""


class ReplicaFailed(ServiceError):
    """The request's replica has failed. The message names it, and says whether it may be done."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Set how a service runs. Times are in seconds."""

    replicas: int = 1
    spares: int = 0  # loaded, but without requests: one replaces a failed replica at once
    max_replicas: int = 0  # above 0 the number of replicas follows the load (scaler.py) up to this
    min_replicas: int = 1  # and down to this
    router: str | Callable[["Replica"], Any] = "round_robin"  # or least_loaded, or a function (router.py)
    idempotent: Collection[str] = ()  # endpoints that may be called again if a replica fails during a call
    max_in_flight: int = 64  # slots: requests that one calling process may have sent to a replica
    max_queue: int = 1024  # requests that may wait in one calling process; more are refused at once
    wait_timeout: float = 30.0  # longest wait for a slot; start_timeout if no replica is ready as it begins
    start_timeout: float = 300.0  # longest start of a replica, with ``setup``
    probe_every: float = 1.0
    probe_timeout: float = 3.0  # a replica that does not answer a probe in time is killed and replaced
    max_failures: int = 5  # how often in a row a place may fail before its replica finishes anything
    progress: Collection[str] = ()  # endpoints whose answer shows that a replica does its work; none: any
    irreplaceable: bool = False  # give up when a replica fails that has answered something: that is lost


class Machine:
    """Start, watch and end processes of this machine. A host does the same on its own."""

    def start_processes(self, name: str, procs: int) -> Any:
        start_monarch()
        return this_host().spawn_procs(per_host={"procs": procs}, name=name)

    async def until_one_ends(self, pids: Sequence[int]) -> str:
        """Wait until one of ``pids`` has ended. Returns that, in words."""
        if not hasattr(os, "pidfd_open"):
            await asyncio.Event().wait()  # macOS: there Monarch notices it
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        files: list[int] = []
        try:
            for pid in pids:
                files.append(os.pidfd_open(pid))
                loop.add_reader(files[-1], ended.set)
            await ended.wait()
        except ProcessLookupError:
            pass
        finally:
            for file in files:
                loop.remove_reader(file)
                os.close(file)
        return "its process has ended"

    async def end(self, pids: Sequence[int]) -> None:
        """Kill ``pids``. Returns when they have surely ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def lend(self, folder: Path, is_filled: bool) -> AsyncIterator[str]:
        """Yield ``folder``'s path there; a process reads it or, unless it ``is_filled``, fills it."""
        yield str(folder)


THIS_MACHINE = Machine()


class HealthProbe(Actor):
    """Answer probes for its process, whatever the replica in it is doing."""

    @uncounted_endpoint
    async def prepare(self, modules: Sequence[str], path: Sequence[str]) -> None:
        """Import ``modules``, before an actor that needs them is made in this process: also from folders
        of ``path``, the caller's, that this process does not have."""
        sys.path += [folder for folder in path if folder not in sys.path]
        await asyncio.to_thread(_import, modules)

    @uncounted_endpoint
    async def begin(self) -> None:
        """Forget what this process has answered so far: that was its set-up."""
        load_of_this_process().answered.clear()

    @uncounted_endpoint
    async def beat(self) -> tuple[int, int, frozenset[str]]:
        """Return the process id, the requests that are being served, the endpoints that have answered."""
        load = load_of_this_process()
        return os.getpid(), load.serving, frozenset(load.answered)


def _import(modules: Sequence[str]) -> None:
    """Import what the actors of a new process need: unpickled side by side, they could meet in
    modules that are half imported."""
    # Of the million objects that torch and transformers make none is garbage.
    gc.disable()
    for module in modules:
        # A class made in a notebook has no module.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


class State(StrEnum):
    """Name the state of a replica; see the drawing above."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


class Replica:
    """Hold a replica: ``width`` processes, each of which gets every request; none while starting.

    ``place`` is its number in its set, which a replacement inherits; ``in_flight`` the requests that
    it has for this process, ``elsewhere`` the number of others; ``doing`` and ``answered`` name
    endpoints.
    """

    def __init__(self, name: str, actor: Any = None, width: int = 1, mesh: Any = None, machine: Machine = THIS_MACHINE):
        self.name = name
        self.actor = actor
        self.width = width
        self.mesh, self.machine = mesh, machine
        self.id = uuid.uuid4().hex
        self.place = self.elsewhere = 0
        self.probe: Any = None
        self.pids: tuple[int, ...] = ()
        self.state = State.STARTING
        self.reason = ""
        self.was_doing = ""  # the endpoints that it ran when it entered its state
        self.ended = asyncio.Event()  # set when it has failed or stopped
        self.on_change: list[Callable[[Replica], None]] = []
        self.in_flight: dict[Any, asyncio.Future[Any]] = {}
        self.doing: list[str] = []
        self.answered: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.pids[0] if self.pids else 0

    @property
    def load(self) -> int:
        return len(self.in_flight) + self.elsewhere

    def method(self, name: str) -> Callable[..., Any]:
        found = getattr(self.actor, name)
        return found.call_one if self.width == 1 else found.call

    def unwrap(self, answers: Any) -> Any:
        """Return the answer; of several processes, the list of answers."""
        return answers if self.width == 1 else [answer for _, answer in answers]

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of this replica, without waiting for a slot. Raises ReplicaFailed, or
        what the endpoint raised."""
        if self.ended.is_set():
            raise ReplicaFailed(f"{self.name} has {self.state}, and {method!r} was not sent to it")
        self.doing.append(method)
        try:
            answers = await self.unless_lost(self.method(method)(*args, **kwargs).as_asyncio())
        finally:
            self.doing.remove(method)
        self.answered.add(method)
        return self.unwrap(answers)

    def move_to(self, state: State, reason: str = "") -> None:
        """Enter ``state`` and tell all listeners. A failed or stopped replica stays so."""
        if self.ended.is_set() or state is self.state:
            return
        self.state, self.reason = state, reason
        self.was_doing = ", ".join(sorted(set(self.doing)))
        if state in (State.FAILED, State.STOPPED):
            self.ended.set()
        for listener in list(self.on_change):
            listener(self)

    def watch(self, pids: Sequence[int]) -> None:
        """Fail as soon as one of its processes ``pids`` has ended."""

        async def wait() -> None:
            self.move_to(State.FAILED, await self.machine.until_one_ends(pids))

        self.pids = tuple(pids)
        self._watching = asyncio.create_task(wait())

    async def unless_lost(self, doing: Awaitable[Result]) -> Result:
        """Return what ``doing`` returns. Cancels it, and raises ReplicaFailed, if this fails."""
        try:
            if done := await done_before(doing, self.ended):
                return done.result()
        except ReplicaDied as error:
            self.move_to(State.FAILED, reason_of(error))
        except EndpointError as error:
            raise error.original from None
        raise ReplicaFailed(f"{self.name} has {self.state}: {self.reason}")

    async def beat(self, timeout: float) -> None:
        """Probe all its processes and note their load. Raises ReplicaFailed if one is gone, and
        TimeoutError after ``timeout`` seconds."""
        own_before = len(self.in_flight)
        async with asyncio.timeout(timeout):
            beats = await self.unless_lost(self.probe.beat.call().as_asyncio())
        for _, (_, serving, answered) in beats:
            # An estimate: some of this process's own requests may have been answered meanwhile.
            self.elsewhere = max(0, serving - max(own_before, len(self.in_flight)))
            self.answered |= answered

    async def drain(self) -> None:
        """Send it no more requests. Returns when it has answered all that it has, or has failed."""
        self.move_to(State.DRAINING)
        await asyncio.sleep(QUIET_SECONDS)
        while self.load and not self.ended.is_set():
            await asyncio.sleep(0.05)
            with contextlib.suppress(ReplicaFailed, TimeoutError):
                await self.beat(QUIET_SECONDS)

    async def stop(self) -> None:
        """Stop its processes in good order, or kill them after ``STOP_SECONDS``."""
        self.move_to(State.STOPPED)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.mesh.stop().as_asyncio()
        except Exception:
            # It hangs, or was gone before.
            await self.kill()

    async def kill(self) -> None:
        """Kill its processes at once: a process that hangs does not react to anything else."""
        self.move_to(State.STOPPED)
        await self.machine.end(self.pids)


async def spawn(
    name: str, actor_class: type[Actor], *args: Any, procs: int = 1, machine: Machine = THIS_MACHINE
) -> Replica:
    """Start ``actor_class(*args)`` as ``name`` in ``procs`` new processes of ``machine``, and call
    its ``setup``, if it has one. Returns when that is done.

    A class names in ``imports`` what its process imports before the actor is made, besides the
    class's own module. Raises what ``setup`` raises, or ReplicaFailed if a process ends before. What
    ``__init__`` raises is told to the first request, so what can fail belongs into ``setup``.
    """
    mesh = machine.start_processes(name, procs)
    replica = Replica(name, None, procs, mesh, machine)
    # The probe comes first: it says at once which process this is.
    replica.probe = mesh.spawn(f"{name}_probe", HealthProbe)
    try:
        beats = await replica.unless_lost(replica.probe.beat.call().as_asyncio())
        replica.watch([pid for _, (pid, _, _) in beats])
        modules = (actor_class.__module__, *getattr(actor_class, "imports", ()))
        await replica.unless_lost(replica.probe.prepare.call(modules, sys.path).as_asyncio())
        replica.actor = mesh.spawn(name, actor_class, *args)
        if hasattr(actor_class, "setup"):
            await replica.unless_lost(replica.actor.setup.call().as_asyncio())
        await replica.unless_lost(replica.probe.begin.call().as_asyncio())
    except BaseException:
        await replica.stop()
        raise
    return replica


def replicas_of(actor_class: type[Actor], *args: Any, named: bool = False, **where: Any) -> ReplicaStart:
    """Return a function that starts replicas of ``actor_class(*args)``; see ``spawn``. A ``named``
    actor is also given the replica's name, as its first argument."""

    async def start(name: str) -> Replica:
        return await spawn(name, actor_class, *([name] if named else []), *args, **where)

    return start
