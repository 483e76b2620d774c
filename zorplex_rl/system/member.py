"""A replica as the pool sees it: what has been sent to it, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from zorplex_rl.system.routing import Candidate
from zorplex_rl.system.runtime import ReplicaDied

Ticket: TypeAlias = "asyncio.Future[bool]"
"""What a waiting request waits for. True: a place with the replica is taken for it; False: it has to look for a replica again."""


class Member(Candidate):
    """One replica in a pool: ``sent`` requests are with it, and ``waiting`` ones are to be sent as soon as it has answered one."""

    def __init__(self, name: str, actor: Any, procs: int = 1) -> None:
        super().__init__(name)
        self.actor, self.procs = actor, procs
        self.ready = True
        self.requests = self.sent = 0
        self.waiting: deque[Ticket] = deque()
        self.outside: deque[Ticket] = deque()
        """Requests of its sessions for which its queue has no room."""
        self.in_flight: dict[asyncio.Future[Any], None] = {}
        self.emptied = asyncio.Event()
        self._calls: dict[str, Callable[..., Any]] = {}

    @property
    def load(self) -> int:
        return self.sent + len(self.waiting)

    def call(self, method: str) -> Callable[..., Any]:
        """The function that sends a request for ``method`` and returns Monarch's future. AttributeError if there is no such endpoint."""
        if method not in self._calls:
            endpoint = getattr(self.actor, method)
            self._calls[method] = endpoint.call_one if self.procs == 1 else endpoint.call
        return self._calls[method]


def wake(queue: deque[Ticket], result: bool) -> bool:
    """Resolve the first in ``queue`` that still waits; False if there is none."""
    while queue:
        if not (ticket := queue.popleft()).done():
            ticket.set_result(result)
            return True
    return False


class Gone(Exception):
    """Set on the requests in flight of a member that its owner has declared failed."""


def reason_of(error: BaseException) -> str:
    """Why, in a few words. Monarch's report of a dead process names everything that died with it first and the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if isinstance(error, ReplicaDied) else 0]
