"""A replica: one actor in a process that can die and be replaced alone.

    starting ──► ready ──► draining ──► stopped   draining: it gets no new requests, and answers those that it has
        └──────────┴──────────┴───────► failed    its process has ended, or did not answer a probe in time

Its process has a second, small actor, the ``HealthProbe`` (spawn.py). It answers even while the first
one computes, so if it is silent, the process hangs. The *end* of a process is noticed at once, by a
pidfd: a file that the system makes readable when the process ends.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from zorplex_rl.services.machine import THIS_MACHINE, Machine
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.runtime import EndpointError, ReplicaDied, Result, race, reason_of

ReplicaStart = Callable[[str], Awaitable["Replica"]]
"""Starts a replica under the given name, and waits for its set-up."""
QUIET_SECONDS = 2.0
"""After this time all callers know that a replica is draining."""
STOP_SECONDS = 5.0


class State(StrEnum):
    """Name the state of a replica; see the drawing above."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(eq=False)
class Replica:
    """Hold a replica: an actor in one process or several."""

    name: str
    actor: Any = None
    """Monarch's handle of the actor; None until it is started."""
    width: int = 1
    """Number of processes. Each of them gets every request."""
    mesh: Any = None
    """Monarch's handle of the processes, in the process that has started them."""
    machine: Machine = THIS_MACHINE
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    place: int = 0
    """Its number in its set, which a replacement inherits."""
    probe: Any = None
    pids: tuple[int, ...] = ()
    state: State = State.STARTING
    reason: str = ""
    """Why it entered its state."""
    was_doing: str = ""
    """The endpoints that it ran when it entered its state."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has failed or stopped."""
    on_change: "list[Callable[[Replica], None]]" = field(default_factory=list)
    in_flight: dict[Any, asyncio.Future[Any]] = field(default_factory=dict)
    """The requests of this process that it has not answered."""
    elsewhere: int = 0
    """How many requests of other processes it is serving."""
    doing: list[str] = field(default_factory=list)
    """The endpoint of each call from this process that it is serving."""
    answered: set[str] = field(default_factory=set)
    """Endpoints that have answered at least once."""
    _watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.pids[0] if self.pids else 0

    @property
    def load(self) -> int:
        return len(self.in_flight) + self.elsewhere

    def method(self, name: str) -> Callable[..., Any]:
        endpoint = getattr(self.actor, name)
        return endpoint.call_one if self.width == 1 else endpoint.call

    def unwrap(self, answers: Any) -> Any:
        """Return the answer; of several processes, the list of answers."""
        return answers if self.width == 1 else [answer for _, answer in answers]

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return this replica's answer. Does not wait for a slot. Raises ReplicaFailed, or what the
        endpoint raised."""
        if self.ended.is_set():
            raise ReplicaFailed(f"{self.name} has {self.state}, and {method!r} was not sent to it")
        self.doing.append(method)
        try:
            answers = await self.wait_for(self.method(method)(*args, **kwargs).as_asyncio())
        finally:
            self.doing.remove(method)
        self.answered.add(method)
        return self.unwrap(answers)

    def move_to(self, state: State, reason: str = "") -> None:
        """Enter ``state`` and notify all listeners. Does nothing once it has failed or stopped."""
        if self.ended.is_set() or state is self.state:
            return
        self.state = state
        self.reason = reason
        self.was_doing = ", ".join(sorted(set(self.doing)))
        if state in (State.FAILED, State.STOPPED):
            self.ended.set()
        for listener in list(self.on_change):
            listener(self)

    def watch(self, pids: Sequence[int]) -> None:
        """Fail as soon as one of its processes, ``pids``, ends."""

        async def wait() -> None:
            self.move_to(State.FAILED, await self.machine.until_one_ends(pids))

        self.pids = tuple(pids)
        self._watching = asyncio.create_task(wait())

    async def wait_for(self, answer: Awaitable[Result]) -> Result:
        """Return the result of ``answer``. Raises ReplicaFailed if this replica fails first."""
        try:
            done = await race(answer, self.ended)
            if done:
                return done.result()
        except ReplicaDied as error:
            self.move_to(State.FAILED, reason_of(error))
        except EndpointError as error:
            raise error.original from None
        raise ReplicaFailed(f"{self.name} has {self.state}: {self.reason}")

    async def beat(self, timeout: float) -> None:
        """Probe all its processes and note their load. Raises ReplicaFailed if one has ended, and
        TimeoutError after ``timeout`` seconds."""
        before = len(self.in_flight)
        async with asyncio.timeout(timeout):
            beats = await self.wait_for(self.probe.beat.call().as_asyncio())
        for _, (_, serving, answered) in beats:
            # An estimate: some of this process's requests may have been answered meanwhile.
            self.elsewhere = max(0, serving - max(before, len(self.in_flight)))
            self.answered |= answered

    async def drain(self) -> None:
        """Take it out of rotation. Returns when it has answered all its requests, or has failed."""
        self.move_to(State.DRAINING)
        await asyncio.sleep(QUIET_SECONDS)
        while self.load and not self.ended.is_set():
            await asyncio.sleep(0.05)
            with contextlib.suppress(ReplicaFailed, TimeoutError):
                await self.beat(QUIET_SECONDS)

    async def stop(self) -> None:
        """Stop its processes cleanly; kill them if that takes longer than ``STOP_SECONDS``."""
        self.move_to(State.STOPPED)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.mesh.stop().as_asyncio()
        except Exception:
            # It hangs, or had ended before.
            await self.kill()

    async def kill(self) -> None:
        """Kill its processes: one that hangs reacts to nothing else."""
        self.move_to(State.STOPPED)
        await self.machine.end(self.pids)
