"""Decide which replica answers which request, and when: one bounded queue for each service.

    route ──► queue ──► slot ──► sent ──► answered ──► the answer, or what the endpoint raised
              ▲  └► Overloaded       ├──► refused, the replica drains ──► again ──┐
              │                      └──► died ──► idempotent? ── yes ──► again ──┤
              │                                         └─ no ──► ReplicaFailed   │
              └─────────────────── back to its old position in the queue ─────────┘

``Router.route`` is the whole fate of a request, from its arrival to its count. A request waits only
if no replica that it may use has a free slot, at most ``wait_timeout`` seconds; a queue of
``max_queue`` requests takes no more. A free slot goes to the oldest that may use it, which is sent
in the same step of the event loop: no other request can take the slot, and a caller that gives up
holds no slot. After every step, no request in the queue could be sent. So a new request that finds
a free slot overtakes only requests that may not use it.

When a replica fails, nobody can know whether it carried out the requests that it had received. A
request to an *idempotent* endpoint is sent to another replica; for other endpoints the caller gets
ReplicaFailed. So no request is lost, and none is done twice unless that is harmless. An exception
that an endpoint raises is an answer: it goes to the caller and says nothing about the replica.

The requests of a *session* go to one replica, in order, and to another one when that has left.
"""

import asyncio
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count
from typing import Any

from zorplex_rl.services.endpoint_error import EndpointError, reason_of
from zorplex_rl.services.endpoints import Refused
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.requests import Metrics, Request, Session
from zorplex_rl.services.runtime import ActorError, ReplicaDied
from zorplex_rl.services.service_errors import Overloaded, ReplicaFailed, ServiceError

MAX_RETRIES = 5
MAX_SESSION_KEYS = 4096

