"""How a caller writes a request: ``pool.METHOD.route(…)``, and the same in a session."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from zorplex_rl.system.member import Member
from zorplex_rl.system.pool import Pool


class Session:
    """Requests that one replica answers, in their order, as long as it lives; then another one takes over, without its memory."""

    def __init__(self, pool: Pool, key: Hashable = None) -> None:
        self._pool, self._key = pool, key
        self._member: Member | None = None

    @property
    def member(self) -> Member | None:
        """The replica in charge, or None before the first request and after a failure."""
        member = self._member if self._key is None else self._pool.sticky.find(self._key)
        return member if member is not None and member.ready else None

    def bind(self, member: Member) -> None:
        self._member = member
        if self._key is not None:
            self._pool.sticky.remember(self._key, member)

    def __getattr__(self, method: str) -> Method:
        return Method(self._pool, method, self)


@dataclass(frozen=True, slots=True)
class Method:
    """One endpoint of a pool's replicas."""

    pool: Pool
    name: str
    session: Session | None = None

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """The answer of one healthy replica; of one with several processes, the list of their answers.

        Raises what the endpoint raised (ActorError), ReplicaFailed or Overloaded.
        """
        return await self.pool.route(self.name, args, kwargs, self.session)

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The answers of all healthy replicas; where one gave none, a ``Failure`` that names it."""
        return await self.pool.fanout(self.name, args, kwargs)
