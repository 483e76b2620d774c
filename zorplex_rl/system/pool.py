"""A pool of replicas as its callers see it: requests find a replica, within bounds, and every one of them gets an answer or an error.

    route ──► router ──► replica 0   ≤ max_in_flight sent to it, ≤ max_queue waiting for it
      │                  replica 1   …
      │                  replica 2   ✗ failed: what was sent to it fails or is sent again, what waited for it goes elsewhere
      └── all full, or nobody there: waits outside, up to ``wait_timeout``, then Overloaded

A replica with nothing left to do, a newcomer above all, takes over from the longest queue; only the requests of a session wait for one replica.

What happens to a request when its replica fails depends on how far it had come. If it was not sent yet, it goes to another one. If it was
sent, nobody can know whether the replica acted on it before it died: an *idempotent* endpoint is called again elsewhere, for any other the
caller gets ReplicaFailed. So nothing is lost, and nothing is done twice that must not be.

The pool learns of a failure from a call (the process is gone) or from its owner (``fail``). An exception that an endpoint raises is an
answer like any other: it goes to the caller and says nothing about the replica.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from zorplex_rl.system.member import Gone, Member, Ticket, reason_of, wake
from zorplex_rl.system.requests import Failure, Limits, Metrics, Overloaded, ReplicaFailed, ServiceError
from zorplex_rl.system.routing import Router, StickyMap
from zorplex_rl.system.runtime import ActorError, ReplicaDied

if TYPE_CHECKING:
    from zorplex_rl.system.calls import Session

MAX_RETRIES = 5


class Pool:
    """Members, and the requests that are on their way to them. ``idempotent`` names the endpoints that may be called twice."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        router: Router,
        idempotent: Collection[str] = (),
        on_failure: Callable[[Member, str], None] = lambda member, reason: None,
        sticky_keys: int = 4096,
    ) -> None:
        self.name, self.limits, self.idempotent = name, limits, frozenset(idempotent)
        self.members: list[Member] = []
        self.metrics = Metrics()
        self.sticky = StickyMap(sticky_keys)
        self._router, self._on_failure = router, on_failure
        self._outside: deque[Ticket] = deque()
        self._bound: set[Ticket] = set()
        """Tickets of sessions: these wait for one member, and for no other."""
        self._room = limits.max_in_flight + limits.max_queue

    @property
    def queue_depth(self) -> int:
        """Requests that have not been sent to a replica yet."""
        return len(self._outside) + sum(len(member.waiting) + len(member.outside) for member in self.members)

    @property
    def in_flight(self) -> int:
        """Requests that have been sent and not yet answered."""
        return sum(member.sent for member in self.members)

    def join(self, member: Member) -> None:
        """Take ``member`` into rotation."""
        self.members.append(member)
        called_in = min(self._room, len(self._outside))
        for _ in range(called_in):
            self._call_in(member)
        for _ in range(self.limits.max_in_flight - called_in):
            self._relieve(member)

    def withdraw(self, member: Member) -> None:
        """Take ``member`` out of rotation; what was routed to it is still answered, as long as it lives."""
        member.ready = False
        if member in self.members:
            self.members.remove(member)
        self.sticky.forget_candidate(member)
        while wake(member.outside, False):
            pass

    async def leave(self, member: Member) -> None:
        """Take ``member`` out of rotation, and wait until all that was routed to it is answered."""
        self.withdraw(member)
        member.emptied.clear()
        if member.load:
            await member.emptied.wait()

    def fail(self, member: Member, reason: str) -> None:
        """Take ``member`` out at once: what was sent to it fails or is sent again, what waited for it goes elsewhere."""
        if member in self.members:
            self._on_failure(member, reason)
        self.withdraw(member)
        for future in list(member.in_flight):
            if not future.done():
                future.set_exception(Gone(reason))
        while wake(member.waiting, False):
            pass

    async def route(self, method: str, args: tuple, kwargs: dict[str, Any], session: Session | None = None) -> Any:
        """Have one replica answer; see ``Method.route``."""
        metrics, began = self.metrics, time.perf_counter()
        metrics.requests += 1
        retries = 0
        try:
            while True:
                member = self._choose(session)
                if member is None or not self._take_place(member):
                    member = await self._wait(member, session, began)
                try:
                    answer = await self._send(member, method, args, kwargs)
                except (ReplicaDied, Gone) as error:
                    self._after_failure(member, method, error, retries)
                    retries += 1
                else:
                    metrics.answered += 1
                    metrics.latencies.append(time.perf_counter() - began)
                    return answer
        except ActorError:
            metrics.application_errors += 1
            raise
        except ServiceError:
            metrics.errors += 1
            raise

    async def fanout(self, method: str, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Have all replicas answer; see ``Method.fanout``."""

        async def ask(member: Member) -> Any:
            try:
                return await self.call(member, method, args, kwargs)
            except (ActorError, ReplicaFailed) as error:
                return Failure(member.name, error)

        return list(await asyncio.gather(*(ask(member) for member in list(self.members))))

    async def call(self, member: Member, method: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Have ``member`` answer, and nobody else; the bounds do not hold this up. Raises ReplicaFailed, or what the endpoint raised."""
        self.metrics.requests += 1
        member.sent += 1
        try:
            answer = await self._send(member, method, args, kwargs)
        except ActorError:
            self.metrics.application_errors += 1
            raise
        except (ReplicaDied, Gone) as error:
            reason = reason_of(error)
            self.fail(member, reason)
            self.metrics.errors += 1
            message = f"{member.name} of service {self.name!r} failed while it ran {method!r} ({reason})"
            raise ReplicaFailed(member.name, message) from error
        self.metrics.answered += 1
        return answer

    async def _send(self, member: Member, method: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call ``method`` on ``member``, where a place has been taken for it; afterwards that is free again."""
        future = None
        try:
            future = member.call(method)(*args, **kwargs).as_asyncio()
            member.in_flight[future] = None
            member.requests += 1
            answer = await future
            return answer if member.procs == 1 else [value for _, value in answer]
        finally:
            member.in_flight.pop(future, None)
            self._free_place(member)

    def _after_failure(self, member: Member, method: str, error: Exception, retries: int) -> None:
        """Raise ReplicaFailed unless the request may be sent again."""
        reason = reason_of(error)
        self.fail(member, reason)
        if method not in self.idempotent:
            why = "it may or may not have finished, and is not repeated, since it is not marked idempotent"
        elif retries >= MAX_RETRIES:
            why = f"{retries} retries have failed in the same way"
        else:
            self.metrics.retries += 1
            return
        message = f"{member.name} of service {self.name!r} failed while it ran {method!r} ({reason}): {why}"
        raise ReplicaFailed(member.name, message) from error

    def _take_place(self, member: Member) -> bool:
        """Take a place in flight at ``member``, if one is free."""
        if member.sent >= self.limits.max_in_flight:
            return False
        member.sent += 1
        return True

    async def _wait(self, member: Member | None, session: Session | None, began: float) -> Member:
        """Wait in the queue of ``member``, or outside if that is None, for a place in flight. Raises Overloaded if that takes too long."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(self.limits.wait_timeout - (time.perf_counter() - began), 0)
        waited = False
        while True:
            bound = session.member if session else None
            queue = member.waiting if member else bound.outside if bound else self._outside
            ticket = loop.create_future()
            if session:
                self._bound.add(ticket)
            # Who has waited outside already keeps its place at the head.
            (queue.appendleft if waited and not member else queue.append)(ticket)
            timer = loop.call_at(give_up_at, self._expire, queue, ticket)
            try:
                if await ticket:
                    return member
            except asyncio.CancelledError:
                if ticket in queue:
                    queue.remove(ticket)
                elif not ticket.cancelled() and ticket.result():
                    self._free_place(member)
                raise
            finally:
                timer.cancel()
                self._bound.discard(ticket)
            waited = True
            member = self._choose(session)
            if member is not None and self._take_place(member):
                return member

    def _choose(self, session: Session | None) -> Member | None:
        """The member that a request should go to, if it has room in flight or in its queue."""
        if session is not None and (bound := session.member) is not None:
            return bound if bound.load < self._room else None
        limit = self.limits.max_in_flight
        candidates = [m for m in self.members if m.load < limit] or [m for m in self.members if m.load < self._room]
        if not candidates:
            return None
        chosen = self._router.pick(candidates)
        if session is not None:
            session.bind(chosen)
        return chosen

    def _free_place(self, member: Member) -> None:
        """Hand a place in flight on to the next in the queue, and the room in the queue to somebody outside."""
        if not wake(member.waiting, True):
            member.sent -= 1
        self._call_in(member)
        if not member.load:
            member.emptied.set()

    def _call_in(self, member: Member) -> None:
        """Have one of those outside look again: ``member`` has room. If nobody is, one of those who wait for a busier member."""
        if member.ready:
            wake(member.outside, False) or wake(self._outside, False) or self._relieve(member)

    def _relieve(self, member: Member) -> None:
        """Have the first in the longest queue look again, if ``member`` could serve it at once. Requests of a session stay where they are."""
        if member.sent >= self.limits.max_in_flight:
            return
        busiest = max(self.members, key=lambda other: len(other.waiting), default=member)
        for ticket in busiest.waiting:
            if ticket not in self._bound and not ticket.done():
                busiest.waiting.remove(ticket)
                ticket.set_result(False)
                return

    def _expire(self, queue: deque[Ticket], ticket: Ticket) -> None:
        if ticket.done():
            return
        queue.remove(ticket)
        if self.members:
            load = (
                f"all {len(self.members)} replicas have {self.limits.max_in_flight} requests in flight and full queues"
            )
            load = load if queue is self._outside else "its replica is still busy with earlier ones"
        else:
            load = "it has no healthy replica"
        ticket.set_exception(
            Overloaded(f"service {self.name!r} could not take the request for {self.limits.wait_timeout:g} s: {load}")
        )
