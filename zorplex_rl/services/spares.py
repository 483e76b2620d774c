"""Keep replicas that are set up and get no requests. A spare takes the place of a failed replica at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from zorplex_rl.services.replica import Replica


class Spares:
    """Hold the spares of a service, started by ``start()``. One that is taken is replaced by a new one."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, Replica]]) -> None:
        self._start = start
        self.starting: list[asyncio.Task[Replica]] = []
        """Those that are ready are done."""

    def keep(self, number: int) -> None:
        """Start ``number`` spares."""
        self.starting += [asyncio.create_task(self._start()) for _ in range(number)]

    def take(self) -> asyncio.Task[Replica] | None:
        """Return the oldest spare, and start another one. Returns None if there are none."""
        if not self.starting:
            return None
        self.keep(1)
        return self.starting.pop(0)

    async def ready(self) -> None:
        """Wait until every spare is ready, or cannot be started."""
        await asyncio.gather(*self.starting, return_exceptions=True)

    async def leave(self) -> list[Replica]:
        """Start no more. Returns those that are up, for their end."""
        for task in self.starting:
            task.cancel()
        outcomes = await asyncio.gather(*self.starting, return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, Replica)]


async def discard(starting: asyncio.Task[Replica]) -> None:
    """End what ``starting`` has started or still starts: nobody waits for it any more."""
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, Replica):
        await outcome.kill()
