"""Tell whether a replica's process still reacts, whatever its actor is doing.

A ``HealthProbe`` is a second small actor in the process. Its answer says that the process reacts,
not that the replica is idle, however long a request takes. A process that gives no answer in time
counts as failed, unless it is computing: torch may block all other threads of its process.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from zorplex_rl.services.endpoints import uncounted_endpoint
from zorplex_rl.services.load import load_of_this_process
from zorplex_rl.services.monarch_settings import Actor

Result = TypeVar("Result")
QUIET_SECONDS = 0.25
"""A draining replica stays this long after its last request, to refuse those on their way."""
BUSY_SHARE = 0.1
"""Share of one processor core: a process that uses less is not computing."""
POLLS, SHORTEST_POLL_SECONDS = 8, 0.25
"""Looks at a process that does not answer, per probe timeout; and the shortest time between two."""
REPORT_SECONDS = 3.0
"""A caller's report of how many requests wait counts this long."""


class Heartbeat(NamedTuple):
    """Answer a probe."""

    pid: int
    serving: int
    """The requests that the process serves."""
    waiting: int
    """Those that wait for it in other processes."""
    answered: frozenset[str]
    """The endpoints that have answered."""


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
    async def beat(self, caller: str = "", waiting: int = 0) -> Heartbeat:
        """Return the state of this process, and note that ``waiting`` requests wait at ``caller``."""
        now = time.monotonic()
        if caller:
            self._waiting[caller] = waiting, now
        recent = sum(number for number, reported in self._waiting.values() if now - reported < REPORT_SECONDS)
        load = load_of_this_process()
        return Heartbeat(os.getpid(), load.serving, recent, frozenset(load.answered))

    @uncounted_endpoint
    async def drain(self) -> None:
        """Refuse new requests. Returns when all begun requests are answered."""
        await load_of_this_process().drain(QUIET_SECONDS)


async def answer_in_time(
    doing: Awaitable[Result],
    processor_seconds: Callable[[], Awaitable[float]],
    timeout: float,
    busy_timeout: float = 0.0,
) -> Result:
    """Return the answer to a probe. Raises TimeoutError after ``timeout`` seconds. It begins again
    whenever the process computes, up to ``busy_timeout`` in all; one that is stopped does not."""
    now = was_busy_at = time.monotonic()
    give_up_at = now + max(timeout, busy_timeout)
    # More often than once a ``timeout``: a stopped process has had no time for anything since.
    poll = min(timeout, max(timeout / POLLS, SHORTEST_POLL_SECONDS))
    asked = asyncio.ensure_future(doing)
    try:
        while not asked.done():
            before, late_at = await processor_seconds(), min(was_busy_at + timeout, give_up_at)
            await asyncio.wait({asked}, timeout=min(poll, late_at - now))
            now = time.monotonic()
            if not asked.done() and await processor_seconds() - before > BUSY_SHARE * poll:
                was_busy_at = now
            if not asked.done() and now >= min(was_busy_at + timeout, give_up_at):
                raise TimeoutError
        return asked.result()
    finally:
        asked.cancel()


def _import(modules: Sequence[str]) -> None:
    """Import what the actors of a new process need.

    These are unpickled side by side, and might otherwise meet in modules that are half imported. Of
    the million objects that importing torch and transformers makes none is garbage: with the
    collector looking for some, it takes a quarter longer.
    """
    gc.disable()
    for module in modules:
        # A class made in a notebook has no module; for others, unpickling reports what is missing.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
