"""What a service promises about requests: bounds, errors that say what happened, and a count of everything."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class ServiceError(RuntimeError):
    """A request that got no answer; the message says why."""


class Overloaded(ServiceError):
    """No replica had room for the request in time."""


class ReplicaFailed(ServiceError):
    """The replica that the request had been sent to failed; whether it acted on the request before that is unknown."""

    def __init__(self, replica: str, message: str) -> None:
        super().__init__(message)
        self.replica = replica


@dataclass(frozen=True, slots=True)
class Failure:
    """What ``fanout`` has in place of the result of a replica that gave none."""

    replica: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait where. ``wait_timeout`` is in seconds, from the request to its being sent."""

    max_in_flight: int = 64
    max_queue: int = 256
    wait_timeout: float = 30.0


@dataclass(slots=True)
class Metrics:
    """What has become of the requests so far. ``errors`` got no answer; ``application_errors`` were answered with an exception."""

    requests: int = 0
    answered: int = 0
    application_errors: int = 0
    errors: int = 0
    retries: int = 0
    restarts: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    """Seconds from request to answer, of the latest ones."""

    def latency(self, share: float) -> float:
        """The latency in seconds that ``share`` of the latest requests stayed below; 0.0 if there were none."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
