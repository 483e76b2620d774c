"""How a service runs, and what can go wrong with a request."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from zorplex_rl.errors import ZorplexError


class ServiceError(ZorplexError):
    """A request got no answer; the message says why."""


class Overloaded(ServiceError):
    """No replica had a free slot in time. The request was not sent."""


class GivenUp(ServiceError):
    """A service was given up; the message names the last failure."""


class ReplicaFailed(ServiceError):
    """The request's replica has failed. The message names it, and says whether it may be done."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Set how a service runs. Times are in seconds."""

    replicas: int = 1
    """How many answer requests."""
    spares: int = 0
    """Replicas that are loaded, but get no requests: one replaces a failed replica at once."""
    max_replicas: int = 0
    """Above 0 the number of replicas follows the load (scaler.py) up to this, …"""
    min_replicas: int = 1
    """… and down to this."""
    router: str | Callable[[Any], Any] = "round_robin"
    """round_robin, least_loaded, or a key function of a replica (router.py)."""
    idempotent: Collection[str] = ()
    """Endpoints that may be called again if a replica fails during a call."""
    max_in_flight: int = 64
    """Slots: requests that one calling process may have sent to a replica."""
    max_queue: int = 1024
    """Requests that may wait in one calling process; more are refused at once."""
    wait_timeout: float = 30.0
    """Longest wait for a slot; ``start_timeout`` if no replica is ready as it begins."""
    start_timeout: float = 300.0
    """Longest start of a replica, with ``setup``."""
    probe_every: float = 1.0
    probe_timeout: float = 3.0
    """A replica that does not answer a probe in time is killed and replaced."""
    max_failures: int = 5
    """How often in a row a place may fail before its replica finishes anything."""
    progress: Collection[str] = ()
    """Endpoints whose answer shows that a replica does its work; none: any."""
    irreplaceable: bool = False
    """Give up when a replica fails that has answered something: that is lost."""
