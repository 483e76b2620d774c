"""A run to simulate, and how long everything in it takes.

    Setting      what a slider sets: how many, how long on average, how much that varies
       │ latencies()
       ▼
    Latencies    one number for every group, step and version; a real run's are read off its timeline (``recorded.py``)

A group's latency depends on its number and the seed alone, so that whatever is compared meets the same stragglers.

>>> Setting(steps=2, groups_per_step=1, generation_seconds=1.5, variation=0, training_seconds=2, sync_seconds=0.25).latencies()
Latencies(generate=(1.5, 1.5), train=(2.0, 2.0), transfer=(0.25, 0.25))
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Setting:
    """A run to simulate. Times in seconds."""

    generators: int = 4
    groups_per_step: int = 8
    steps: int = 6
    max_lag: int = 1
    generation_seconds: float = 1.0
    """Mean time in which one generator samples one group."""
    variation: float = 0.5
    """Coefficient of variation of that time, which is log-normal."""
    training_seconds: float = 2.0
    """Of one step, publishing included."""
    sync_seconds: float = 0.25
    """From published weights to generators that have them."""
    straggler: float = 1.0
    """How many times longer one group takes, the first of the step in the middle."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"generators": 1, "groups_per_step": 1, "steps": 1, "max_lag": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        for name in ("generation_seconds", "variation", "training_seconds", "sync_seconds", "straggler"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a number of 0 or more")

    def latencies(self) -> Latencies:
        """Log-normal with the given mean: σ² = ln(1 + variation²), μ = ln(mean) − σ²/2."""
        rng, sigma = random.Random(self.seed), math.sqrt(math.log1p(self.variation**2))
        draws = [rng.gauss(0, 1) for _ in range(self.groups_per_step * self.steps)]
        generate = [self.generation_seconds * math.exp(sigma * draw - sigma**2 / 2) for draw in draws]
        generate[self.groups_per_step * (self.steps // 2)] *= self.straggler
        train, transfer = (float(self.training_seconds),), (float(self.sync_seconds),)
        return Latencies(tuple(generate), train * self.steps, transfer * self.steps)


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long everything takes, in seconds. The first three are the model that the bounds and the widget are about."""

    generate: tuple[float, ...]
    """Sampling group k, on one generator."""
    train: tuple[float, ...]
    """Training step v and publishing version v + 1."""
    transfer: tuple[float, ...]
    """Version v on its way to the generators, which go on sampling meanwhile."""
    details: Details = field(default_factory=lambda: Details(), repr=False)


@dataclass(frozen=True, slots=True)
class Details:
    """What a real run has besides, in seconds."""

    latency: Mapping[int, float] = field(default_factory=dict)
    """What group k takes at least from its first token to its last, because it waits for tools while its generator goes on with others."""
    load: Mapping[int, float] = field(default_factory=dict)
    """Taking over version v, for which a generator stops."""
    evaluate: Mapping[int, float] = field(default_factory=dict)
    """Evaluating version v, for which generator 0 stops."""
    start: float = 0.0
    """From admission to the first token, where the generator had nothing to do meanwhile."""
    deliver: float = 0.0
    """From a group's last token until it can be trained on."""
    turnaround: float = 0.0
    """The trainer's bookkeeping between two steps."""
    share: int = 1
    """Groups that a generator takes at once, and hands in together."""

    def pauses(self, generator: int, have: int, newest: int) -> list[tuple[str, float]]:
        """What ``generator`` stops for when it goes from version ``have`` to ``newest``: (kind, seconds)."""
        pauses = [("pull", self.load.get(newest, 0.0))]
        if generator == 0:
            pauses += [("evaluate", s) for version, s in self.evaluate.items() if have < version <= newest]
        return pauses
