"""Decide which replica answers which request, and when: one bounded queue for each service.

    route ──► queue ──► slot ──► sent ──► answered ──► the answer, or what the endpoint raised
              ▲  └► Overloaded       └──► died ──► idempotent? ── no ──► ReplicaFailed
              └────── again, at its old position in the queue ── yes ──────┘

A free slot goes to the oldest request that may use it, so no request is overtaken. When a replica
dies, its caller cannot know what it has carried out. Only requests to *idempotent* endpoints are
sent again: so none is lost, and none is done twice unless that is harmless.
"""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from zorplex_rl.services.options import Overloaded, ReplicaFailed, ServiceError, ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.runtime import EndpointError, ReplicaDied, reason_of

POLICIES: dict[str, Callable[[Replica], Any]] = {
    "round_robin": lambda _: 0,
    "least_loaded": lambda r: r.load,
}
"""Each policy's key: the replica with the smallest gets the request; of equals, who waited longest."""


@dataclass(frozen=True, slots=True)
class Method:
    """Call one endpoint of a service."""

    router: "Router"
    name: str
    session: "Session | None" = None

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Return what one ready replica answers. Raises what it raised, ReplicaFailed or Overloaded."""
        return await self.router.route(self.name, args, kwargs, self.session)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answers of all ready replicas; the exception of each that gave none."""
        calls = [replica.call(self.name, *args, **kwargs) for replica in self.router.ready]
        return await asyncio.gather(*calls, return_exceptions=True)


class Session:
    """Send requests to one replica, in order; when that leaves, to another, without its memory."""

    def __init__(self, router: "Router") -> None:
        self._router = router
        self.home: Replica | None = None
        self.under_way = 0

    def __getattr__(self, method: str) -> Method:
        return Method(self._router, method, self)

    @property
    def replica(self) -> Replica | None:
        """The replica in charge, or None before the first request and after it has left."""
        return self.home if self.home and self.home.state is State.READY else None

    def may_use(self, replica: Replica) -> bool:
        """Return whether its next request may go to ``replica``."""
        return replica is self.replica or (self.replica is None and self.under_way == 0)


