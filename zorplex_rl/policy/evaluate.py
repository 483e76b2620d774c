"""Evaluate a policy on a set of tasks: accuracy, outcomes, lengths and times."""

from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from zorplex_rl.policy.intervals import clustered_interval
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.rollout import Execute, RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import outcome_shares


@dataclass(frozen=True, slots=True)
class Report:
    """The result for one kind of task. Times are seconds of an episode, sampled in a batch.
    ``interval`` (95 %) of the accuracy counts tasks with the same words once (``intervals.py``)."""

    name: str
    episodes: int
    accuracy: float
    interval: tuple[float, float]
    reward: float
    outcomes: dict[str, float]
    turns: float
    tool_calls: float
    tokens: float
    seconds_median: float
    seconds_p95: float


def evaluate(
    policy: Policy,
    name: str,
    tasks: list[Task],
    execute: Execute,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    environment: Environment = ZORPLEX,
) -> tuple[Report, list[Episode]]:
    """Sample and score an episode for each of ``tasks``. Returns the report and the episodes."""
    requests = [RolloutRequest(task, seed * 1_000_003 + index) for index, task in enumerate(tasks)]
    episodes = rollout(policy, requests, execute, sampling, environment=environment)
    for episode in episodes:
        episode.score = environment.score(*episode.attempt)
    return summarise(name, episodes), episodes


def summarise(name: str, episodes: list[Episode]) -> Report:
    """Return the report on scored ``episodes``, called ``name``."""
    outcomes = outcome_shares(episodes)
    seconds = [episode.seconds for episode in episodes]
    return Report(
        name=name,
        episodes=len(episodes),
        accuracy=outcomes["success"],
        interval=clustered_interval(
            [episode.scored.outcome == "success" for episode in episodes],
            [tuple(sorted(episode.task.words)) or episode.task.question for episode in episodes],
        ),
        reward=fmean(episode.scored.reward for episode in episodes),
        outcomes=outcomes,
        turns=fmean(len(episode.turns) for episode in episodes),
        tool_calls=fmean(episode.tool_calls for episode in episodes),
        tokens=fmean(len(episode.token_ids) for episode in episodes),
        seconds_median=median(seconds),
        seconds_p95=float(np.percentile(seconds, 95, method="higher")),
    )
