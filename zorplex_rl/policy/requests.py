"""What an engine is asked for: episodes, and how they are sampled. It loads no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.task.episode import Task

EVALUATION_SEED = 1_000_003
EngineEvent = tuple[int | None, str, Any]
"""An event in the life of an engine: (steps since the event before; what; value).

    submit    group numbers, all samples of each
    version   the version of the weights from now on
    answers   tickets of the rows whose slow tool has answered

Steps None: once the engine is idle. With the same events another engine does the same, bit for bit:
the last bit of a log-probability depends on which rows were in the batch.
"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How episodes are sampled."""

    temperature: float = Config.temperature
    """0 is greedy."""
    max_tokens: int = Config.max_tokens
    """Maximum length of a response in tokens, tool results included."""
    max_turns: int = Config.max_turns
    """Maximum number of stretches of sampled text."""
    slots: int = Config.slots
    """How many episodes are decoded together."""
    in_rounds: bool = False
    """Whether rows that wait for slow tools go on together, when no other row can go on and all results
    are there. Then the speed of tools does not change which rows are decoded together."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return how a run of ``config`` samples. At lag 0 it repeats bit for bit, however fast its tools
        are."""
        return cls(
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            max_turns=config.max_turns,
            slots=config.slots,
            in_rounds=config.max_lag == 0,
        )


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to sample."""

    task: Task
    seed: int = 0
    """Of its random draws."""
    group: int = 0
    """The number of its group."""
    greedy: bool = False
    """Whether each token is the likeliest one, whatever the engine's temperature."""


def group_requests(
    tasks: Iterable[tuple[int, Task]],
    group_size: int,
    run_seed: int,
) -> list[RolloutRequest]:
    """Return the requests for ``group_size`` episodes of each (group number, task). A group that is
    generated again has the same random draws."""
    requests = []
    for number, task in tasks:
        first_seed = (run_seed * 1_000_003 + number) * 1_009
        for sample in range(group_size):
            requests.append(RolloutRequest(task, first_seed + sample, number))
    return requests


def held_out_requests(tasks: Sequence[Task]) -> list[RolloutRequest]:
    """Return the requests of an evaluation, two for each of ``tasks``: a greedy one, and one with the same
    random draws every time. As long as both draw the same tokens the model runs them once."""
    requests = []
    for index, task in enumerate(tasks):
        for greedy in (True, False):
            requests.append(RolloutRequest(task, EVALUATION_SEED + index, greedy=greedy))
    return requests