@dataclass(eq=False, slots=True)
class Request:
    """Hold one call."""

    number: int
    """Its position in the queue."""
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    session: Session | None
    answer: asyncio.Future[Any]
    """Cancelled when its caller has given up."""
    was_sent: bool = False
    """Whether a replica has got it at least once."""
    timer: asyncio.TimerHandle | None = None
    """Ends its wait; set while it is in the queue."""

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Router:
    """Hold the replicas, in the order of their turns, and the queue, by number; match them."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name = name
        self.options = options
        self.counts: Counter[str] = Counter()
        """Of requests, answered, raised (an exception), failed, retries."""
        self.replicas: list[Replica] = []
        self.queue: list[Request] = []
        self.closed: Exception | None = None
        """Why it takes no more requests."""
        self._policy = options.router if callable(options.router) else POLICIES[options.router]
        self._numbers = count()

    @property
    def ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state is State.READY]

    async def route(
        self, method: str, args: Any, kwargs: Any, session: Session | None = None
    ) -> Any:
        """Return the answer to a request; see ``Method.route``."""
        answer = asyncio.get_running_loop().create_future()
        request = Request(next(self._numbers), method, args, kwargs, session, answer)
        self.counts["requests"] += 1
        try:
            if replica := self.choose(session):
                self._send(request, replica)
            else:
                self._enqueue(request)
            result = await answer
        except asyncio.CancelledError:
            # If it was sent, it keeps its slot until the replica has answered.
            if request.timer:
                self._leave_queue(request)
            raise
        except EndpointError as error:
            self.counts["raised"] += 1
            raise error.original from None
        except ServiceError:
            self.counts["failed"] += 1
            raise
        self.counts["answered"] += 1
        return result

    def choose(self, session: Session | None = None) -> Replica | None:
        """Return the policy's choice of replicas with a free slot that ``session`` may use."""
        free = [replica for replica in self.replicas if self._is_free(replica)]
        if session:
            free = [replica for replica in free if session.may_use(replica)]
        return min(free, key=self._policy, default=None)

    def _is_free(self, replica: Replica) -> bool:
        return replica.state is State.READY and len(replica.in_flight) < self.options.max_in_flight

    def _send(self, request: Request, replica: Replica) -> None:
        """Send ``request``; it fails if its endpoint or its arguments are wrong."""
        try:
            future = replica.method(request.method)(*request.args, **request.kwargs).as_asyncio()
        except Exception as error:
            request.fail(error)
            return
        request.was_sent = True
        replica.doing.append(request.method)
        replica.in_flight[request] = future
        self.replicas.remove(replica)
        self.replicas.append(replica)
        if session := request.session:
            session.home = replica
            session.under_way += 1
        future.add_done_callback(partial(self._arrived, request, replica))

    def _arrived(self, request: Request, replica: Replica, future: asyncio.Future[Any]) -> None:
        """Handle the answer of ``replica`` to ``request``."""
        # Asked first: asyncio complains of a future whose exception is never looked at.
        error = ReplicaDied("its call was cancelled") if future.cancelled() else future.exception()
        if request not in replica.in_flight:
            return  # It was handled when the replica failed.
        if isinstance(error, ReplicaDied):
            # This also requeues or fails all its requests.
            replica.move_to(State.FAILED, reason_of(error))
            return
        self._free_slot(request, replica)
        replica.answered.add(request.method)
        if error:
            request.fail(error)
        elif not request.answer.done():
            request.answer.set_result(replica.unwrap(future.result()))
        self._go_on(replica)

    def _changed(self, replica: Replica) -> None:
        """Requeue or fail the requests of a replica that has ended. A draining one still answers its own."""
        if replica.ended.is_set():
            for request in list(replica.in_flight):
                self._free_slot(request, replica)
                self._requeue_or_fail(request, replica)
        self._go_on(replica)

    def _requeue_or_fail(self, request: Request, replica: Replica) -> None:
        # An irreplaceable service is closed next, which gives its requests the error.
        if request.method not in self.options.idempotent and not self.options.irreplaceable:
            request.fail(
                ReplicaFailed(
                    f"{replica.name} of service {self.name!r} failed while it ran {request.method!r} ({replica.reason}): "
                    "it may or may not have finished, and is not repeated, since it is not marked idempotent"
                )
            )
        if not request.answer.done():
            self.counts["retries"] += 1
        self._enqueue(request)

    def _free_slot(self, request: Request, replica: Replica) -> None:
        del replica.in_flight[request]
        replica.doing.remove(request.method)
        if request.session:
            request.session.under_way -= 1

    def _go_on(self, replica: Replica) -> None:
        """Forget ``replica`` if it has left and is done, and send what can be sent, oldest first."""
        if replica.state is not State.READY and not replica.in_flight and replica in self.replicas:
            self.replicas.remove(replica)
            replica.on_change.remove(self._changed)
        for request in tuple(self.queue):
            if not any(map(self._is_free, self.replicas)):
                return
            if chosen := self.choose(request.session):
                self._leave_queue(request)
                self._send(request, chosen)

    def _enqueue(self, request: Request) -> None:
        """Put ``request`` into the queue, unless it is done; one that was sent before gets its old
        position. It fails if it may not wait."""
        if self.closed:
            request.fail(self.closed)
        if not request.was_sent and len(self.queue) >= self.options.max_queue:
            request.fail(
                Overloaded(
                    f"service {self.name!r} refused the request, since its queue is full: "
                    f"{len(self.queue)} requests wait for a slot already"
                )
            )
        if not request.answer.done():
            insort(self.queue, request, key=lambda waiting: waiting.number)
            seconds = self.options.wait_timeout if self.ready else self.options.start_timeout
            request.timer = asyncio.get_running_loop().call_later(
                seconds, self._expire, request, seconds
            )

    def _leave_queue(self, request: Request) -> None:
        self.queue.remove(request)
        assert request.timer
        request.timer.cancel()
        request.timer = None

    def _expire(self, request: Request, waited: float) -> None:
        why = "it has no healthy replica"
        if self.ready:
            why = f"all slots of its {len(self.ready)} replicas are taken"
        self._leave_queue(request)
        request.fail(
            Overloaded(f"service {self.name!r} could not take the request for {waited:g} s: {why}")
        )

    def join(self, replica: Replica) -> None:
        """Take ``replica`` into rotation. It leaves when its state changes."""
        self.replicas.append(replica)
        replica.on_change.append(self._changed)
        self._go_on(replica)

    def close(self, error: Exception) -> None:
        """Refuse new requests with ``error``. Waiting ones fail now, sent ones with their replica."""
        self.closed = error
        for request in list(self.queue):
            self._leave_queue(request)
            request.fail(error)
