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
    """A service has given up replacing replicas; the message names the last failure."""


class ReplicaFailed(ServiceError):
    """The replica that had the request failed. The message names it, and says whether the request may have been
    carried out."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Set how a service runs. Times are in seconds."""

    replicas: int = 1
    """How many replicas answer requests."""
    spares: int = 0
    """Loaded replicas that get no requests, until one replaces a failed replica."""
    max_replicas: int = 0
    """Largest number of replicas. Above 0, their number follows the load (scaler.py)."""
    min_replicas: int = 1
    """Smallest number of replicas, if it follows the load."""
    router: str | Callable[[Any], Any] = "round_robin"
    """round_robin, least_loaded, or a key function of a replica (router.py)."""
    idempotent: Collection[str] = ()
    """Endpoints that may be called again if a replica fails during a call."""
    max_in_flight: int = 64
    """Slots: unanswered requests of one calling process to one replica."""
    max_queue: int = 1024
    """Requests that may wait in one calling process; more are refused at once."""
    wait_timeout: float = 30.0
    """Longest wait for a slot; it is ``start_timeout`` if no replica is ready when the wait begins."""
    start_timeout: float = 300.0
    """Maximum time that a replica may take to start, including ``setup``."""
    probe_every: float = 1.0
    """Pause between two probes of a replica."""
    probe_timeout: float = 3.0
    """A replica that does not answer a probe in time is killed and replaced."""
    max_failures: int = 5
    """Failures in a row after which a place is given up: starts, and replicas that did no work."""
    progress: Collection[str] = ()
    """Endpoints whose answer counts as work done; if empty, all of them."""
    irreplaceable: bool = False
    """Give up when a replica fails after it has done work: its state is lost."""
