"""How many replicas a service has, how much may wait for how long, and which endpoints may be called twice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service is run. All times are in seconds."""

    replicas: int = 1
    spares: int = 0
    """Replicas kept loaded outside the rotation; one takes a failed one's place at once, and a new spare is started behind it."""
    min_replicas: int | None = None
    max_replicas: int | None = None
    """With both, the number of replicas follows the load between them; see ``autoscale.py``."""
    router: str = "round_robin"
    """round_robin or least_loaded."""
    idempotent: Collection[str] = ()
    """Endpoints that may be called again elsewhere when a replica fails in the middle of a call."""
    max_in_flight: int = 64
    """Slots of a replica: requests that one calling process may have sent to it."""
    max_queue: int = 1024
    """Requests that may wait for a slot, in one calling process. Further ones are refused at once."""
    wait_timeout: float = 30.0
    """How long a request may wait for a slot; while no replica is ready, as long as a start may take (``start_timeout``)."""
    start_timeout: float = 300.0
    """For starting a replica, its ``setup`` included; one that takes longer is stopped and counts as one that could not be started."""
    probe_every: float = 1.0
    probe_timeout: float = 3.0
    """A replica whose probe is answered later than this is killed and replaced."""
    busy_timeout: float = 0.0
    """The same for a process that is seen to compute: torch may let nothing else in its process run, and it is none the worse for it."""
    back_off: float = 0.25
    """Before the second start in a row that failed early; doubled with each further one, up to ``max_back_off``, less up to half by chance."""
    max_back_off: float = 1.5

    def __post_init__(self) -> None:
        least, most = self.bounds
        if not 1 <= least <= self.replicas <= most:
            raise ValueError(
                f"{self.replicas} replicas are not between the {least} and {most} allowed, or fewer than 1"
            )
        if self.router not in ("round_robin", "least_loaded"):
            raise ValueError(f"router {self.router!r} is unknown; expected one of round_robin, least_loaded")
        if self.max_in_flight < 1:
            raise ValueError(f"with max_in_flight {self.max_in_flight} no request is ever sent; use 1 or more")

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most replicas; both are ``replicas`` without autoscaling."""
        return (
            self.replicas if self.min_replicas is None else self.min_replicas,
            self.replicas if self.max_replicas is None else self.max_replicas,
        )
