"""Which task a run draws at which index: one kind, a mix of all, or a ladder of tiers.

A *tier* is a tuple of ``kind:difficulty`` names that are drawn in turn, so every tier's shares are equal by construction.
``Zorplex`` is the environment of a run: it draws tasks from a tier and runs the tools that they call.

>>> Zorplex(seed=0).task(("simple:easy", "recursive:easy"), index=1).kind
'recursive'
"""

from __future__ import annotations

from functools import cache

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.zorplex import DIFFICULTIES, TASK_SPECS, Split, TaskSpec, get_spec

Tier = tuple[str, ...]
TASK_NAMES: tuple[str, ...] = (*TASK_SPECS, "mix")


def tier_of(task: str, difficulty: str = "easy") -> Tier:
    """The tier that ``--task task --difficulty difficulty`` names.

    >>> tier_of("mix")
    ('simple:easy', 'compositional:easy', 'multi_step:easy', 'recursive:easy')
    """
    kinds = tuple(TASK_SPECS) if task == "mix" else (task,)
    return tuple(f"{kind}:{difficulty if kind == 'compositional' else 'easy'}" for kind in kinds)


def ladder_of(task: str) -> tuple[Tier, ...]:
    """The tiers that ``--curriculum`` climbs for ``task``, easiest first; one tier only where a kind has no difficulty."""
    if task == "compositional":
        return tuple(tier_of(task, difficulty) for difficulty in DIFFICULTIES)
    if task == "mix":
        single = ("simple:easy", "multi_step:easy", "recursive:easy")
        return (single, *((*single, f"compositional:{difficulty}") for difficulty in DIFFICULTIES))
    return (tier_of(task),)


class Zorplex:
    """The environment of one run: the tasks that can be drawn, and the tools that they call. It holds no state of theirs."""

    def __init__(self, seed: int = 0, hints: bool = False) -> None:
        self.seed, self.hints = seed, hints
        self._spec = cache(lambda kind, difficulty: get_spec(kind, seed, difficulty, hints))

    def spec(self, name: str) -> TaskSpec:
        """The spec of ``kind:difficulty``, or of ``kind`` at its easiest."""
        kind, _, difficulty = name.partition(":")
        return self._spec(kind, difficulty or "easy")

    def task(self, tier: Tier, index: int, split: Split = "train") -> Task:
        """Task number ``index`` of ``tier``: the members of the tier take turns."""
        return self.spec(tier[index % len(tier)]).task(index // len(tier), split)

    def tasks(self, tier: Tier, count: int, split: Split = "train", start: int = 0) -> list[Task]:
        return [self.task(tier, start + offset, split) for offset in range(count)]

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` with the tools of ``task``'s kind, on the table of ``task``."""
        return self._spec(task.kind, "easy").execute(task, call)
