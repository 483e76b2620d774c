"""Compute advantages: how much better than expected each episode was. Pure functions of rewards.

rewards [[1.2, 0.0, 0.2, 1.2], …]   a list for each group; a group is the samples of one prompt

``by_prefix`` then says how much better than expected each *token* was (``--credit prefix``).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import get_args

from zorplex_rl.config import LossName
from zorplex_rl.task.episode import Episode

NOISE = 1e-9
"""Rewards that differ by less count as equal: sums of floats are off in their last digits."""
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
    advantages = []
    for group in rewards:
        mean = fmean(group)
        deviation = pstdev(group)
        if deviation > NOISE:
            advantages.append([(reward - mean) / (deviation + epsilon) for reward in group])
        else:
            advantages.append([0.0] * len(group))
    return advantages


def group_centred(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return reward − group mean, undivided (Dr. GRPO, Liu et al. 2025, section 3.2).

    Divided by the deviation, a group with the rewards 0 and 0.2 teaches as much as one with 0 and 1.2:
    guessing a number would count as much as looking it up.

    >>> group_centred([[1.0, 0.0], [0.5, 0.0]])
    [[0.5, -0.5], [0.25, -0.25]]
    """
    advantages = []
    for group in rewards:
        mean = fmean(group)
        differences = [reward - mean for reward in group]
        advantages.append([each if abs(each) > NOISE else 0.0 for each in differences])
    return advantages


def mean_relative(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return each reward minus its group's mean, divided by that mean (MaxRL, Tajwar et al. 2026,
    algorithm 1).

    The gradient of a prompt then is that of log p, not of p, where p is the share of right answers:
    one success among eight weighs seven times as much as one failure among eight. The paper's
    rewards are 0 and 1. Here the lowest of a group counts as 0, since a penalty may make it negative.

    >>> mean_relative([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0]])
    [[3.0, -1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [0.0, 0.0]]
    """
    advantages = []
    for group in rewards:
        lowest = min(group)
        above = [reward - lowest for reward in group]
        mean = fmean(above)
        if mean > NOISE:
            advantages.append([reward / mean - 1 for reward in above])
        else:
            advantages.append([0.0] * len(group))
    return advantages


ADVANTAGES: dict[str, Advantage] = dict.fromkeys(get_args(LossName), group_relative) | {
    "reinforce": batch_baseline,
    "dr_grpo": group_centred,
    "maxrl": mean_relative,
}
"""The advantage that each loss of ``losses.py`` uses: GRPO's, except for these."""


def by_prefix(episodes: Sequence[Episode], advantages: Sequence[float]) -> list[list[float]]:
    """Return an advantage for every token: its episode's, minus the mean of those of the other samples
    of this prompt that are the same up to this token. This is the baseline of RLOO (Kool, van Hoof
    and Welling 2019) for each prefix. Where no other sample is left, the last baseline stays.

    Samples that begin alike share what that beginning is worth, so a token only earns what came
    after it: for the samples (5 7), (5 8) and (6 7) with advantages 1, 0 and −1, the tokens of the first get 1.5 and 1.
    """
    groups = defaultdict(list)
    for row, episode in enumerate(episodes):
        prompt = (episode.group, *episode.prompt_ids)
        groups[prompt].append(row)
    credits = []
    for episode, advantage in zip(episodes, advantages, strict=True):
        alike = groups[episode.group, *episode.prompt_ids]
        baseline = advantage
        values = []
        for at, token in enumerate(episode.token_ids):
            shared = [advantages[row] for row in alike]
            if max(shared) - min(shared) > NOISE:
                baseline = (sum(shared) - advantage) / (len(shared) - 1)
            elif len(shared) > 1:
                # Exactly 0 where all are equal: such a token has no gradient.
                baseline = advantage
            values.append(advantage - baseline)
            alike = [row for row in alike if episodes[row].token_ids[at : at + 1] == [token]]
        credits.append(values)
    return credits


def zero_variance_share(rewards: Sequence[Sequence[float]]) -> float:
    """Return the share of groups whose rewards are all equal. Such a group has no gradient."""
    return fmean(float(max(group) - min(group) <= NOISE) for group in rewards)
