"""A replica: one actor in a process that can die and be replaced alone.

    starting ──► ready ──► draining ──► stopped   draining: it gets no more requests, and answers those that it has
        └──────────┴──────────┴───────► failed    its process is gone, or did not answer a probe in time

Its process has a second, small actor, the ``HealthProbe`` (spawn.py), which answers whatever the first
is doing: its silence means that the process hangs. That a process is *gone* is known at once, from a
pidfd, a file that the system makes readable when the process ends.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from zorplex_rl.services.machine import THIS_MACHINE, Machine
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.runtime import EndpointError, ReplicaDied, Result, done_before, reason_of

ReplicaStart = Callable[[str], Awaitable["Replica"]]
"""Starts a replica under the given name, and sets it up."""
QUIET_SECONDS = 2.0
"""After so long all callers know that a replica drains."""
STOP_SECONDS = 5.0


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

    def __init__(
        self,
        name: str,
        actor: Any = None,
        width: int = 1,
        mesh: Any = None,
        machine: Machine = THIS_MACHINE,
    ):
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
