"""Evaluate a policy on a set of tasks: accuracy with its confidence interval, outcomes, lengths, times.

    tasks      blip? ✓   blip? ✓   zork? ✗   zork? ✗       4 trials, but only 2 different words
    clusters   ╰── 2 / 2 ───╯   ╰── 0 / 2 ───╯             counted as 2 independent trials

A policy that is wrong about a word is wrong about it every time. So tasks with the same words form
a *cluster*, and the width of the interval follows from the number of clusters, not of trials.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.requests import RolloutRequest, Sampling
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.policy.tool_loop import Execute
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import outcome_shares


@dataclass(frozen=True, slots=True)
class Report:
    """The result for one kind of task. Times are seconds of an episode, sampled in a batch."""

    name: str
    episodes: int
    accuracy: float
    interval: tuple[float, float]
    """Of the accuracy, with 95 % confidence; see ``clustered_interval``."""
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


def clustered_interval(
    outcomes: Sequence[bool], clusters: Sequence[Hashable], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the share of successes: ``clusters[i]`` has ``outcomes[i]``.

    It is the exact interval with the effective number of trials (Korn and Graubard 1998, Survey
    Methodology 24, section 3) where trials are all alike within their cluster. For clusters of n_g
    trials that is (Σ_g n_g)² / Σ_g n_g² (Kish 1965, section 8.2). How alike they are is not
    estimated: few clusters, or a share near 0 or 1, do not show it.

    >>> [round(bound, 2) for bound in clustered_interval([True] * 50 + [False] * 50, [i // 10 for i in range(100)])]
    [0.19, 0.81]
    """
    trials = len(outcomes)
    effective = trials**2 / sum(size**2 for size in Counter(clusters).values())
    return exact_interval(effective * (sum(outcomes) / trials), effective, confidence)


def exact_interval(
    successes: float, trials: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval for *independent* trials, maybe not whole (Clopper, Pearson 1934).

    It covers any true share at least as often as ``confidence`` says, within [0, 1].

    >>> [round(bound, 3) for bound in exact_interval(0, 100)]
    [0.0, 0.036]
    """
    from scipy.special import (
        betaincinv,
    )  # It takes a while to load, and most notebooks begin without an interval.

    failures, tail = trials - successes, (1 - confidence) / 2
    low = float(betaincinv(successes, failures + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures > 0 else 1.0
    return low, high
