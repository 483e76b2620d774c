"""Define a caller's methods and sessions, and the router's requests and counts."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from zorplex_rl.services.monarch_settings import ActorError
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.service_errors import (  # noqa: F401, others import them from here
    Failure,
    GivenUp,
    Overloaded,
    ReplicaFailed,
    ServiceError,
)


@dataclass(frozen=True, slots=True)
class Method:
    """Call one endpoint of a service."""

    router: Any
    """That of the service (``router.py``)."""
    name: str
    session: "Session | None" = None

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of one ready replica; of several processes, the list of answers. Raises
        what the endpoint raised (ActorError), ReplicaFailed or Overloaded."""
        return await self.router.route(self.name, args, kwargs, self.session)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answers of all ready replicas; a ``Failure`` for each that gave none."""

        async def ask(replica: Replica) -> Any:
            try:
                return await self.router.call(replica, self.name, *args, **kwargs)
            except (ActorError, ReplicaFailed) as error:
                return Failure(replica.name, error)

        return list(await asyncio.gather(*map(ask, self.router.ready)))


class Session:
    """Send requests to one replica, in order; if it dies, to another, without its memory."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._replica: Replica | None = None
        self.under_way = 0

    def __getattr__(self, method: str) -> Method:
        return Method(self._router, method, self)

    @property
    def replica(self) -> Replica | None:
        """The replica in charge, or None before the first request and after it has left."""
        return self._replica if self._replica and self._replica.state is State.READY else None

    def may_use(self, replica: Replica) -> bool:
        """Return whether its next request may go to ``replica``."""
        return replica is self.replica or (self.replica is None and self.under_way == 0)

    def use(self, replica: Replica) -> None:
        """Count a request that goes to ``replica``."""
        self._replica = replica
        self.under_way += 1


@dataclass(eq=False, slots=True)
class Request:
    """Hold one call of an endpoint. ``number`` is its position in the queue."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    session: Session | None = None
    only: Replica | None = None
    """The replica that it is for, if it is for no other: it is never sent to a second one."""
    sent: int = 0
    """How often it was sent."""
    replica: Replica = field(init=False)
    """The replica that it was sent to last."""
    reply: asyncio.Future[None] = field(init=False)
    """Done when that has answered, or has ended; cancelled when the caller has given up."""
    began: float = field(default_factory=time.perf_counter)
    timer: asyncio.TimerHandle | None = None
    """Ends its wait; set while it is in the queue."""
    turn: asyncio.Future[Exception | None] | None = None
    """Done when it has left the queue: it was sent, or there is an error."""


@dataclass(slots=True)
class Metrics:
    """Count the requests. ``errors`` got no answer; ``application_errors`` got an exception."""

    requests: int = 0
    answered: int = 0
    application_errors: int = 0
    errors: int = 0
    retries: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    """Seconds from request to answer, of the latest requests."""

    def count_answer(self, request: Request) -> None:
        """Count ``request`` as answered at this moment."""
        self.answered += 1
        self.latencies.append(time.perf_counter() - request.began)

    def count_error(self, error: Exception) -> None:
        """Count a request that ended with ``error``."""
        self.errors += isinstance(error, ServiceError)
        self.application_errors += isinstance(error, ActorError)
