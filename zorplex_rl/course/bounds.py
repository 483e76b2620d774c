"""Compute how fast a run can be at best: lower bounds on its wall time.

A step trains on P groups, G generators sample them, and L is the lag bound. A_v is the time at
which version v has arrived at the generators. E_v is the time at which step v is trained and
published. In every possible order of events,

    A_v ≥ max(A_{v−1}, E_{v−1}) + transfer_v    versions are sent one after another
    E_v ≥ E_{v−1} + train_v                     there is one trainer
    E_v ≥ A_{v−L} + β_v + train_v               (A_0 where v < L)
    E_v ≥ A_0     + γ_v + train_v

Why the last two hold: when step v begins, (v + 1)P groups are finished. At most vP of them have
numbers below vP, so at least P have higher numbers, and the replay buffer admits those only after
version v − L has arrived. β_v is the least time in which G generators finish P of the groups in
blocks v … v + L. γ_v is the least time in which they finish (v + 1)P of the groups in blocks 0 … v +
L. The n quickest groups take at least the largest of these three: the sum of all ÷ G; the slowest
one; the sum of the quickest ⌈n ÷ G⌉, because some generator samples at least that many.

The recursion along one resource, or around the loop of all three, gives the four named bounds. It is
exact without variation, and if G divides P (``tests/closed_form.py``). In the long run a step then
takes max(b, t, s, (s + b + t) / (L + 1)) for b = P/G · generation, t = training and s = weight sync.

>>> setting = Setting(variation=0, sync_seconds=0.5)
>>> lower_bounds(setting, setting.latencies(), "async")
Bounds(trainer=14.5, generators=14.5, weights=6.5, round_trips=15.5, all=15.5)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zorplex_rl.simulation.setting import Latencies, Setting

Mode = Literal["sync", "async"]
RESOURCES = ("trainer", "generators", "weights", "round_trips")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on a run's seconds, from one resource each; ``all`` is the tightest."""

    trainer: float
    """Sample the first batch, then train step after step without a pause."""
    generators: float
    """Sample all groups with no generator ever idle, then train the last step."""
    weights: float
    """Send the last batch's versions one after another, sample the batch, train on it."""
    round_trips: float
    """Sync weights, sample and train one after another, once in every lag + 1 steps."""
    all: float
    """The whole recursion: at least as large as each of the four."""

    @property
    def binding(self) -> str:
        """Return the name of the largest of the four: the resource that limits the run."""
        return max(RESOURCES, key=lambda name: getattr(self, name))


def lower_bounds(setting: Setting, latencies: Latencies, mode: Mode) -> Bounds:
    """Compute lower bounds on the wall time of a run with these ``latencies``. ``setting`` gives
    the counts and the lag bound; its latencies are ignored. Returns seconds."""
    lag = setting.max_lag if mode == "async" else 0
    steps = setting.steps
    train = latencies.train
    transfer = latencies.transfer
    batch, so_far = _generation_seconds(setting, latencies, lag)
    first = transfer[0]
    arrived = [first]
    trained: list[float] = []
    round_trips: list[float] = []
    for step in range(steps):
        begin = max(
            arrived[max(step - lag, 0)] + batch[step],
            first + so_far[step],
            trained[-1] if trained else 0.0,
        )
        trained.append(begin + train[step])
        if step + 1 < steps:
            departure = max(arrived[-1], trained[-1])
            arrived.append(departure + transfer[step + 1])
        if step <= lag:
            round_trips.append(first + batch[0] + sum(train[: step + 1]))
        else:
            before = round_trips[step - lag - 1]
            round_trips.append(before + transfer[step - lag] + batch[step] + train[step])
    sent = transfer[: max(steps - lag, 1)]
    return Bounds(
        trainer=first + batch[0] + sum(train),
        generators=first + so_far[-1] + train[-1],
        weights=sum(sent) + batch[-1] + train[-1],
        round_trips=round_trips[-1],
        all=trained[-1],
    )


def _generation_seconds(
    setting: Setting, latencies: Latencies, lag: int
) -> tuple[list[float], list[float]]:
    """Return β_v and γ_v of every step."""
    per_step = setting.groups_per_step
    batch: list[float] = []
    so_far: list[float] = []
    for step in range(setting.steps):
        first = step * per_step
        admitted = latencies.generate[: first + (lag + 1) * per_step]
        batch.append(_least_seconds(admitted[first:], per_step, setting.generators))
        so_far.append(_least_seconds(admitted, first + per_step, setting.generators))
    return batch, so_far


def _least_seconds(groups: Sequence[float], count: int, generators: int) -> float:
    """Return a bound on the seconds in which ``count`` of ``groups`` are sampled."""
    quickest = sorted(groups)[:count]
    share = math.ceil(len(quickest) / generators)
    return max(
        math.fsum(quickest) / generators,
        quickest[-1],
        math.fsum(quickest[:share]),
    )
