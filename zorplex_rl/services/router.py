"""Decide which replica answers which request, and when: one bounded queue for each service, oldest request first.

    route ──► is there a replica with a free slot that it may use? ── yes ──► sent
                 │ no                                                          ├──► answered: the oldest that may use the slot takes it
                 └──► queue (at most max_queue, then Overloaded)               ├──► refused, the replica drains: back to its old position
                        └── wait_timeout ──► Overloaded                        └──► the replica failed: see below

A request is sent in the same step of the event loop in which it gets its slot, so no other request can take the slot, and a caller that gives up
holds no slot. After every step, no request in the queue could be sent. So a new request that finds a free slot overtakes only requests that may
not use it.

When a replica fails, nobody can know whether it carried out the requests that it had received. A request to an *idempotent* endpoint is sent to
another replica; for other endpoints the caller gets ReplicaFailed. So no request is lost, and none is done twice unless that is harmless. An
exception that an endpoint raises is an answer: it goes to the caller and says nothing about the replica.

The requests of a *session* go to one replica, in order. If the replica leaves, the session moves to another one after its last open request ends.
"""

import asyncio
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from zorplex_rl.services.endpoint_error import EndpointError
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, State, reason_of
from zorplex_rl.services.requests import Failure, Metrics, Overloaded, ReplicaFailed, Request, ServiceError
from zorplex_rl.services.runtime import ActorError, Refused, ReplicaDied

MAX_RETRIES = 5
MAX_SESSION_KEYS = 4096

POLICIES: dict[str, Callable[[Replica], Any]] = {
    "round_robin": lambda replica: replica.turn,
    "least_loaded": lambda replica: (replica.load, replica.turn),
}
"""Each policy's key: the usable replica with the smallest key gets the request. The turn keeps this fair while replicas come and go.

A new name also goes into the check in ``options.py``.
"""


class Session:
    """Send requests to one replica, in order, as long as it lives. Then another replica takes over, without the first one's memory."""

    def __init__(self, router: "Router") -> None:
        self._router = router
        self._replica: Replica | None = None
        self.under_way = 0

    def __getattr__(self, method: str) -> "Method":
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


@dataclass(frozen=True, slots=True)
class Method:
    """Call one endpoint of a service."""

    router: "Router"
    name: str
    session: Session | None = None

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of one ready replica; of one with several processes, the list of their answers.

        Raises what the endpoint raised (ActorError), ReplicaFailed or Overloaded.
        """
        request = self.router.request(self.name, args, kwargs, self.session)
        return await self.router.route(request)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answers of all ready replicas; a ``Failure`` with its name for each that gave none."""

        async def ask(replica: Replica) -> Any:
            try:
                return await self.router.call(replica, self.name, *args, **kwargs)
            except (ActorError, ReplicaFailed) as error:
                return Failure(replica.name, error)

        return list(await asyncio.gather(*map(ask, self.router.ready)))


