"""Evaluate a policy on a set of tasks: accuracy with its confidence interval, outcomes, lengths, times.

    tasks      blip? ✓   blip? ✓   zork? ✗   zork? ✗       4 trials, but only 2 different words
    clusters   ╰── 2 / 2 ───╯   ╰── 0 / 2 ───╯             counted as 2 independent trials

A policy that is wrong about a word is wrong about it every time. So tasks with the same words form
a *cluster*, and the width of the interval depends on the number of clusters, not of trials.
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
    """The result for one kind of task: means over its episodes."""

    name: str
    episodes: int
    accuracy: float
    interval: tuple[float, float]
    """Of the accuracy, with 95 % confidence; see ``clustered_interval``."""
    reward: float
    outcomes: dict[str, float]
    """The share of each outcome."""
    turns: float
    tool_calls: float
    tokens: float
    seconds_median: float
    """Of an episode that is sampled in a batch."""
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
    episodes = rollout(
        policy,
        requests,
        execute,
        sampling,
        environment=environment,
    )
    for episode in episodes:
        episode.score = environment.score(*episode.attempt)
    return summarise(name, episodes), episodes


def summarise(name: str, episodes: list[Episode]) -> Report:
    """Return the report on scored ``episodes``, called ``name``."""
    outcomes = outcome_shares(episodes)
    seconds = [episode.seconds for episode in episodes]
    successes = [episode.scored.outcome == "success" for episode in episodes]
    clusters: list[Hashable] = []
    for episode in episodes:
        words = tuple(sorted(episode.task.words))
        clusters.append(words or episode.task.question)
    return Report(
        name=name,
        episodes=len(episodes),
        accuracy=outcomes["success"],
        interval=clustered_interval(successes, clusters),
        reward=fmean(episode.scored.reward for episode in episodes),
        outcomes=outcomes,
        turns=fmean(len(episode.turns) for episode in episodes),
        tool_calls=fmean(episode.tool_calls for episode in episodes),
        tokens=fmean(len(episode.token_ids) for episode in episodes),
        seconds_median=median(seconds),
        seconds_p95=float(np.percentile(seconds, 95, method="higher")),
    )


def clustered_interval(
    outcomes: Sequence[bool],
    clusters: Sequence[Hashable],
) -> tuple[float, float]:
    """Return the 95 % interval of the share of successes: ``outcomes[i]`` belongs to ``clusters[i]``.

    It is the exact interval for the effective number of trials (Korn and Graubard 1998, Survey
    Methodology 24, section 3), if all trials of a cluster have the same outcome. For clusters of n_g
    trials this number is (Σ_g n_g)² / Σ_g n_g² (Kish 1965, section 8.2). How similar they really are is
    not estimated: few clusters, or a share near 0 or 1, do not show it.

    >>> outcomes = [True] * 50 + [False] * 50
    >>> [round(bound, 2) for bound in clustered_interval(outcomes, [i // 10 for i in range(100)])]
    [0.19, 0.81]
    """
    trials = len(outcomes)
    sizes = Counter(clusters).values()
    effective = trials**2 / sum(size**2 for size in sizes)
    return exact_interval(effective * (sum(outcomes) / trials), effective)


def exact_interval(
    successes: float,
    trials: float,
) -> tuple[float, float]:
    """Return the 95 % interval for *independent* trials (Clopper, Pearson 1934); the numbers may be fractions.

    It covers any true share at least 95 % of the time, and stays within [0, 1].

    >>> [round(bound, 3) for bound in exact_interval(0, 100)]
    [0.0, 0.036]
    """
    # It takes a while to load, and most notebooks begin without an interval.
    from scipy.special import betaincinv

    failures = trials - successes
    tail = 0.025
    low = float(betaincinv(successes, failures + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures > 0 else 1.0
    return low, high
