"""Describe a run to simulate: its counts and its latencies.

    Setting ── latencies() ──► Latencies    one number of seconds for every group, step and version

``recorded.py`` measures those of a real run. A group's latency depends on its number and the seed:
compared runs have equal stragglers.

>>> Setting(steps=2, groups_per_step=1, generation_seconds=1.5, variation=0, training_seconds=2, sync_seconds=0.25).latencies()
Latencies(generate=(1.5, 1.5), train=(2.0, 2.0), transfer=(0.25, 0.25))
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field


def lognormal(rng: random.Random, mean: float, variation: float) -> float:
    """Draw log-normally with mean and variation: σ² = ln(1 + variation²), μ = ln(mean) − σ²/2."""
    sigma = math.sqrt(math.log1p(variation**2))
    return mean * math.exp(sigma * rng.gauss(0, 1) - sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of every group, step and version; bounds and widget use the first three."""

    generate: tuple[float, ...]
    """To sample group k on one generator."""
    train: tuple[float, ...]
    """To train step v and publish version v + 1."""
    transfer: tuple[float, ...]
    """To send version v to the generators, which continue to sample meanwhile."""
    latency: Mapping[int, float] = field(default_factory=dict, repr=False)
    """Least seconds from first to last token of group k while its generator samples others."""
    load: Mapping[int, float] = field(default_factory=dict, repr=False)
    """To load version v; the generator stops for it."""
    evaluate: Mapping[int, float] = field(default_factory=dict, repr=False)
    """To evaluate version v; generator 0 stops for it."""
    start: float = field(default=0.0, repr=False)
    """From admission to the first token, if the generator was idle."""
    deliver: float = field(default=0.0, repr=False)
    """From a group's last token until the trainer can use it."""
    turnaround: float = field(default=0.0, repr=False)
    """Pause of the trainer between two steps."""
    share: int = field(default=1, repr=False)
    """Groups (not seconds) that a generator takes and returns together."""
    ahead: bool = field(default=False, repr=False)
    """Whether a generator takes all shares at once that its weights may sample, and takes no newer
    weights before the last of them is done, as with ``--on-update wait``."""

    def pauses(self, generator: int, have: int, newest: int) -> list[tuple[str, float]]:
        """Return (kind, seconds) of ``generator``'s pauses from version ``have`` to ``newest``."""
        pauses = [("pull", self.load.get(newest, 0.0))]
        if generator == 0:
            pauses += [("evaluate", s) for version, s in self.evaluate.items() if have < version <= newest]
        return pauses


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

    def latencies(self) -> Latencies:
        """Draw the latencies."""
        rng, groups = random.Random(self.seed), range(self.groups_per_step * self.steps)
        generate = [lognormal(rng, self.generation_seconds, self.variation) for _ in groups]
        generate[self.groups_per_step * (self.steps // 2)] *= self.straggler
        train = (float(self.training_seconds),) * self.steps
        transfer = (float(self.sync_seconds),) * self.steps
        return Latencies(tuple(generate), train, transfer)
