"""Note what a rollout engine was told, and between which of its steps: enough to have another one
do the same, bit for bit.

    submit [0, 1]    12 steps    version 3    20 steps    submit [4, 5]    …

Every row has its own random numbers. But rows that are decoded together share matrix products, so
the last bit of a log-probability depends on who was in the batch, and that on when requests and
weights came. A slow tool's answer is noted, too: a row that waits for one is not decoded.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from zorplex_rl.policy.tool_loop import RolloutRequest
from zorplex_rl.task.episode import Task

Event = tuple[int | None, str, Any]
"""(steps since the event before; what; value). None stands for: until the engine is idle.

submit    group numbers, all samples of each
version   of the weights that the model has from now on
answers   tickets of the rows whose tool has answered
"""
EVALUATION_SEED = 1_000_003


class History:
    """The events of one engine. Events may be taken out in one thread while another adds some."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._steps = self._taken = 0

    def note_step(self) -> None:
        """Note that the engine has taken a step."""
        self._steps += 1

    def note(self, what: str, value: Any) -> None:
        """Note an event."""
        self._events.append((self._steps, what, value))
        self._steps = 0

    def take(self) -> tuple[int, list[Event]]:
        """Take out the events so far. Returns how many were taken out before, and these."""
        before, found = self._taken, []
        while self._events:
            found.append(self._events.popleft())
        self._taken += len(found)
        return before, found


def episode_seed(run_seed: int, group: int, sample: int) -> int:
    """Return the seed of one episode's random draws: its own, and the same whenever the group is
    generated again."""
    return (run_seed * 1_000_003 + group) * 1_009 + sample


def group_requests(tasks: Iterable[tuple[int, Task]], group_size: int, run_seed: int) -> list[RolloutRequest]:
    """Return the requests for ``group_size`` episodes of each (group number, task)."""
    return [
        RolloutRequest(task, episode_seed(run_seed, number, sample), number)
        for number, task in tasks
        for sample in range(group_size)
    ]


def held_out_requests(tasks: Sequence[Task]) -> list[RolloutRequest]:
    """Return the requests of an evaluation: the same random draws every time."""
    return [RolloutRequest(task, EVALUATION_SEED + index) for index, task in enumerate(tasks)]
