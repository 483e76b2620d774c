"""Count the requests of a replica: in its own process, and in each process that calls it.

    caller     Traffic   what this process has sent, and by the last probe what others have
                  │ requests, probes
                  ▼
    replica    Load      what the process serves: the callers of all processes, at no message

So draining and scaling see callers in other processes, too.
"""

import asyncio
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_turns = count(1)


class Load:
    """Count what this process serves. Each actor has its own thread, so counting needs a lock."""

    def __init__(self) -> None:
        self.serving = 0
        self.answered: set[str] = set()
        """The endpoints that have given an answer."""
        self._draining, self._last_arrival = False, 0.0
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Count a request that has arrived. Returns False if it must not be begun."""
        with self._lock:
            self._last_arrival = time.monotonic()
            self.serving += not self._draining
            return not self._draining

    def end(self, endpoint: str) -> None:
        """Count a request of ``endpoint``, which ``begin`` has let in, as answered."""
        with self._lock:
            self.serving -= 1
            self.answered.add(endpoint)

    async def drain(self, quiet_seconds: float) -> None:
        """Refuse requests. Returns when all are answered and none came for ``quiet_seconds``."""
        with self._lock:
            self._draining, self._last_arrival = True, time.monotonic()
        while self.serving or time.monotonic() - self._last_arrival < quiet_seconds:
            await asyncio.sleep(0.02)


_load = Load()


def load_of_this_process() -> Load:
    """Return this process's count; a notebook's actor class is copied with the globals it uses."""
    return _load


def load_of_nobody() -> Load:
    """Return a count that nobody reads, and that lets everything in."""
    return Load()


@dataclass(slots=True)
class Traffic:
    """Count the requests of one replica as the present process knows them."""

    in_flight: dict[Any, asyncio.Future[Any]] = field(default_factory=dict)
    """Requests that this process has sent to it and that have no answer yet, in order."""
    sent: int = 0
    answered: set[str] = field(default_factory=set)
    """The endpoints that it has answered, those for other processes as of the last probe."""
    elsewhere: int = 0
    """Its requests from other processes, as of the last probe."""
    waiting_elsewhere: int = 0
    """Requests that wait for it in other processes, as of the last probe."""
    turn: int = field(default_factory=lambda: next(_turns))
    """Its position in the round robin: larger after every request that it gets."""

    @property
    def load(self) -> int:
        """Return its number of requests: those of this process, and those of others."""
        return len(self.in_flight) + self.elsewhere

    @property
    def doing(self) -> str:
        """Return what it runs for this process, in words for the middle of a sentence."""
        methods = sorted({request.method for request in self.in_flight})
        return f" while it ran {', '.join(map(repr, methods))}" if methods else ""

    def take_turn(self) -> None:
        """Move to the end of the round robin."""
        self.turn = next(_turns)

    def note(self, own_before: int, serving: int, waiting: int, answered: set[str]) -> None:
        """Take over what a probe has said, with ``own_before`` requests in flight here before."""
        # An estimate: some of this process's own requests may have been answered meanwhile.
        self.elsewhere = max(0, serving - max(own_before, len(self.in_flight)))
        self.waiting_elsewhere = waiting
        self.answered |= answered
