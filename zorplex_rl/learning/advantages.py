"""Compute advantages: how much better than expected each episode was. Pure functions of rewards.

rewards [[1.2, 0.0, 0.2, 1.2], …]   one list for each group; a group is the samples of one prompt

``by_prefix`` then says how much better than expected each *token* was (``--credit prefix``).
"""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import get_args

from zorplex_rl.config import LossName
from zorplex_rl.task.episode import Episode

NOISE = 1e-9
"""Rewards that differ by less are equal: they are sums of floats, off in their last digits."""
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
    found = []
    for group in rewards:
        mean, deviation = fmean(group), pstdev(group)
        found.append(
            [
                (reward - mean) / (deviation + epsilon) if deviation > NOISE else 0.0
                for reward in group
            ]
        )
    return found


def group_centred(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return reward − group mean, undivided (Dr. GRPO, Liu et al. 2025, section 3.2).

    Divided by its deviation, a group with the rewards 0 and 0.2 teaches as much as one with 0 and 1.2:
    to guess a number, rather than to look it up.

    >>> group_centred([[1.0, 0.0], [0.5, 0.0]])
    [[0.5, -0.5], [0.25, -0.25]]
    """
    found = []
    for group in rewards:
        mean = fmean(group)
        found.append([reward - mean if abs(reward - mean) > NOISE else 0.0 for reward in group])
    return found


def mean_relative(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each reward minus its group's mean, divided by that mean (MaxRL, Tajwar et al. 2026,
    algorithm 1).

    The gradient of a prompt then is that of log p, where p is the share of right answers, not of p:
    one success among eight weighs seven times as much as one failure among eight. The paper's
    rewards are 0 and 1. Here the lowest of a group counts as 0: a penalty may make one negative.

    >>> mean_relative([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0]])
    [[3.0, -1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [0.0, 0.0]]
    """
    found = []
    for group in rewards:
        above = [reward - min(group) for reward in group]
        mean = fmean(above)
        found.append([reward / mean - 1 if mean > NOISE else 0.0 for reward in above])
    return found


ADVANTAGES: dict[str, Advantage] = dict.fromkeys(get_args(LossName), group_relative) | {
    "reinforce": batch_baseline,
    "dr_grpo": group_centred,
    "maxrl": mean_relative,
}
"""The advantage that each loss (``losses.py``) uses: that of GRPO, except for these."""


def by_prefix(episodes: Sequence[Episode], advantages: Sequence[float]) -> list[list[float]]:
    """Return an advantage for every token: its episode's, minus the mean of the other samples' of
    this prompt that are the same up to this token. That is the baseline of RLOO (Kool, van Hoof and
    Welling 2019) for each prefix; where no other sample is left, the last one stays.

    Samples that begin alike share what that beginning is worth, so a token only earns what came
    after it: of 5 7, 5 8 and 6 7 with advantages 1, 0 and −1 the first earns 1.5 and then 1.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, episode in enumerate(episodes):
        groups.setdefault((episode.group, *episode.prompt_ids), []).append(row)
    found = []
    for episode, own in zip(episodes, advantages, strict=True):
        alike, baseline = groups[episode.group, *episode.prompt_ids], own
        values = []
        for at, token in enumerate(episode.token_ids):
            others = [advantages[row] for row in alike]
            if len(others) > 1:
                # Exactly its own where all are equal: such a token has no gradient.
                is_even = max(others) - min(others) <= NOISE
                baseline = own if is_even else (sum(others) - own) / (len(others) - 1)
            values.append(own - baseline)
            alike = [row for row in alike if episodes[row].token_ids[at : at + 1] == [token]]
        found.append(values)
    return found


def zero_variance_share(rewards: Sequence[Sequence[float]]) -> float:
    """Return the share of groups whose rewards are all equal. Such a group has no gradient."""
    return fmean(float(max(group) - min(group) <= NOISE) for group in rewards)
