"""The generators of a run, and how one that dies is replaced.

    worker 0 ──► generator_0   ✗ killed
    worker 1 ──► generator_1
    spare   ──► generator_2   loaded and idle; takes over worker 0 at once, and a new spare is started behind it

A worker is a place in the run; a replica is the process that fills it. Loading torch and a policy takes seconds, noticing a death about
one; with a spare in reserve the second is all that a death costs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from zorplex_rl.system.runtime import Replica, ReplicaDied

log = logging.getLogger(__name__)
MAX_RESTARTS_IN_A_ROW = 5


class WorkerDied(RuntimeError):
    """The process of a worker, ``replica``, has died during a call; it has to be replaced before the next one."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(f"{replica.name} (process {replica.pid}) has died")
        self.replica = replica


@dataclass(frozen=True, slots=True)
class Restart:
    """A replacement: who died, who took over, and the seconds from the notice of the death to readiness."""

    died: str
    took_over: str
    seconds: float


@dataclass(slots=True)
class Worker:
    """A place for one generator. ``version`` is that of the weights which it pulled last."""

    index: int
    replica: Replica
    version: int = -1
    deaths_in_a_row: int = 0
    replacing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def pull(self) -> int:
        self.version = await self._call("pull")
        return self.version

    async def generate(self, tasks: list[Any]) -> list[Any]:
        groups = await self._call("generate", tasks)
        self.deaths_in_a_row = 0
        return groups

    async def evaluate(self, tasks: list[Any], temperature: float) -> list[Any]:
        return await self._call("evaluate", tasks, temperature)

    async def _call(self, endpoint: str, *args: Any) -> Any:
        replica = self.replica
        try:
            return await getattr(replica.actor, endpoint).call_one(*args)
        except ReplicaDied as error:
            raise WorkerDied(replica) from error


class GeneratorPool:
    """Workers and spares. ``start`` is a coroutine function that brings up replica number n, loaded and subscribed."""

    def __init__(self, start: Callable[[int], Awaitable[Replica]], workers: int, spares: int) -> None:
        self._start, self._started = start, 0
        self._worker_count, self._spare_count = workers, spares
        self.workers: list[Worker] = []
        self._spares: list[asyncio.Task[Replica]] = []
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> None:
        """Bring up all workers; spares come up behind them."""
        replicas = await asyncio.gather(*(self._begin() for _ in range(self._worker_count)))
        self.workers = [Worker(index, replica) for index, replica in enumerate(replicas)]
        self._spares = [self._begin() for _ in range(self._spare_count)]

    async def spares_ready(self) -> None:
        """Wait until every spare is loaded, so that loading them disturbs nobody later."""
        await asyncio.gather(*self._spares)

    async def replace(self, worker: Worker, death: WorkerDied) -> Restart | None:
        """Fill ``worker``'s place with a spare, or with a new process if there is none.

        None if the place was filled already, for another call that died of the same ``death``. Raises RuntimeError if the new ones keep dying too.
        """
        async with worker.replacing:
            return await self._replace(worker) if worker.replica is death.replica else None

    async def _replace(self, worker: Worker) -> Restart:
        began, dead = time.monotonic(), worker.replica
        worker.deaths_in_a_row += 1
        if worker.deaths_in_a_row > MAX_RESTARTS_IN_A_ROW:
            raise RuntimeError(
                f"the generator of worker {worker.index} has died {worker.deaths_in_a_row} times without finishing a batch"
            )
        self._stopping.add(asyncio.create_task(dead.stop()))
        self._spares.append(self._begin())
        worker.replica = await self._spares.pop(0)
        worker.version = -1
        return Restart(dead.name, worker.replica.name, time.monotonic() - began)

    async def close(self) -> None:
        """Stop every process, spares that are still loading included."""
        self._closed = True
        for spare in self._spares:
            spare.cancel()
        started = await asyncio.gather(*self._spares, return_exceptions=True)
        replicas = [replica for replica in started if isinstance(replica, Replica)]
        replicas += [worker.replica for worker in self.workers]
        await asyncio.gather(*(replica.stop() for replica in replicas), *self._stopping)

    def _begin(self) -> asyncio.Task[Replica]:
        number = self._started
        self._started += 1
        return asyncio.create_task(self._start(number))
