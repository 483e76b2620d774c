"""The replay buffer: whole groups of episodes, with a bound on their age.

The two sides of an asynchronous run ask it one question each:

    generator, at weights w:   may I start a group?       ``admit``
    trainer, at version v:     what do I train on next?   ``take``

A group that was sampled with weights w must be trained on at version w + max_lag at the latest:
that is its *deadline*. The trainer takes P groups per version, so it can meet a set of deadlines d₀
≤ d₁ ≤ … exactly if d_k ≥ v + ⌊k / P⌋ for every k ("feasible"). Both answers use this test:

    admit   a new group only if all groups in flight, with the new one, stay feasible: so no group is too old from the start
    take    P groups, as soon as the remaining ones are feasible: so no group becomes too old

A group is *in flight* while it is being generated or waits to be trained on. The buffer never
deadlocks. If fewer than P groups are in flight, a generator at the newest weights v may start one:
its deadline is v + max_lag ≥ v, and so are those of the others. If P or more are in flight,
``take`` waits only for groups that are being generated; each of them arrives or is abandoned. With
``max_lag`` 0 generation and training alternate, which is synchronous training.

Which P groups those are is the ``order``. Every order trains on every group once; they differ in
when, and so in the lag of a group that took long to sample:

    oldest     the earliest deadlines. A slow group is waited for when its deadline comes: it is staler than a quick one
    freshest   the newest weights first, older ones when their deadline demands it: a slow group is staler still
    windowed   by number, at most ``WINDOW`` steps' groups beyond the first that is missing: slow groups are hardly staler, the trainer waits more

In the simulator (4 generators, 8 groups a step, lag 6, log-normal times with variation 1, a training
step of 0.9 of the sampling time) the quickest and the slowest tenth of the groups have lag 1.7 and
2.5 with oldest, 1.4 and 2.9 with freshest, 3.5 and 3.7 with windowed, which takes 6 % more seconds.

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

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

Group = TypeVar("Group")
WINDOW = 2
"""Steps in the window of ``windowed``."""


def oldest(versions: Mapping[int, int], first: int, per_step: int) -> list[int]:
    """Return the groups by age. ``versions`` has the version of each group that waits to be trained
    on, by number; ``first`` is the smallest number in flight."""
    return sorted(versions, key=lambda number: (versions[number], number))


def freshest(versions: Mapping[int, int], first: int, per_step: int) -> list[int]:
    """Return the groups, the youngest first."""
    return sorted(versions, key=lambda number: (-versions[number], number))


def windowed(versions: Mapping[int, int], first: int, per_step: int) -> list[int]:
    """Return the groups by number that are within the window, which begins at ``first``."""
    return sorted(number for number in versions if number < first + WINDOW * per_step)


ORDERS: dict[str, Callable[[Mapping[int, int], int, int], list[int]]] = {
    order.__name__: order for order in (oldest, freshest, windowed)
}
"""What ``--order`` can be."""


@dataclass(slots=True)
class Counters:
    """Counts of groups. ``started`` = ``trained`` + ``abandoned`` + ``stale`` + those in flight."""

    started: int = 0
    added: int = 0
    trained: int = 0
    abandoned: int = 0
    """Lost with their generator, and queued to be generated again."""
    stale: int = 0
    """Too old to be trained on, and queued to be generated again. 0 in a normal run."""
    refused: int = 0
    """Not expected when they arrived: a second copy, or a group that had been abandoned."""


class ReplayBuffer(Generic[Group]):
    """The groups between generators and trainer. It has no clock, no threads and never waits; an
    actor adds those."""

    def __init__(self, groups_per_step: int, max_lag: int, total_groups: int, order: str = "oldest") -> None:
        self.groups_per_step, self.max_lag, self.total_groups = groups_per_step, max_lag, total_groups
        self._preferred = ORDERS[order]
        self.version = 0
        self.counters = Counters()
        self._next_group = 0
        self._again: deque[int] = deque()
        self._generating: dict[int, int] = {}
        self._ready: dict[int, tuple[int, Group]] = {}
        self._taken: deque[tuple[int, list[int]]] = deque()
        self._kept: dict[int, dict[Any, tuple[int, Any]]] = {}

    @property
    def ready(self) -> int:
        """Number of groups that wait to be trained on."""
        return len(self._ready)

    @property
    def finished(self) -> bool:
        """Whether all ``total_groups`` have been trained on."""
        return self.counters.trained >= self.total_groups

    @property
    def left_of_step(self) -> int:
        """How many of the next groups belong to the same training step: those to be generated
        again, else the rest of the step.

        A generator that returns several groups together should ask for no more than these. If it
        sampled groups of two steps together, the first step would wait for groups of the second.
        """
        return len(self._again) or self.groups_per_step - self._next_group % self.groups_per_step

    def admit(self, version: int, count: int) -> list[int]:
        """Return up to ``count`` group numbers that a generator with weights ``version`` may start
        now. Groups to be generated again come first, with the parts that are kept of them as far as
        these are young enough: such a group is as old as its oldest part."""
        admitted: list[int] = []
        in_flight = [*self._generating.values(), *(started for started, _ in self._ready.values())]
        while len(admitted) < count and (self._again or self._next_group < self.total_groups):
            kept = self._kept.get(self._again[0], {}).values() if self._again else ()
            ages = sorted({version, *(of_part for of_part, _ in kept if of_part < version)})
            age = next((age for age in ages if self._feasible([*in_flight, age], self.version)), None)
            if age is None:
                break
            in_flight.append(age)
            group = self._again.popleft() if self._again else self._new_group()
            self._generating[group] = age
            self.counters.started += 1
            admitted.append(group)
        return admitted

    def add(self, number: int, version: int, group: Group) -> bool:
        """Accept group ``number``, whose oldest token was sampled at ``version``. Returns False if
        that number is not expected."""
        if self._generating.pop(number, None) is None:
            self.counters.refused += 1
            return False
        self._ready[number] = (version, group)
        self._kept.pop(number, None)
        self.counters.added += 1
        return True

    def keep(self, number: int, key: Any, version: int, part: Any) -> None:
        """Keep ``part`` of a group that is being generated, in the place of an earlier one with this
        ``key``. Its oldest token was sampled at ``version``."""
        if number in self._generating or number in self._again:
            self._kept.setdefault(number, {})[key] = version, part

    def kept(self, number: int) -> list[Any]:
        """Return the parts from which group ``number``, which was admitted, may go on."""
        oldest = self._generating.get(number, self.version)
        return [part for version, part in self._kept.get(number, {}).values() if version >= oldest]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Give up groups whose generator has died. They will be generated again."""
        for number in numbers:
            if self._generating.pop(number, None) is not None:
                self._again.append(number)
                self.counters.abandoned += 1

    def take(self) -> list[tuple[int, Group]] | None:
        """Return the groups of the next training step, ordered by number, and advance ``version``;
        or return None if the step must wait."""
        self._drop_stale()
        if len(self._ready) < self.groups_per_step or (chosen := self._choose()) is None:
            return None
        self._taken.append((self.version, chosen))
        self.version += 1
        self.counters.trained += len(chosen)
        return [(number, self._ready.pop(number)[1]) for number in sorted(chosen)]

    def forget_taken(self, version: int) -> None:
        """Forget the groups taken for steps below ``version``: these steps are done."""
        while self._taken and self._taken[0][0] < version:
            self._taken.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. It holds the numbers of the groups in flight, not the
        groups: they are generated again.

        The same holds for groups taken for a step that is not done yet: the state is that before
        this step.
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
        """Continue from ``state``. Groups that were in flight then count as abandoned."""
        self.version, self._next_group = state["version"], state["next_group"]
        self.counters = Counters(**state["counters"])
        self._again = deque(state["again"])
        self._generating.clear()
        self._ready.clear()
        self._taken.clear()
        self._kept.clear()

    def _choose(self) -> list[int] | None:
        """Return the groups of the next step: those that the order prefers, and in the place of the
        last of them as many of the oldest as the remaining deadlines demand. None: wait."""
        step, versions = self.groups_per_step, {number: version for number, (version, _) in self._ready.items()}
        by_age = oldest(versions, 0, step)
        coming = (*self._generating, *self._again)
        preferred = self._preferred(versions, min((*coming, *versions)), step)
        if len(preferred) < step and coming:
            return None
        for forced in range(step):
            chosen = list(dict.fromkeys((*by_age[:forced], *preferred)))[:step]
            left = [*self._generating.values(), *(versions[number] for number in versions.keys() - set(chosen))]
            if len(chosen) == step and self._feasible(left, self.version + 1):
                return chosen
        left = [*self._generating.values(), *(versions[number] for number in by_age[step:])]
        feasible = not self._generating or self._feasible(left, self.version + 1)
        return by_age[:step] if feasible else None

    def _new_group(self) -> int:
        self._next_group += 1
        return self._next_group - 1

    def _feasible(self, started: list[int], version: int) -> bool:
        """Return whether steps of ``groups_per_step`` groups at ``version``, ``version`` + 1, … can
        train on groups of the versions ``started``, the oldest first, within ``max_lag``."""
        oldest_of_steps = sorted(started)[:: self.groups_per_step]
        return all(oldest + self.max_lag >= version + step for step, oldest in enumerate(oldest_of_steps))

    def _drop_stale(self) -> None:
        for number, (version, _) in list(self._ready.items()):
            if self.version - version > self.max_lag:
                del self._ready[number]
                self._again.append(number)
                self.counters.stale += 1
