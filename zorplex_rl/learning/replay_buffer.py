"""The replay buffer bounds the age of what is trained on: it says which groups may start and which come next.

It holds the *numbers* of groups, and the versions of the weights that sampled them. The episodes
themselves are in ``training/groups.py``.

Each side of an asynchronous run asks it one question:

    generator, at weights w:   may I start a group?       ``admit``
    trainer, at version v:     what do I train on next?   ``take``

A group that was sampled with weights w must be trained on at version w + max_lag at the latest:
that is its *deadline*. The trainer takes P groups per version, the earliest deadlines first, so it
can meet deadlines d₀ ≤ d₁ ≤ … exactly if d_k ≥ v + ⌊k / P⌋ for every k ("feasible"). A group is *in
flight* while it is being generated or waits to be trained on.

    admit   a new group only if all groups in flight, with the new one, stay feasible: none is too old from the start
    take    P groups, as soon as the others in flight stay feasible without them: none becomes too old

There is no deadlock. If fewer than P groups are in flight, a generator with the newest weights may
start one: its deadline is v + max_lag. If P or more are in flight, ``take`` waits only for groups that
are being generated, and each of these arrives or is abandoned. With ``max_lag`` 0 generation and
training alternate: that is synchronous training.

>>> buffer = ReplayBuffer(groups_per_step=2, max_lag=0, total_groups=4)
>>> buffer.admit(version=0, count=8)        # two groups can be trained on at version 0, not more
[0, 1]
>>> buffer.add(1, version=0), buffer.take()
(True, None)
>>> buffer.add(0, version=0), buffer.take()
(True, [0, 1])
>>> buffer.admit(version=0, count=8)        # the next step trains version 1: pull first
[]
>>> buffer.admit(version=1, count=8)
[2, 3]
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """Counts of groups: ``started`` = ``trained`` + ``abandoned`` + ``stale`` + those in flight."""

    started: int = 0
    """Admitted to a generator, for the first time or again."""
    trained: int = 0
    """Taken for a training step."""
    abandoned: int = 0
    """Lost with their generator, and queued to be generated again."""
    stale: int = 0
    """Too old to be trained on, and queued to be generated again. 0 in a normal run."""
    refused: int = 0
    """Not expected on arrival: a second copy, or a group that had been abandoned."""


class ReplayBuffer:
    """The groups between generators and trainer. It has no clock and no threads, and never waits: an
    actor does that."""

    def __init__(
        self,
        groups_per_step: int,
        max_lag: int,
        total_groups: int,
    ) -> None:
        self.groups_per_step = groups_per_step
        self.max_lag = max_lag
        self.total_groups = total_groups
        self.version = 0
        """The version that the next step trains."""
        self.counters = Counters()
        self._next_group = 0
        self._again: deque[int] = deque()
        """Groups to be generated again."""
        self._generating: dict[int, int] = {}
        """The version of the weights with which each group was started."""
        self._ready: dict[int, int] = {}
        """The version of each group's oldest token."""
        self._taken: deque[tuple[int, list[int]]] = deque()
        """Version and groups of each step that may not be done yet."""

    @property
    def finished(self) -> bool:
        """Whether all ``total_groups`` have been trained on."""
        return self.counters.trained >= self.total_groups

    @property
    def left_of_step(self) -> int:
        """How many of the next groups belong to one training step: those to be generated again, or
        else the rest of the step. A generator that asks for more delays this step."""
        return len(self._again) or self.groups_per_step - self._next_group % self.groups_per_step

    def admit(self, version: int, count: int) -> list[int]:
        """Return up to ``count`` numbers of groups that a generator with weights ``version`` may start
        now. Groups to be generated again come first."""
        admitted: list[int] = []
        in_flight = [*self._generating.values(), *self._ready.values()]
        while len(admitted) < count and (self._again or self._next_group < self.total_groups):
            in_flight.append(version)
            if not self._feasible(in_flight, self.version):
                break
            group = self._next_to_start()
            self._generating[group] = version
            self.counters.started += 1
            admitted.append(group)
        return admitted

    def _next_to_start(self) -> int:
        if self._again:
            return self._again.popleft()
        self._next_group += 1
        return self._next_group - 1

    def add(self, number: int, version: int) -> bool:
        """Accept group ``number``, whose oldest token was sampled at ``version``. Returns False if it
        is not expected."""
        if self._generating.pop(number, None) is None:
            self.counters.refused += 1
            return False
        self._ready[number] = version
        return True

    def abandon(self, numbers: Iterable[int]) -> None:
        """Give up groups whose generator has died. They will be generated again."""
        for number in numbers:
            if self._generating.pop(number, None) is not None:
                self._again.append(number)
                self.counters.abandoned += 1

    def take(self) -> list[int] | None:
        """Return the sorted groups of the next training step, and advance ``version``. Returns None if
        the step must wait."""
        self._drop_stale()
        by_age = sorted(self._ready, key=lambda number: (self._ready[number], number))
        chosen = by_age[: self.groups_per_step]
        if len(chosen) < self.groups_per_step:
            return None
        waiting = [self._ready[number] for number in by_age[self.groups_per_step :]]
        left = [*self._generating.values(), *waiting]
        if self._generating and not self._feasible(left, self.version + 1):
            return None
        for number in chosen:
            del self._ready[number]
        self._taken.append((self.version, chosen))
        self.version += 1
        self.counters.trained += len(chosen)
        return sorted(chosen)

    def forget_taken(self, version: int) -> None:
        """Forget the groups taken for steps below ``version``: these steps are done."""
        while self._taken and self._taken[0][0] < version:
            self._taken.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Groups in flight, and those of steps that are not done
        yet, will be generated again."""
        version = self.version
        lost = [*self._generating, *self._ready]
        counters = asdict(self.counters)
        if self._taken:
            version, _ = self._taken[0]
        for _, groups in self._taken:
            lost += groups
            counters["trained"] -= len(groups)
        counters["abandoned"] += len(lost)
        return {
            "version": version,
            "next_group": self._next_group,
            "again": sorted([*self._again, *lost]),
            "counters": counters,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a new buffer from ``state``. Groups in flight then count as abandoned."""
        self.version = state["version"]
        self._next_group = state["next_group"]
        self.counters = Counters(**state["counters"])
        self._again = deque(state["again"])

    def _feasible(self, started: list[int], version: int) -> bool:
        """Return whether steps of ``groups_per_step`` groups at ``version``, ``version`` + 1, … can
        train on groups of the versions ``started``, the oldest first, within ``max_lag``."""
        for oldest in sorted(started)[:: self.groups_per_step]:
            if oldest + self.max_lag < version:
                return False
            version += 1
        return True

    def _drop_stale(self) -> None:
        for number, version in list(self._ready.items()):
            if self.version - version > self.max_lag:
                del self._ready[number]
                self._again.append(number)
                self.counters.stale += 1
