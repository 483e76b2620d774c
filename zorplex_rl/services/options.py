"""Options of a service: replicas, limits of queue and time, endpoints that may be called twice."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from zorplex_rl.services.replica import Replica

RouterName = Literal["round_robin", "least_loaded"]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Set how a service runs. Times are in seconds. Raises ValueError for contradictions."""

    replicas: int = 1
    spares: int = 0
    """Replicas that are loaded but get no requests. One replaces a failed replica at once."""
    min_replicas: int | None = None
    max_replicas: int | None = None
    """With both, the number of replicas follows the load in these bounds; see ``autoscale.py``."""
    router: RouterName | Callable[[Replica], Any] = "round_robin"
    """How a replica is chosen: a key of ``POLICIES`` in ``router.py``, or a function like those."""
    idempotent: Collection[str] = ()
    """Endpoints that may be called again on another replica if one fails during a call."""
    max_in_flight: int = 64
    """Slots of a replica: requests that one calling process may have sent to it."""
    max_queue: int = 1024
    """Most requests that may wait for a slot, in one calling process. More are refused at once."""
    wait_timeout: float = 30.0
    """Longest wait of a request for a slot; ``start_timeout`` while no replica is ready."""
    start_timeout: float = 300.0
    """Longest start of a replica, with ``setup``. A longer one is stopped and counts as failed."""
    probe_every: float = 1.0
    probe_timeout: float = 3.0
    """A replica that does not answer a probe within this time is killed and replaced."""
    busy_timeout: float = 0.0
    """The same limit for a process that is computing: torch may block its other threads."""
    max_failures: int = 5
    """How often in a row a place may fail before its replica finishes anything; then all ends."""
    progress: Collection[str] = ()
    """Endpoints whose answer shows that a replica does its work; with none named, any."""
    runs: str = ""
    """Whose code its replicas run, in words, for the error with which the service is given up."""
    irreplaceable: bool = False
    """Give the service up when a replica fails that has answered something: that is lost."""
    back_off: float = 0.25
    """Wait after a second failure. Doubles up to ``max_back_off``, less up to half at random."""
    max_back_off: float = 4.0

    def __post_init__(self) -> None:
        least, most = self.bounds
        if not 1 <= least <= self.replicas <= most:
            raise ValueError(
                f"{self.replicas} replicas are not between the {least} and {most} allowed, or fewer than 1"
            )
        if not callable(self.router) and self.router not in get_args(RouterName):
            raise ValueError(f"router {self.router!r} is unknown; expected one of {', '.join(get_args(RouterName))}")
        if self.max_in_flight < 1:
            raise ValueError(f"with max_in_flight {self.max_in_flight} no request is ever sent; use 1 or more")

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the least and the most replicas; both are ``replicas`` without autoscaling."""
        return (
            self.replicas if self.min_replicas is None else self.min_replicas,
            self.replicas if self.max_replicas is None else self.max_replicas,
        )
