"""Start, watch and end the processes of one replica, on this machine or on another host.

A pidfd (``processes.py``) says that one is gone; of another host its keeper, which also kills.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from zorplex_rl.services import processes
from zorplex_rl.services.host import Host

log = logging.getLogger(__name__)


class ReplicaProcess:
    """Hold the processes of one replica, usually one. ``mesh`` is Monarch's, if there are any."""

    def __init__(self, mesh: Any = None, host: Host | None = None) -> None:
        self.mesh, self.host = mesh, host
        self.pids: tuple[int, ...] = ()
        """Its processes on its own machine, known as soon as they answer for the first time."""
        self._watching: asyncio.Task[None] | None = None
        self._killed = False

    def watch(self, pids: Collection[int], tell: Callable[[str], None]) -> None:
        """Call ``tell`` with the reason as soon as one of its processes ``pids`` has ended."""

        async def wait() -> None:
            watcher = self.host.until_one_ends if self.host else processes.until_one_ends
            tell(await watcher(self.pids))

        self.pids = tuple(pids)
        self._watching = asyncio.create_task(wait())

    async def processor_seconds(self) -> float:
        """Return the processor seconds that it has used; 0.0 if nobody can say."""
        return await self.host.processor_seconds(self.pids) if self.host else processes.processor_seconds(self.pids)

    async def stop(self, timeout: float) -> None:
        """Stop it in good order, or kill it after ``timeout`` seconds. It may be gone already."""
        try:
            async with asyncio.timeout(timeout):
                await self.mesh.stop().as_asyncio()
        except TimeoutError:
            self._kill_here()
        except Exception as error:
            log.debug("%s was gone before it was stopped: %s", self.pids, error)

    async def kill(self) -> None:
        """Kill it at once."""
        if self.host:
            await self.host.kill(self.pids)
        else:
            self._kill_here()

    def _kill_here(self) -> None:
        # Only once: afterwards the process id may belong to another process.
        if not (self._killed or self.host):
            self._killed = True
            processes.kill(self.pids)
