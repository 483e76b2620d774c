"""Compute advantages: how much better than expected each episode was. Pure functions of rewards.

rewards [[1.2, 0.0, 0.2, 1.2], …]   one list for each group; a group is the samples of one prompt

``by_prefix`` then says how much better than expected each *token* was (``--credit prefix``).
"""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import get_args

from zorplex_rl.config import LossName
from zorplex_rl.task.episode import Episode

Advantage = Callable[[Sequence[Sequence[float]]], list[list[float]]]


def batch_baseline(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each reward minus the batch's mean: REINFORCE's baseline (Williams 1992, section 5).

    >>> batch_baseline([[1.0], [0.0]])
    [[0.5], [-0.5]]
    """
    baseline = fmean(reward for group in rewards for reward in group)
    return [[reward - baseline for reward in group] for group in rewards]


def group_relative(rewards: Sequence[Sequence[float]], epsilon: float = 1e-4) -> list[list[float]]:
    """Return reward − group mean, over the group's deviation (GRPO, Shao et al. 2024, 4.1.2).

    A group with equal rewards shows no better sample: all its advantages are exactly 0.

    >>> group_relative([[1.0, 0.0], [1.0, 1.0]], epsilon=0.0)
    [[1.0, -1.0], [0.0, 0.0]]
    """
    return [_standardise(group, epsilon) for group in rewards]


def mean_relative(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each reward minus its group's mean, divided by that mean (MaxRL, Tajwar et al. 2026,
    algorithm 1).

    The gradient of a prompt then is that of log p, where p is the share of right answers, and not
    that of p: one success among eight weighs seven times as much as one failure among eight. The
    paper's rewards are 0 and 1. Here the lowest of the group is 0, so that a penalty may make a
    reward negative.

    >>> mean_relative([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0]])
    [[3.0, -1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [0.0, 0.0]]
    """
    return [_relative_to_mean([reward - min(group) for reward in group]) for group in rewards]


ADVANTAGES: dict[str, Advantage] = dict.fromkeys(get_args(LossName), group_relative) | {
    "reinforce": batch_baseline,
    "maxrl": mean_relative,
}
"""The advantage that each loss (``losses.py``) uses: that of GRPO, except for these."""


def prefix_relative(samples: Sequence[Sequence[int]], advantages: Sequence[float]) -> list[list[float]]:
    """Return an advantage for every token of the ``samples`` of one prompt: its sample's, minus the
    mean of the other samples' that are the same up to this token. That is the baseline of RLOO
    (Kool, van Hoof and Welling 2019) for each prefix.

    Samples that begin alike share what that beginning is worth, so a token only earns what came
    after it. A sample that has no like left keeps its last baseline.

    >>> prefix_relative([[5, 7], [5, 8], [6, 7]], [1.0, 0.0, -1.0])
    [[1.5, 1.0], [0.0, -1.0], [-1.5, -1.5]]
    """
    found: list[list[float]] = [[] for _ in samples]
    baselines, alike = list(advantages), [list(range(len(samples)))]
    for at in range(max(map(len, samples), default=0)):
        branches: dict[tuple[int, int], list[int]] = {}
        for number, rows in enumerate(alike):
            values = [advantages[row] for row in rows]
            whole, is_even = sum(values), min(values) == max(values)
            for row in rows:
                if len(rows) > 1:
                    # Exactly its own where all are equal: such a token has no gradient.
                    baselines[row] = advantages[row] if is_even else (whole - advantages[row]) / (len(rows) - 1)
                if at < len(samples[row]):
                    found[row].append(advantages[row] - baselines[row])
                    branches.setdefault((number, samples[row][at]), []).append(row)
        alike = list(branches.values())
    return found


def by_prefix(episodes: Sequence[Episode], advantages: Sequence[float]) -> list[list[float]]:
    """Return ``prefix_relative`` of every group among ``episodes``, in their order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, episode in enumerate(episodes):
        groups.setdefault((episode.group, *episode.prompt_ids), []).append(index)
    found: list[list[float]] = [[] for _ in episodes]
    for rows in groups.values():
        samples = [episodes[row].token_ids for row in rows]
        for row, values in zip(rows, prefix_relative(samples, [advantages[row] for row in rows]), strict=True):
            found[row] = values
    return found


def _standardise(group: Sequence[float], epsilon: float) -> list[float]:
    mean, deviation = fmean(group), pstdev(group)
    return [(reward - mean) / (deviation + epsilon) if deviation > 0 else 0.0 for reward in group]


def _relative_to_mean(group: Sequence[float]) -> list[float]:
    mean = fmean(group)
    return [reward / mean - 1 if mean > 0 else 0.0 for reward in group]


def zero_variance_share(rewards: Sequence[Sequence[float]]) -> float:
    """Return the share of groups whose rewards are all equal. Such a group has no gradient."""
    return fmean(float(max(group) == min(group)) for group in rewards)
