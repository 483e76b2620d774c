"""The replay buffer: whole groups of episodes, a bound on their age, and a count of everything.

Two questions are asked of it, one by each side of an asynchronous run:

    generator, at weights w:   may I start a group?       ``admit``
    trainer, at version v:     what do I train on next?   ``take``

A group that was sampled with weights w must be trained on at version w + max_lag at the latest: that is its *deadline*. The trainer takes P
groups a version, so it can meet a set of deadlines d₀ ≤ d₁ ≤ … exactly if d_k ≥ v + ⌊k / P⌋ for every k ("feasible"). Both answers
are that one test:

    admit   only if the groups on their way, with the new one, stay feasible: so nothing is born too old
    take    the P earliest deadlines, as soon as what stays behind is feasible: so nothing grows too old

It never deadlocks. If fewer than P groups are on their way, a generator at the newest weights v may start one: its deadline is v + max_lag ≥ v,
and so are those of the others. If P or more are, ``take`` waits only for groups that are being generated; each of them
arrives or is abandoned. With ``max_lag`` 0 the sides take turns, which is synchronous training.

>>> buffer = ReplayBuffer(groups_per_step=2, max_lag=0, total_groups=4)
>>> buffer.admit(version=0, count=8)        # two groups can be trained on at version 0, not more
[0, 1]
>>> buffer.add(1, version=0, group="b"), buffer.take()
(True, None)
>>> buffer.add(0, version=0, group="a"), buffer.take()
(True, [(0, 'a'), (1, 'b')])
>>> buffer.admit(version=0, count=8)        # the next step trains version 1: pull first
[]
>>> buffer.admit(version=1, count=8)
[2, 3]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

Group = TypeVar("Group")


@dataclass(slots=True)
class Counters:
    """What has happened to groups. ``started`` = ``trained`` + ``abandoned`` + ``stale`` + those now on their way or waiting."""

    started: int = 0
    added: int = 0
    trained: int = 0
    abandoned: int = 0
    """Lost with their generator, and queued to be generated again."""
    stale: int = 0
    """Too old when they were to be trained on, and queued to be generated again. 0 in normal running."""
    refused: int = 0
    """Arrived though nobody waited for them: a second copy, or one that had been abandoned."""


class ReplayBuffer(Generic[Group]):
    """Groups between generators and trainer. Pure: no clock, no threads, no waiting; an actor adds those."""

    def __init__(self, groups_per_step: int, max_lag: int, total_groups: int) -> None:
        self.groups_per_step, self.max_lag, self.total_groups = groups_per_step, max_lag, total_groups
        self.version = 0
        self.counters = Counters()
        self._next_group = 0
        self._again: deque[int] = deque()
        self._generating: dict[int, int] = {}
        self._ready: dict[int, tuple[int, Group]] = {}
        self._taken: deque[tuple[int, list[int]]] = deque()

    @property
    def ready(self) -> int:
        """Complete groups that wait to be trained on."""
        return len(self._ready)

    @property
    def finished(self) -> bool:
        """Whether all ``total_groups`` have been trained on."""
        return self.counters.trained >= self.total_groups

    @property
    def left_of_step(self) -> int:
        """How many groups come next that no other step waits for: those to be generated again, else what is left to begin of a step.

        A generator that hands in several groups together asks for no more than these: with groups of two steps in its hands, the first step
        would wait for groups of the second.
        """
        return len(self._again) or self.groups_per_step - self._next_group % self.groups_per_step

    def admit(self, version: int, count: int) -> list[int]:
        """Up to ``count`` group numbers that a generator with weights ``version`` may start now; groups to be generated again come first."""
        admitted: list[int] = []
        deadlines = self._deadlines()
        while len(admitted) < count and (self._again or self._next_group < self.total_groups):
            deadlines = sorted([*deadlines, version + self.max_lag])
            if not self._feasible(deadlines, self.version):
                break
            group = self._again.popleft() if self._again else self._new_group()
            self._generating[group] = version
            self.counters.started += 1
            admitted.append(group)
        return admitted

    def add(self, number: int, version: int, group: Group) -> bool:
        """Accept a generated group whose oldest token was sampled at ``version``; False if nobody waits for that number."""
        if self._generating.pop(number, None) is None:
            self.counters.refused += 1
            return False
        self._ready[number] = (version, group)
        self.counters.added += 1
        return True

    def abandon(self, numbers: Iterable[int]) -> None:
        """Give up groups whose generator has died; they are generated again."""
        for number in numbers:
            if self._generating.pop(number, None) is not None:
                self._again.append(number)
                self.counters.abandoned += 1

    def take(self) -> list[tuple[int, Group]] | None:
        """The groups of the next training step, ordered by number, or None while it has to wait. Moves on to the next version."""
        self._drop_stale()
        if len(self._ready) < self.groups_per_step:
            return None
        by_deadline = sorted(self._ready, key=lambda number: (self._ready[number][0], number))
        chosen = by_deadline[: self.groups_per_step]
        left = sorted([*self._generating.values(), *(self._ready[n][0] for n in by_deadline[self.groups_per_step :])])
        if self._generating and not self._feasible([v + self.max_lag for v in left], self.version + 1):
            return None
        self._taken.append((self.version, chosen))
        self.version += 1
        self.counters.trained += len(chosen)
        return [(number, self._ready.pop(number)[1]) for number in sorted(chosen)]

    def forget_taken(self, version: int) -> None:
        """Steps below ``version`` are done: what was taken for them is in the weights."""
        while self._taken and self._taken[0][0] < version:
            self._taken.popleft()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs. Groups on their way are not kept; their numbers are, and they are generated again.

        So are those that have been taken for a step which is not done yet: the state is that before this step.
        """
        taken = [number for _, numbers in self._taken for number in numbers]
        counters = asdict(self.counters)
        counters["trained"] -= len(taken)
        counters["abandoned"] += len(self._generating) + len(self._ready) + len(taken)
        return {
            "version": self._taken[0][0] if self._taken else self.version,
            "next_group": self._next_group,
            "again": sorted((*self._again, *self._generating, *self._ready, *taken)),
            "counters": counters,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; whatever was on its way then counts as abandoned."""
        self.version, self._next_group = state["version"], state["next_group"]
        self.counters = Counters(**state["counters"])
        self._again = deque(state["again"])
        self._generating.clear()
        self._ready.clear()
        self._taken.clear()

    def _new_group(self) -> int:
        self._next_group += 1
        return self._next_group - 1

    def _deadlines(self) -> list[int]:
        versions = (*self._generating.values(), *(version for version, _ in self._ready.values()))
        return sorted(version + self.max_lag for version in versions)

    def _feasible(self, deadlines: list[int], version: int) -> bool:
        """Whether steps at ``version``, ``version`` + 1, … of ``groups_per_step`` each meet the sorted ``deadlines``."""
        return all(deadline >= version + k // self.groups_per_step for k, deadline in enumerate(deadlines))

    def _drop_stale(self) -> None:
        for number, (version, _) in list(self._ready.items()):
            if self.version - version > self.max_lag:
                del self._ready[number]
                self._again.append(number)
                self.counters.stale += 1
