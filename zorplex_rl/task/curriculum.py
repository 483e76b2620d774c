"""Choose the tasks of a run: one kind, a mix of all kinds, or a curriculum of ever harder tiers.

A *tier* is a tuple of ``kind:difficulty`` names, from which tasks are drawn in turn.
"""

from zorplex_rl.config import Config
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS

Tier = tuple[str, ...]


def tier_of(task: str, difficulty: str = "easy") -> Tier:
    """Return the tier of ``--task task --difficulty difficulty``.

    >>> tier_of("mix", "hard")[:2]
    ('simple:easy', 'compositional:hard')
    """
    if task not in (*TASK_SPECS, "mix"):
        # A task of the user: one tier, under its own name.
        return (task,)
    kinds = tuple(TASK_SPECS) if task == "mix" else (task,)
    return tuple(f"{kind}:{difficulty if kind == 'compositional' else 'easy'}" for kind in kinds)


def tiers_of(config: Config) -> tuple[Tier, ...]:
    """Return the tiers that a run of ``config`` goes through: one, unless it has a curriculum."""
    return ladder_of(config.task) if config.curriculum else (tier_of(config.task, config.difficulty),)


def ladder_of(task: str) -> tuple[Tier, ...]:
    """Return ``--curriculum``'s tiers for ``task``, easiest first; one without difficulties."""
    if task == "compositional":
        return tuple(tier_of(task, difficulty) for difficulty in DIFFICULTIES)
    if task == "mix":
        single = tuple(f"{kind}:easy" for kind in TASK_SPECS if kind != "compositional")
        return (single, *((*single, f"compositional:{difficulty}") for difficulty in DIFFICULTIES))
    return (tier_of(task),)
