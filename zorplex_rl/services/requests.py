"""Define requests, their errors and their counts. Every request ends with an answer or with an error that says what happened."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zorplex_rl.services.router import Session


class ServiceError(RuntimeError):
    """Report that a request got no answer; the message says why."""


class Overloaded(ServiceError):
    """Report that no replica had a free slot in time. The request was not sent."""


class GivenUp(ServiceError):
    """Report that a service was given up: its replicas failed again and again. The message names it, the last cause, and what to do."""


class ReplicaFailed(ServiceError):
    """Report that the replica of the request failed. The message says whether the request may have been carried out."""

    def __init__(self, replica: str, message: str) -> None:
        # Both go to the base class, which pickles them: an endpoint may raise this to its own caller.
        super().__init__(replica, message)
        self.replica, self.message = replica, message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Failure:
    """Stand for the result of a replica that gave none, in the list that ``fanout`` returns."""

    replica: str
    error: Exception


@dataclass(eq=False, slots=True)
class Request:
    """Hold one call of an endpoint. ``number`` is its position in the queue; the caller awaits ``answer``."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: asyncio.Future[Any]
    session: "Session | None" = None
    only: bool = False
    """True if it is for one particular replica: it is never queued and never sent again."""
    sent: int = 0
    """How often it was sent."""
    began: float = field(default_factory=time.perf_counter)
    timer: asyncio.TimerHandle | None = None
    """Ends its wait; set while it is in the queue."""


@dataclass(slots=True)
class Metrics:
    """Count the requests so far. ``errors`` got no answer; ``application_errors`` were answered with an exception."""

    requests: int = 0
    answered: int = 0
    application_errors: int = 0
    errors: int = 0
    retries: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    """Seconds from request to answer, of the latest requests."""
