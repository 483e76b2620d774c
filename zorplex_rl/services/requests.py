"""What a service promises about requests: an answer or an error that says what happened, and a count of everything."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zorplex_rl.services.router import Session


class ServiceError(RuntimeError):
    """A request that got no answer; the message says why."""


class Overloaded(ServiceError):
    """No replica had room for the request in time. It was not sent."""


class ReplicaFailed(ServiceError):
    """The replica that the request was for failed; the message says whether the request may have been carried out."""

    def __init__(self, replica: str, message: str) -> None:
        super().__init__(message)
        self.replica = replica


@dataclass(frozen=True, slots=True)
class Failure:
    """What ``fanout`` has in place of the result of a replica that gave none."""

    replica: str
    error: Exception


@dataclass(eq=False, slots=True)
class Request:
    """One call of an endpoint. ``number`` is its position in the queue, ``answer`` what its caller waits for."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: asyncio.Future[Any]
    session: Session | None = None
    only: bool = False
    """For one replica and no other: it is never queued and never sent again."""
    sent: int = 0
    """How often it has been sent."""
    began: float = field(default_factory=time.perf_counter)
    timer: asyncio.TimerHandle | None = None
    """Set while it is in the queue."""


@dataclass(slots=True)
class Metrics:
    """What has become of the requests so far. ``errors`` got no answer; ``application_errors`` were answered with an exception."""

    requests: int = 0
    answered: int = 0
    application_errors: int = 0
    errors: int = 0
    retries: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    """Seconds from request to answer, of the latest ones."""

    def latency(self, share: float) -> float:
        """Return the latency in seconds that ``share`` of the latest requests stayed below; 0.0 if there were none."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