POLICIES: dict[str, Callable[[Replica], Any]] = {
    "round_robin": lambda replica: replica.turn,
    "least_loaded": lambda replica: (replica.load, replica.turn),
}
"""Each policy's key: the replica with the smallest gets the request. See ``options.py``."""


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
        """Called when a request "waits" in the queue, was "sent" to a replica, or has "left" it."""
        self._policy = options.router if callable(options.router) else POLICIES[options.router]
        self._numbers = count()
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()

    async def route(
        self, method: str, args: Any, kwargs: Any, session: Session | None = None, only: Replica | None = None
    ) -> Any:
        """Carry out a request, from arrival to count. Returns the answer; see ``Method.route``. A
        request for ``only`` one replica is sent to it without waiting for a slot."""
        request = Request(next(self._numbers), method, args, kwargs, session, only)
        self.metrics.requests += 1
        try:
            if only and only.state is not State.READY:
                raise self._failed(only, f"is {only.state}, and {method!r} was not sent to it")
            if replica := only or self.choose(self.replicas, session):
                self._send(request, replica)
            else:
                self._enqueue(request)
            while True:
                # In the queue, until a slot is free and it has been sent.
                if request.turn and (error := await request.turn):
                    raise error
                # At its replica, until that has answered or ended.
                await request.reply
                replica = request.replica
                try:
                    answer = self._answer_of(request, replica)
                    self.metrics.count_answer(request)
                    return answer
                except Refused:
                    if only:
                        raise self._failed(only, f"is about to stop, and did not begin with {method!r}") from None
                    self._enqueue(request)
                except ReplicaDied:
                    if why := self._why_not_again(request):
                        doing = f"failed while it ran {method!r} ({replica.reason})"
                        raise self._failed(replica, f"{doing}: {why}") from None
                    self._enqueue(request)
                finally:
                    # Last of all: while it is queued, no later one of its session takes the slot.
                    self._free_slot(request, replica)
        except asyncio.CancelledError:
            self._give_up(request)
            raise
        except Exception as error:
            self.metrics.count_error(error)
            raise

    async def call(self, replica: Replica, method: str, *args: Any, **kwargs: Any) -> Any:
        """Send a request to ``replica`` only. Raises ReplicaFailed, or what the endpoint raised."""
        return await self.route(method, args, kwargs, only=replica)

    def choose(self, replicas: Sequence[Replica], session: Session | None = None) -> Replica | None:
        """Return the policy's choice of replicas with a free slot that ``session`` may use."""
        free = [replica for replica in replicas if self._is_free(replica) and (not session or session.may_use(replica))]
        return min(free, key=self._policy) if free else None

    def _is_free(self, replica: Replica) -> bool:
        return replica.state is State.READY and len(replica.traffic.in_flight) < self.options.max_in_flight

    def _send(self, request: Request, replica: Replica) -> None:
        """Send ``request``. Raises what is wrong with it: its endpoint, arguments or pickling."""
        try:
            future = replica.method(request.method)(*request.args, **request.kwargs).as_asyncio()
        except asyncio.CancelledError as error:
            raise EndpointError.of(error, "The request cannot be pickled.") from None
        request.sent += 1
        request.replica, request.reply = replica, future.get_loop().create_future()
        replica.traffic.in_flight[request] = future
        self._tell("sent", request, replica)
        replica.traffic.sent += 1
        replica.traffic.take_turn()
        if request.session:
            request.session.use(replica)
        future.add_done_callback(partial(self._arrived, request, replica))

    def _arrived(self, request: Request, replica: Replica, future: asyncio.Future[Any]) -> None:
        """Note what an answer says about ``replica``, and wake its request."""
        error = None if future.cancelled() else future.exception()
        if request not in replica.traffic.in_flight:
            return  # This was seen to when the replica failed.
        if isinstance(error, ReplicaDied):
            replica.fail(reason_of(error))  # That wakes all its requests.
            return
        if isinstance(error, Refused):
            replica.move_to(State.DRAINING)
        else:
            replica.traffic.answered.add(request.method)
        self._wake(request, replica)

    def _changed(self, replica: Replica) -> None:
        """Wake the requests of a replica that has ended. A draining one still answers its own."""
        if replica.ended.is_set():
            for request in list(replica.traffic.in_flight):
                self._wake(request, replica)
        self._forget_if_done(replica)
        self._send_waiting()

    def _wake(self, request: Request, replica: Replica) -> None:
        if request.reply.done() and not request.reply.cancelled():
            return
        self._tell("left", request, replica)
        if request.reply.cancelled():
            self._free_slot(request, replica)  # Its caller has given up.
        else:
            request.reply.set_result(None)

    def _answer_of(self, request: Request, replica: Replica) -> Any:
        """Return the answer of ``replica``. Raises the endpoint's error, Refused or ReplicaDied."""
        future = replica.traffic.in_flight[request]
        if not future.done():
            raise ReplicaDied(replica.reason)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error and not isinstance(error, ActorError | Refused | ReplicaDied):
            # It was raised here, by what unpickles the answer.
            raise EndpointError.of(error, f"The answer of {request.method!r} of {replica.name} cannot be read.")
        if error:
            raise error
        return future.result() if replica.width == 1 else [answer for _, answer in future.result()]

    def _why_not_again(self, request: Request) -> str:
        """Return why ``request`` is not sent again after its replica has died; nothing if it is."""
        if self.options.irreplaceable:
            return ""  # Nothing takes over: it fails with the service, and learns from that why.
        if request.method not in self.options.idempotent:
            return "it may or may not have finished, and is not repeated, since it is not marked idempotent"
        if request.only:
            return "it was meant for this replica alone"
        if request.sent > MAX_RETRIES:
            return f"{MAX_RETRIES} retries have failed in the same way"
        self.metrics.retries += 1
        return ""

    def _failed(self, replica: Replica, what: str) -> ReplicaFailed:
        return ReplicaFailed(replica.name, f"{replica.name} of service {self.name!r} {what}")

    def _free_slot(self, request: Request, replica: Replica) -> None:
        """Count ``request`` as done at ``replica``; its slot goes to the oldest that may use it."""
        del replica.traffic.in_flight[request]
        if request.session:
            request.session.under_way -= 1
        self._forget_if_done(replica)
        self._send_waiting()

    def _give_up(self, request: Request) -> None:
        """See to a request whose caller has given up. If sent, it keeps its slot until answered."""
        holds_slot = request.sent and request in request.replica.traffic.in_flight
        if request.timer:
            self._leave_queue(request)
        elif holds_slot and not (request.reply.cancel() or request.reply.cancelled()):
            self._free_slot(request, request.replica)  # Its reply had come in the same moment.

    def _enqueue(self, request: Request) -> None:
        """Put ``request`` into the queue. One that was sent before gets its old position. Raises
        Overloaded if the queue is full, and why the service is closed if it is."""
        if self._error:
            raise self._error
        if not request.sent and len(self.queue) >= self.options.max_queue:
            full = f"its queue is full: {len(self.queue)} requests wait for a slot already"
            raise Overloaded(f"service {self.name!r} refused the request, since {full}")
        insort(self.queue, request, key=lambda waiting: waiting.number)
        self._tell("waits", request)
        loop, timeout = asyncio.get_running_loop(), self.options.wait_timeout
        request.turn, request.timer = loop.create_future(), loop.call_later(timeout, self._expire, request, timeout)

    def _leave_queue(self, request: Request, replica: Replica | None = None, error: Exception | None = None) -> None:
        """Take ``request`` out of the queue: send it to ``replica``, or fail it with ``error``."""
        self.queue.remove(request)
        assert request.timer and request.turn
        request.timer.cancel()
        request.timer = None
        if replica:
            try:
                self._send(request, replica)
            except Exception as wrong:
                error = wrong
        if not request.turn.done():
            request.turn.set_result(error)

    def _send_waiting(self) -> None:
        """Send what can be sent, oldest first."""
        free = [replica for replica in self.replicas if self._is_free(replica)] if self.queue else []
        for request in tuple(self.queue) if free else ():
            if request.timer and (replica := self.choose(free, request.session)):
                self._leave_queue(request, replica)
                free = [replica for replica in free if self._is_free(replica)]
                if not free:
                    return

    def _expire(self, request: Request, waited: float) -> None:
        """Fail ``request`` after ``waited`` seconds; after ``start_timeout`` if none is ready."""
        ready = len(self.ready)
        if not ready and waited < self.options.start_timeout:
            more = max(1.0, self.options.wait_timeout)
            request.timer = asyncio.get_running_loop().call_later(more, self._expire, request, waited + more)
            return
        if request.session and request.session.replica:
            why = "the replica of its session is still busy with earlier ones"
        else:
            why = f"all slots of its {ready} replicas are taken" if ready else "it has no healthy replica"
        late = Overloaded(f"service {self.name!r} could not take the request for {waited:g} s: {why}")
        self._leave_queue(request, error=late)

    @property
    def ready(self) -> list[Replica]:
        """Return the replicas in rotation."""
        return [replica for replica in self.replicas if replica.state is State.READY]

    @property
    def in_flight(self) -> int:
        """Return the number of requests that are sent and not yet answered."""
        return sum(len(replica.traffic.in_flight) for replica in self.replicas)

    def join(self, replica: Replica) -> None:
        """Take ``replica`` into rotation. It leaves when its state changes."""
        self.replicas.append(replica)
        replica.on_change.append(self._changed)
        replica.traffic.take_turn()
        self._send_waiting()

    def _forget_if_done(self, replica: Replica) -> None:
        if replica.state is not State.READY and not replica.traffic.in_flight and replica in self.replicas:
            self.replicas.remove(replica)
            replica.on_change.remove(self._changed)

    def close(self, reason: str, error: Exception | None = None) -> None:
        """Refuse new requests, with ``error`` if given. Waiting ones fail now, sent ones later."""
        closed = ServiceError(f"service {self.name!r} {reason}; the request was not carried out")
        self.closed, self._error = reason, error or closed
        for request in list(self.queue):
            self._leave_queue(request, error=self._error)

    def session(self, key: Hashable = None) -> Session:
        """Return the session of ``key`` if it is among the latest, else (or without one) a new one."""
        if key is None:
            return Session(self)
        found = self._sessions[key] = self._sessions.pop(key) if key in self._sessions else Session(self)
        if len(self._sessions) > MAX_SESSION_KEYS:
            self._sessions.popitem(last=False)
        return found

    def _tell(self, what: str, request: Request, replica: Replica | None = None) -> None:
        for watcher in self.watchers:
            watcher(what, request, replica)
