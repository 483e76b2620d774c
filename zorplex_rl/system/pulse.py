"""A replica that is up: its processes, its actor, and the pulse by which one can tell that they still answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zorplex_rl.system.member import Member
from zorplex_rl.system.runtime import Actor, Replica, concurrent_endpoint, spawn

BUSY_SHARE = 0.1
"""Of one processor core: what uses less is not computing."""
ReplicaStart = Callable[[str], Awaitable[Replica]]
"""Starts a replica under the name that it is given, and returns it when it is ready for requests."""


class Pulse(Actor):
    """Says that its process is alive."""

    @concurrent_endpoint
    async def beat(self) -> tuple[str, int]:
        """Host and process id."""
        return socket.gethostname(), os.getpid()


@dataclass(eq=False, slots=True)
class Live:
    """A replica that has been started, set up and probed."""

    replica: Replica
    member: Member
    pulse: Any
    since: float
    pids: tuple[int, ...]
    """Of its processes on this host."""

    @property
    def name(self) -> str:
        return self.replica.name

    async def beat(self, timeout: float) -> None:
        """Raise unless all its processes answer within ``timeout`` seconds."""
        await asyncio.wait_for(self.pulse.beat.call().as_asyncio(), timeout)

    async def beat_unless_busy(self, timeout: float, busy_timeout: float) -> None:
        """The same; but while its processes on this host are seen to compute, they have ``busy_timeout`` seconds.

        A process whose compute keeps the interpreter to itself cannot answer, and is none the worse for it; one that is stopped or
        waits for something that never comes uses no processor time.
        """
        beat = asyncio.ensure_future(self.pulse.beat.call().as_asyncio())
        give_up_at = time.monotonic() + busy_timeout
        try:
            while not beat.done():
                before = self.processor_seconds()
                await asyncio.wait({beat}, timeout=timeout)
                busy = self.processor_seconds() - before > BUSY_SHARE * timeout
                if not beat.done() and not (busy and time.monotonic() < give_up_at):
                    raise asyncio.TimeoutError
            beat.result()
        finally:
            beat.cancel()

    def processor_seconds(self) -> float:
        """What its processes on this host have computed so far; 0.0 where the system does not say."""
        ticks = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def stop(self) -> None:
        """End its processes in good order, or by force if they do not follow."""
        if not await self.replica.stop():
            self._kill_processes()

    async def kill(self) -> None:
        """End its processes at once; a stopped or hanging one cannot be asked."""
        self._kill_processes()
        await self.replica.stop()

    def _kill_processes(self) -> None:
        # Once only: afterwards the number may be another process's.
        pids, self.pids = self.pids, ()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def bring_up(name: str, start: ReplicaStart, start_timeout: float, probe_timeout: float) -> Live:
    """Start a replica and probe it; leaves no process behind if either fails. TimeoutError after ``start_timeout`` seconds."""
    replica = await asyncio.wait_for(start(name), start_timeout)
    try:
        pulse = replica.procs.spawn(f"{name}_pulse", Pulse)
        # The first beat waits for the actor to be spawned, which may import a lot; those that follow have to be quick.
        homes = [home for _, home in await asyncio.wait_for(pulse.beat.call().as_asyncio(), start_timeout)]
        here = tuple(pid for host, pid in homes if host == socket.gethostname())
        replica.pid = replica.pid or homes[0][1]
        live = Live(replica, Member(name, replica.actor, len(homes)), pulse, time.monotonic(), here)
        await live.beat(probe_timeout)
        return live
    except BaseException:
        await replica.stop()
        raise


def replicas_of(actor_class: type[Actor], *args: Any, procs: int = 1, **kwargs: Any) -> ReplicaStart:
    """Starts ``actor_class(*args, **kwargs)`` on ``procs`` processes, and calls its ``setup`` if it has one."""

    async def start(name: str) -> Replica:
        replica = await spawn(name, actor_class, *args, procs=procs, **kwargs)
        if hasattr(actor_class, "setup"):
            try:
                await replica.actor.setup.call()
            except BaseException:
                await replica.stop()
                raise
        return replica

    return start
