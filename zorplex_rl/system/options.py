"""How many replicas a service has, how long it waits for what, and which of its endpoints may be called twice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from zorplex_rl.system.requests import Limits
from zorplex_rl.system.routing import ROUTERS


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service is run. All times are in seconds."""

    replicas: int = 1
    spares: int = 0
    """Replicas kept ready outside the rotation; one takes a failed one's place at once, and a new spare is started behind it."""
    min_replicas: int | None = None
    max_replicas: int | None = None
    """With both, the number of replicas follows the queue between them; see ``autoscale.py``."""
    router: str = "round_robin"
    """round_robin or least_loaded."""
    idempotent: Collection[str] = ()
    """Endpoints that may be called again elsewhere when a replica fails in the middle of a call."""
    limits: Limits = field(default_factory=Limits)
    start_timeout: float = 300.0
    """For starting a replica, its ``setup`` included; one that takes longer is stopped and counts as one that could not be started."""
    probe_every: float = 1.0
    probe_timeout: float = 3.0
    back_off: float = 0.25
    """Before the second start in a row that failed early; doubled with each further one, up to ``max_back_off``."""
    max_back_off: float = 1.5
    drain_timeout: float = 60.0
    """How long a replica that is to go may take to answer what was routed to it."""

    def __post_init__(self) -> None:
        least, most = self.bounds
        if not 1 <= least <= self.replicas <= most:
            raise ValueError(
                f"{self.replicas} replicas are not between the {least} and {most} allowed, or fewer than 1"
            )
        if self.router not in ROUTERS:
            raise ValueError(f"router {self.router!r} is unknown; expected one of {', '.join(ROUTERS)}")

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most replicas; both are ``replicas`` without autoscaling."""
        return (
            self.replicas if self.min_replicas is None else self.min_replicas,
            self.replicas if self.max_replicas is None else self.max_replicas,
        )

    def outlasting_a_restart(self) -> ServiceOptions:
        """The same options, except that a request waits at least as long as it may take until a failed replica's successor is up."""
        longest = self.probe_every + self.probe_timeout + self.max_back_off + self.start_timeout
        return replace(self, limits=replace(self.limits, wait_timeout=max(self.limits.wait_timeout, longest)))
