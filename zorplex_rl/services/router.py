"""Decide which replica answers which request, and when: one bounded queue for each service.

    route ──► queue ──► slot ──► sent ──► answered ──► the answer, or what the endpoint raised
              ▲  └► Overloaded       └──► died ──► idempotent? ── no ──► ReplicaFailed
              └────── again, at its old position in the queue ── yes ──────┘

A free slot goes to the oldest request that may use it, so no request overtakes another. When a
replica dies, its caller cannot know what it has carried out. So only requests to *idempotent*
endpoints are sent again: for them, a second time does no harm.
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
"""The key of each policy. The replica with the smallest key gets the request; among equals, the one that has waited
longest."""


@dataclass(frozen=True, slots=True)
class Method:
    """Call one endpoint of a service."""

    router: "Router"
    name: str
    session: "Session | None" = None

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of one ready replica. Raises what the endpoint raised, ReplicaFailed or Overloaded."""
        return await self.router.route(self.name, args, kwargs, self.session)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answer of each ready replica, or the exception that it raised."""
        calls = [replica.call(self.name, *args, **kwargs) for replica in self.router.ready]
        return await asyncio.gather(*calls, return_exceptions=True)


class Session:
    """Send requests to one replica, in order. When it leaves, another takes over, without its memory."""

    def __init__(self, router: "Router") -> None:
        self._router = router
        self.home: Replica | None = None
        """The replica that got its last request."""
        self.under_way = 0
        """Its unanswered requests."""

    def __getattr__(self, method: str) -> Method:
        return Method(self._router, method, self)

    @property
    def replica(self) -> Replica | None:
        """The replica in charge; None before the first request, and after that replica has left."""
        return self.home if self.home and self.home.state is State.READY else None

    def may_use(self, replica: Replica) -> bool:
        """Return whether its next request may go to ``replica``."""
        return replica is self.replica or (self.replica is None and self.under_way == 0)


@dataclass(eq=False, slots=True)
class Request:
    """Hold one call of an endpoint."""

    number: int
    """Its position in the queue."""
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    session: Session | None
    answer: asyncio.Future[Any]
    """Cancelled if its caller was."""
    was_sent: bool = False
    """Whether it was sent to a replica at least once."""
    timer: asyncio.TimerHandle | None = None
    """Limits its wait; set while it is in the queue."""

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Router:
    """Match requests with replicas. ``replicas`` are in the order of their turns, ``queue`` is by number."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name = name
        self.options = options
        self.counts: Counter[str] = Counter()
        """The number of requests, answered, raised (by the endpoint), failed, retries."""
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
        replica = self.choose(session)
        try:
            if replica:
                self._send(request, replica)
            else:
                self._enqueue(request)
            result = await answer
        except asyncio.CancelledError:
            # A request that was sent keeps its slot until the replica has answered.
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
        """Return the policy's choice among the replicas with a free slot that ``session`` may use."""
        free = [replica for replica in self.replicas if self._is_free(replica)]
        if session:
            free = [replica for replica in free if session.may_use(replica)]
        return min(free, key=self._policy, default=None)

    def _is_free(self, replica: Replica) -> bool:
        return replica.state is State.READY and len(replica.in_flight) < self.options.max_in_flight

    def _send(self, request: Request, replica: Replica) -> None:
        """Send ``request``. It fails if there is no such endpoint, or if its arguments are wrong."""
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
        if request.session:
            request.session.home = replica
            request.session.under_way += 1
        future.add_done_callback(partial(self._arrived, request, replica))

    def _arrived(self, request: Request, replica: Replica, future: asyncio.Future[Any]) -> None:
        """Handle the answer of ``replica`` to ``request``."""
        # Read first: asyncio complains about a future whose exception is never read.
        error = ReplicaDied("its call was cancelled") if future.cancelled() else future.exception()
        if request not in replica.in_flight:
            return  # The failure of the replica was handled before.
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
        """Requeue or fail the requests of ``replica`` if it has ended. A draining one still answers them."""
        if replica.ended.is_set():
            for request in list(replica.in_flight):
                self._free_slot(request, replica)
                self._requeue_or_fail(request, replica)
        self._go_on(replica)

    def _requeue_or_fail(self, request: Request, replica: Replica) -> None:
        # An irreplaceable service is closed next, and its requests fail with that error.
        if request.method not in self.options.idempotent and not self.options.irreplaceable:
            request.fail(
                ReplicaFailed(
                    f"{replica.name} of service {self.name!r} failed while it ran {request.method!r} "
                    f"({replica.reason}): it may or may not have finished, and is not repeated, "
                    "since it is not marked idempotent"
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
        """Remove ``replica`` if it has left and has no requests. Then send what can be sent, oldest first."""
        if replica.state is not State.READY and not replica.in_flight and replica in self.replicas:
            self.replicas.remove(replica)
            replica.on_change.remove(self._changed)
        for request in tuple(self.queue):
            if not any(map(self._is_free, self.replicas)):
                return
            chosen = self.choose(request.session)
            if chosen:
                self._leave_queue(request)
                self._send(request, chosen)

    def _enqueue(self, request: Request) -> None:
        """Put ``request`` into the queue by its number, so one that was sent before gets its old position. It
        fails if it may not wait."""
        if self.closed:
            request.fail(self.closed)
        if not request.was_sent and len(self.queue) >= self.options.max_queue:
            request.fail(
                Overloaded(
                    f"service {self.name!r} refused the request, since its queue is full: "
                    f"{len(self.queue)} requests wait for a slot"
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
        """Add ``replica`` to the rotation. It leaves when its state changes."""
        self.replicas.append(replica)
        replica.on_change.append(self._changed)
        self._go_on(replica)

    def close(self, error: Exception) -> None:
        """Refuse new requests with ``error``. Waiting ones fail now; sent ones fail with their replica."""
        self.closed = error
        for request in list(self.queue):
            self._leave_queue(request)
            request.fail(error)
