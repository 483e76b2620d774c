"""Ask how long a batch of another size would take with another tool, from the episodes of a run.

    seconds of an episode = its own seconds, as measured + a delay for each of its calls
    seconds of a batch    = those of its slowest episode

The delays are log-normal. Every episode has a slot of its own, and computing takes as long as it was measured to take: what a larger batch costs in
computing is left out. So the numbers show what *waiting* costs.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Means over many drawn batches, in seconds; ``waiting`` is the share of all slots' time in which a slot waits for the slowest episode."""

    episode: float
    slowest: float
    waiting: float


def batch_times(
    seconds: Sequence[float],
    calls: Sequence[int],
    size: int,
    tool_seconds: float,
    variation: float = 1.5,
    draws: int = 200,
    seed: int = 0,
) -> BatchTimes:
    """Draw batches of ``size`` episodes, with replacement, from episodes that took ``seconds`` and made ``calls``.

    A call takes ``tool_seconds`` on average, with the coefficient of variation ``variation``. Raises ValueError without episodes.

    >>> batch_times([1.0, 3.0], [0, 0], size=64, tool_seconds=5.0).slowest
    3.0
    """
    if not seconds or len(seconds) != len(calls):
        raise ValueError(
            f"{len(seconds)} seconds and {len(calls)} counts of calls; expected one of each for every episode"
        )
    dice, sigma = random.Random(seed), math.sqrt(math.log(1 + variation**2))
    episodes, slowest = 0.0, 0.0
    for _ in range(draws):
        batch = []
        for chosen in dice.choices(range(len(seconds)), k=size):
            delays = (dice.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(calls[chosen]))
            batch.append(seconds[chosen] + tool_seconds * sum(delays))
        episodes, slowest = episodes + fmean(batch), slowest + max(batch)
    return BatchTimes(episodes / draws, slowest / draws, 1 - episodes / slowest)
