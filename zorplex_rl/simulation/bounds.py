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
blocks v … v + L, γ_v that in which they finish (v + 1)P of the groups in blocks 0 … v + L. The n
quickest take at least the largest of: the sum of all ÷ G; the slowest; the sum of the quickest ⌈n ÷
G⌉, because some generator samples as many.

The recursion along one resource, or around the loop of all three, gives the four named bounds. It is
exact without variation, and if G divides P (``tests/closed_form.py``). In the long run a step then
takes max(b, t, s, (s + b + t) / (L + 1)) for b = P/G · generation, t = training and s = weight sync.

>>> setting = Setting(generators=4, steps=6, generation_seconds=1, variation=0, training_seconds=2, sync_seconds=0.5)
>>> lower_bounds(setting, setting.latencies(), "async")
Bounds(trainer=14.5, generators=14.5, weights=6.5, round_trips=15.5, all=15.5)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zorplex_rl.simulation.setting import Latencies, Setting

Mode = Literal["sync", "async"]


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
        return max(("trainer", "generators", "weights", "round_trips"), key=lambda name: getattr(self, name))


def lower_bounds(setting: Setting, latencies: Latencies, mode: Mode) -> Bounds:
    """Compute lower bounds on the wall time of a run with these ``latencies``. ``setting`` gives
    the counts and the lag bound; its latencies are ignored. Returns seconds."""
    lag, steps = setting.max_lag if mode == "async" else 0, setting.steps
    per_step = setting.groups_per_step
    train, transfer = latencies.train, latencies.transfer

    def least(count: int, first_block: int, last_block: int) -> float:
        pool = latencies.generate[first_block * per_step : (last_block + 1) * per_step]
        return _least_seconds(sorted(pool)[:count], setting.generators)

    batch = [least(per_step, step, step + lag) for step in range(steps)]
    so_far = [least((step + 1) * per_step, 0, step + lag) for step in range(steps)]
    arrived: list[float] = [transfer[0]]
    trained: list[float] = []
    round_trips: list[float] = []
    for step in range(steps):
        arrival = arrived[max(step - lag, 0)]
        begin = max(arrival + batch[step], arrived[0] + so_far[step], trained[-1] if trained else 0.0)
        trained.append(begin + train[step])
        if step + 1 < steps:
            arrived.append(max(arrived[-1], trained[-1]) + transfer[step + 1])
        if step <= lag:
            round_trips.append(arrived[0] + batch[0] + sum(train[: step + 1]))
        else:
            round_trips.append(round_trips[step - lag - 1] + transfer[step - lag] + batch[step] + train[step])
    return Bounds(
        trainer=transfer[0] + batch[0] + sum(train),
        generators=transfer[0] + so_far[-1] + train[-1],
        weights=sum(transfer[: max(steps - lag, 1)]) + batch[-1] + train[-1],
        round_trips=round_trips[-1],
        all=trained[-1],
    )


def _least_seconds(quickest: Sequence[float], generators: int) -> float:
    """Return a bound on the seconds of groups of ``quickest`` seconds (ascending)."""
    share = math.ceil(len(quickest) / generators)
    return max(math.fsum(quickest) / generators, quickest[-1], math.fsum(quickest[:share]))
