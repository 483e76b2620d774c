"""Describe a run to simulate: its counts and its latencies.

    Setting ── latencies() ──► Latencies    one number of seconds for every group, step and version

``recorded.py`` reads the means off a real run. A group's latency depends on its number and the seed:
compared runs have equal stragglers.

>>> Setting(steps=2, groups_per_step=1, generation_seconds=1.5, variation=0, training_seconds=2, sync_seconds=0.25).latencies()
Latencies(generate=(1.5, 1.5), train=(2.0, 2.0), transfer=(0.25, 0.25))
"""

import math
import random
from dataclasses import dataclass


def lognormal(rng: random.Random, mean: float, variation: float) -> float:
    """Draw log-normally with mean and variation: σ² = ln(1 + variation²), μ = ln(mean) − σ²/2."""
    sigma = math.sqrt(math.log1p(variation**2))
    return mean * math.exp(sigma * rng.gauss(0, 1) - sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of every group, step and version."""

    generate: tuple[float, ...]
    """To sample group k on one generator."""
    train: tuple[float, ...]
    """To train step v and publish version v + 1."""
    transfer: tuple[float, ...]
    """To send version v to the generators, which continue to sample meanwhile."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A run's counts, and its mean latencies in seconds."""

    generators: int = 4
    groups_per_step: int = 8
    steps: int = 6
    max_lag: int = 1
    generation_seconds: float = 1.0
    """In which one generator samples one group."""
    variation: float = 0.5
    """Coefficient of variation of that time; its distribution is log-normal."""
    training_seconds: float = 2.0  # of one training step, publishing included
    sync_seconds: float = 0.25
    """From published weights to generators that hold them."""
    straggler: float = 1.0
    """Factor by which one group takes longer: the first group of the middle step."""
    seed: int = 0
    share: int = 1
    """Groups of a step that a generator takes and returns together."""

    def latencies(self) -> Latencies:
        """Draw the latencies."""
        rng, groups = random.Random(self.seed), range(self.groups_per_step * self.steps)
        generate = [lognormal(rng, self.generation_seconds, self.variation) for _ in groups]
        generate[self.groups_per_step * (self.steps // 2)] *= self.straggler
        train = (float(self.training_seconds),) * self.steps
        transfer = (float(self.sync_seconds),) * self.steps
        return Latencies(tuple(generate), train, transfer)
