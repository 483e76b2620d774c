"""What a rollout engine was told, and between which of its steps: enough to have another one do the
same, bit for bit. The engine notes it (``RolloutEngine.take_history``).

    submit [0, 1]    12 steps    version 3    20 steps    submit [4, 5]    …

Every row has its own random numbers. But rows that are decoded together share matrix products, so
the last bit of a log-probability depends on who was in the batch, and that on when requests and
weights came. A slow tool's answer is noted, too: a row that waits for one is not decoded.
"""

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from zorplex_rl.policy.tool_loop import RolloutRequest
from zorplex_rl.task.episode import Finish, Prefix, Task

Event = tuple[int | None, str, Any]
"""(steps since the event before; what; value). None stands for: until the engine is idle.

submit    group numbers, all samples of each
kept      place among the next submitted, tokens and end (in ``ENDS``) of each that another generator had begun, in one row
version   of the weights that the model has from now on
answers   tickets of the rows whose tool has answered
"""
ENDS: tuple[Finish | None, ...] = (None, *get_args(Finish))
EVALUATION_SEED = 1_000_003


def episode_seed(run_seed: int, group: int, sample: int) -> int:
    """Return the seed of one episode's random draws: its own, and the same whenever the group is
    generated again."""
    return (run_seed * 1_000_003 + group) * 1_009 + sample


def group_requests(
    tasks: Iterable[tuple[int, Task]], group_size: int, run_seed: int, kept: Iterable[Prefix] = ()
) -> list[RolloutRequest]:
    """Return the requests for ``group_size`` episodes of each (group number, task), from the
    prefixes that are ``kept`` of some."""
    of_seed = {prefix.episode.seed: prefix for prefix in kept}
    return [
        RolloutRequest(task, seed, number, of_seed.get(seed))
        for number, task in tasks
        for seed in (episode_seed(run_seed, number, sample) for sample in range(group_size))
    ]


def held_out_requests(tasks: Sequence[Task]) -> list[RolloutRequest]:
    """Return the requests of an evaluation: the same random draws every time."""
    return [RolloutRequest(task, EVALUATION_SEED + index) for index, task in enumerate(tasks)]
