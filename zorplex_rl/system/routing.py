"""Which replica answers a request. Pure: no clock, no processes.

    round robin     whoever was chosen longest ago
    least loaded    whoever has the fewest requests; among equals, whoever was chosen longest ago
    sticky          whoever answered the same key before, as long as it is there

"Longest ago" instead of an index into a list keeps the turns fair while replicas come and go: a newcomer queues behind everybody who is
there, and nobody is skipped when somebody leaves.

>>> a, b, c = Candidate("a"), Candidate("b"), Candidate("c")
>>> router = RoundRobin()
>>> [router.pick([a, b, c]).name for _ in range(4)]
['a', 'b', 'c', 'a']
>>> [router.pick([a, c]).name for _ in range(3)]        # b has left
['c', 'a', 'c']
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Protocol, TypeVar

_turns = count(1)


class Candidate:
    """Who can be chosen. ``turn`` grows with every choice; a newcomer's is that of its arrival."""

    def __init__(self, name: str) -> None:
        self.name, self.turn = name, next(_turns)

    @property
    def load(self) -> int:
        """How many requests it has."""
        return 0


C = TypeVar("C", bound=Candidate)


class Router(Protocol):
    """Picks one of some candidates, of which there is at least one."""

    def pick(self, candidates: Sequence[C]) -> C: ...


class RoundRobin:
    """Everybody in turn."""

    def pick(self, candidates: Sequence[C]) -> C:
        return _chosen(min(candidates, key=lambda candidate: candidate.turn))


class LeastLoaded:
    """The least busy one; the turn breaks ties, or an idle pool would send everything to its first replica."""

    def pick(self, candidates: Sequence[C]) -> C:
        return _chosen(min(candidates, key=lambda candidate: (candidate.load, candidate.turn)))


class StickyMap:
    """Remembers who answered a key, for the ``capacity`` keys used last; a forgotten key is routed like a new one."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sticky map for {capacity} keys remembers nothing; use 1 or more")
        self.capacity = capacity
        self._places: OrderedDict[Hashable, Candidate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, key: Hashable) -> Candidate | None:
        """Who answered ``key`` last, if that is still known."""
        if key in self._places:
            self._places.move_to_end(key)
        return self._places.get(key)

    def remember(self, key: Hashable, candidate: Candidate) -> None:
        self._places[key] = candidate
        self._places.move_to_end(key)
        if len(self._places) > self.capacity:
            self._places.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        self._places.pop(key, None)

    def forget_candidate(self, candidate: Candidate) -> None:
        """Forget every key that ``candidate`` answered: it has left."""
        for key in [key for key, place in self._places.items() if place is candidate]:
            del self._places[key]


def _chosen(candidate: C) -> C:
    candidate.turn = next(_turns)
    return candidate


ROUTERS: dict[str, type[Router]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}
