"""Which task a run draws at which index: one kind, a mix of all, or a ladder of tiers.

A *tier* is a tuple of ``kind:difficulty`` names that are drawn in turn, so every tier's shares are equal by construction.
"""

from __future__ import annotations

from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS

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
