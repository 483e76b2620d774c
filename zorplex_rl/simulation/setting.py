"""Describe a run to simulate: its counts and its latencies.

    Setting ── latencies() ──► Latencies    one number of seconds for every group, step and version

``recorded.py`` reads the means off a real run. A group's latency depends only on its number and the
seed, so runs that are compared have the same stragglers.

>>> setting = Setting(steps=2, groups_per_step=1, generation_seconds=1.5, variation=0, sync_seconds=0.25)
>>> setting.latencies()
Latencies(generate=(1.5, 1.5), train=(2.0, 2.0), transfer=(0.25, 0.25))
"""

import random
from dataclasses import dataclass

from zorplex_rl.task.latency import lognormal


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
    """Generators, each of which samples one group at a time."""
    groups_per_step: int = 8
    """Groups in a training batch."""
    steps: int = 6
    """Training steps of the run."""
    max_lag: int = 1
    """How many versions old a group's weights may be when it is trained on."""
    generation_seconds: float = 1.0
    """Seconds in which one generator samples one group."""
    variation: float = 0.5
    """Coefficient of variation of that time; its distribution is log-normal."""
    training_seconds: float = 2.0
    """Seconds of one training step, publishing included."""
    sync_seconds: float = 0.25
    """Seconds from published weights to generators that hold them."""
    straggler: float = 1.0
    """Factor by which one group takes longer: the first group of the middle step."""
    seed: int = 0
    """Seed of the latencies."""
    share: int = 1
    """Groups of a step that a generator takes and returns together."""

    def latencies(self) -> Latencies:
        """Draw the latencies."""
        rng = random.Random(self.seed)
        generate = []
        for _ in range(self.groups_per_step * self.steps):
            generate.append(lognormal(rng, self.generation_seconds, self.variation))
        straggler = self.groups_per_step * (self.steps // 2)
        generate[straggler] *= self.straggler
        return Latencies(
            generate=tuple(generate),
            train=(self.training_seconds,) * self.steps,
            transfer=(self.sync_seconds,) * self.steps,
        )