class Router:
    """Hold the replicas in rotation and the queue of waiting requests, and match them."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name, self.options = name, options
        self.replicas: list[Replica] = []
        self.queue: list[Request] = []
        """Waiting requests, sorted by number."""
        self.metrics = Metrics()
        self.closed = ""
        """The reason why it takes no more requests; empty while it does."""
        self._error: Exception | None = None
        self.watchers: list[Callable[[str, Request, Replica | None], None]] = []
        """Functions to call when a request "waits" in the queue, was "sent" to a replica, or has "left" it: answered, refused, or lost with it."""
        self._policy = options.router if callable(options.router) else POLICIES[options.router]
        self._numbers = count()
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()

    @property
    def ready(self) -> list[Replica]:
        """Return the replicas in rotation."""
        return [replica for replica in self.replicas if replica.state is State.READY]

    @property
    def in_flight(self) -> int:
        """Return the number of requests that are sent and not yet answered."""
        return sum(len(replica.in_flight) for replica in self.replicas)

    def join(self, replica: Replica) -> None:
        """Take ``replica`` into rotation. It leaves when its state changes."""
        self.replicas.append(replica)
        replica.on_change.append(self._changed)
        replica.take_turn()
        self._send_waiting()

    def close(self, reason: str, error: Exception | None = None) -> None:
        """Refuse new requests, with ``error`` if given. Waiting requests fail now; sent requests fail when their replica stops."""
        self.closed, self._error = reason, error
        for request in list(self.queue):
            self._leave_queue(request)
            self._wait(request)

    def session(self, key: Hashable = None) -> Session:
        """Return the session of ``key`` if it is among the latest ``MAX_SESSION_KEYS``, else a new one. Without a key it is always new."""
        if key is None:
            return Session(self)
        found = self._sessions[key] = self._sessions.pop(key) if key in self._sessions else Session(self)
        if len(self._sessions) > MAX_SESSION_KEYS:
            self._sessions.popitem(last=False)
        return found

    def request(
        self, method: str, args: Any, kwargs: Any, session: Session | None = None, only: bool = False
    ) -> Request:
        """Return a new request, the latest of all."""
        self.metrics.requests += 1
        answer = asyncio.get_running_loop().create_future()
        return Request(next(self._numbers), method, args, kwargs, answer, session, only)

    async def route(self, request: Request) -> Any:
        """Send ``request`` to one replica and return its answer; see ``Method.route``."""
        if replica := self.choose(self.replicas, request.session):
            self._send(request, replica)
        else:
            self._wait(request)
        try:
            return await request.answer
        finally:
            # If its caller gave up: a sent request keeps its slot until the replica is done with it.
            if request.timer:
                self._leave_queue(request)

    async def call(self, replica: Replica, method: str, *args: Any, **kwargs: Any) -> Any:
        """Send a request to this ``replica`` only, without waiting for a slot. Raises ReplicaFailed, or what the endpoint raised."""
        request = self.request(method, args, kwargs, only=True)
        if replica.state is State.READY:
            self._send(request, replica)
        else:
            self._fail(request, replica, f"is {replica.state}, and {method!r} was not sent to it")
        return await request.answer

    def choose(self, replicas: Sequence[Replica], session: Session | None = None) -> Replica | None:
        """Return the replica that the policy picks among those with a free slot that a request (of ``session``, if given) may use."""
        free = [
            replica
            for replica in replicas
            if replica.state is State.READY
            and len(replica.in_flight) < self.options.max_in_flight
            and (session is None or session.may_use(replica))
        ]
        return min(free, key=self._policy) if free else None

    def _send(self, request: Request, replica: Replica) -> None:
        try:
            future = replica.method(request.method)(*request.args, **request.kwargs).as_asyncio()
        except (Exception, asyncio.CancelledError) as error:
            # There is no such endpoint, it does not take these arguments, or they cannot be pickled.
            cause = error if isinstance(error, Exception) else EndpointError.of(error, "The request cannot be pickled.")
            self._finish(request, cause)
            return
        request.sent += 1
        replica.in_flight[request] = future
        self._tell("sent", request, replica)
        replica.requests += 1
        replica.take_turn()
        if request.session:
            request.session.use(replica)
        future.add_done_callback(partial(self._received, request, replica))

    def _received(self, request: Request, replica: Replica, future: asyncio.Future[Any]) -> None:
        """Pass on the answer of ``replica``, and give its free slot to the next request."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if request not in replica.in_flight:
            return  # This was seen to when the replica failed.
        if isinstance(error, ReplicaDied):
            replica.move_to(State.FAILED, reason_of(error))
            return
        if error and not isinstance(error, ActorError | Refused):
            # It was raised here, by what unpickles the answer.
            error = EndpointError.of(error, f"The answer of {request.method!r} of {replica.name} cannot be read.")
        refused = isinstance(error, Refused)
        if not refused:
            replica.answered.add(request.method)
        if refused and not request.only:
            # Put it back into the queue before its slot becomes free; otherwise a later request of its session would take the slot.
            self._wait(request)
        elif refused:
            self._fail(request, replica, f"is about to stop, and did not begin with {request.method!r}")
        elif error:
            self._finish(request, error)
        else:
            self._finish(request, None, future.result() if replica.width == 1 else [v for _, v in future.result()])
        self._free_slot(request, replica)
        if refused:
            replica.move_to(State.DRAINING)
        self._forget_if_done(replica)
        self._send_waiting()

    def _changed(self, replica: Replica) -> None:
        """Handle the requests of a replica that leaves. A draining replica still answers what was sent to it."""
        if replica.ended.is_set():
            lost = list(replica.in_flight)
            for request in lost:
                self._free_slot(request, replica)
            for request in lost:
                self._after_failure(request, replica)
        self._forget_if_done(replica)
        self._send_waiting()

    def _after_failure(self, request: Request, replica: Replica) -> None:
        """Send ``request`` to another replica, or fail it with the reason."""
        if self.options.irreplaceable:
            # Nothing takes over: it fails with the service, and learns from that why.
            self._wait(request)
            return
        if request.method not in self.options.idempotent:
            why = "it may or may not have finished, and is not repeated, since it is not marked idempotent"
        elif request.only:
            why = "it was meant for this replica alone"
        elif request.sent > MAX_RETRIES:
            why = f"{MAX_RETRIES} retries have failed in the same way"
        else:
            self.metrics.retries += not request.answer.done()
            self._wait(request)
            return
        self._fail(request, replica, f"failed while it ran {request.method!r} ({replica.reason}): {why}")

    def _send_waiting(self) -> None:
        """Send what can be sent, oldest first."""
        if not self.queue:
            return
        free = [replica for replica in self.ready if len(replica.in_flight) < self.options.max_in_flight]
        for request in tuple(self.queue) if free else ():
            if replica := self.choose(free, request.session):
                self._leave_queue(request)
                self._send(request, replica)
                if len(replica.in_flight) >= self.options.max_in_flight:
                    free.remove(replica)
                    if not free:
                        return

    def _wait(self, request: Request) -> None:
        """Put ``request`` into the queue. A request that was sent before gets its old position."""
        if request.answer.done():
            return
        if self.closed:
            closed = ServiceError(f"service {self.name!r} {self.closed}; the request was not carried out")
            self._finish(request, self._error or closed)
        elif not request.sent and len(self.queue) >= self.options.max_queue:
            full = f"its queue is full: {len(self.queue)} requests wait for a slot already"
            self._finish(request, Overloaded(f"service {self.name!r} refused the request, since {full}"))
        else:
            insort(self.queue, request, key=lambda waiting: waiting.number)
            self._tell("waits", request)
            loop, timeout = asyncio.get_running_loop(), self.options.wait_timeout
            request.timer = loop.call_later(timeout, self._expire, request, timeout)

    def _leave_queue(self, request: Request) -> None:
        self.queue.remove(request)
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _expire(self, request: Request, waited: float) -> None:
        """Fail ``request`` after ``waited`` seconds; while all replicas are starting, only after ``start_timeout``."""
        ready = len(self.ready)
        if not ready and waited < self.options.start_timeout:
            more = max(1.0, self.options.wait_timeout)
            request.timer = asyncio.get_running_loop().call_later(more, self._expire, request, waited + more)
            return
        if request.session and request.session.replica:
            why = "the replica of its session is still busy with earlier ones"
        else:
            why = f"all slots of its {ready} replicas are taken" if ready else "it has no healthy replica"
        self._leave_queue(request)
        self._finish(request, Overloaded(f"service {self.name!r} could not take the request for {waited:g} s: {why}"))

    def _free_slot(self, request: Request, replica: Replica) -> None:
        del replica.in_flight[request]
        self._tell("left", request, replica)
        if request.session:
            request.session.under_way -= 1

    def _tell(self, what: str, request: Request, replica: Replica | None = None) -> None:
        for watcher in self.watchers:
            watcher(what, request, replica)

    def _forget_if_done(self, replica: Replica) -> None:
        if replica.state is not State.READY and not replica.in_flight and replica in self.replicas:
            self.replicas.remove(replica)
            replica.on_change.remove(self._changed)

    def _fail(self, request: Request, replica: Replica, what: str) -> None:
        self._finish(request, ReplicaFailed(replica.name, f"{replica.name} of service {self.name!r} {what}"))

    def _finish(self, request: Request, error: BaseException | None, answer: Any = None) -> None:
        """Answer the caller of ``request``, unless it has given up."""
        if request.answer.done():
            return
        if error:
            self.metrics.errors += isinstance(error, ServiceError)
            self.metrics.application_errors += isinstance(error, ActorError)
            request.answer.set_exception(error)
        else:
            self.metrics.answered += 1
            self.metrics.latencies.append(time.perf_counter() - request.began)
            request.answer.set_result(answer)
