"""Compare synchronous with asynchronous training, both simulated on the same latencies.

    synchronous     all in turns: send weights, sample a batch, train      simulate_sync
    asynchronous    generators sample beside the trainer                   simulation/simulate.py

Asynchronous training is never slower than synchronous training on the same latencies. The proof is
by induction. When synchronous training takes batch v, asynchronous training has also finished all
groups below (v + 1)P, because it admitted, began and supplied with weights none of them later. Both
cut a step's groups into the same shares.

>>> both = compare(Setting(variation=0, sync_seconds=0.5))  # 4 generators, 6 steps of 8 groups
>>> both.sync.seconds  # six rounds of 0.5 + 2 + 2 seconds
27.0
>>> both.asynchronous.seconds  # two steps per round after the first
15.5
"""

import heapq
from dataclasses import dataclass

from zorplex_rl.simulation.setting import Latencies, Setting
from zorplex_rl.simulation.simulate import SimulatedRun, Spans, name_of, simulate_async


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs on the same latencies and the same groups."""

    sync: SimulatedRun
    asynchronous: SimulatedRun

    @property
    def speed_up(self) -> float:
        """Return the synchronous wall time ÷ the asynchronous one."""
        if not self.asynchronous.seconds:
            return 1.0
        return self.sync.seconds / self.asynchronous.seconds


def compare(setting: Setting) -> Comparison:
    """Simulate ``setting`` in both modes."""
    latencies = setting.latencies()
    return Comparison(simulate_sync(setting, latencies), simulate_async(setting, latencies))


def simulate_sync(setting: Setting, latencies: Latencies) -> SimulatedRun:
    """Simulate steps in turns: send weights, sample a batch, train. ``setting``: counts only."""
    spans = Spans()
    groups = setting.groups_per_step
    now = 0.0
    for step in range(setting.steps):
        arrived = spans.add(
            "weights",
            "publish",
            now,
            latencies.transfer[step],
            version=step,
        )
        batch = range(step * groups, (step + 1) * groups)
        # Each generator, and when it is free. The first one takes the next share.
        free = [(arrived, generator) for generator in range(setting.generators)]
        for first in batch[:: setting.share]:
            end, generator = heapq.heappop(free)
            last = min(first + setting.share, batch.stop)
            for group in range(first, last):
                end = spans.add(
                    name_of(generator),
                    "generate",
                    end,
                    latencies.generate[group],
                    group=group,
                    version=step,
                )
            heapq.heappush(free, (end, generator))
        sampled, _ = max(free)
        now = spans.add(
            "trainer",
            "train",
            sampled,
            latencies.train[step],
            step=step,
            groups=list(batch),
        )
    staleness = {0: setting.steps * groups}
    return SimulatedRun(spans.timeline(setting, now), now, staleness)


def utilisation(run: SimulatedRun) -> dict[str, float]:
    """Return for each actor the share of the wall time, 0 to 1, in which it was busy."""
    whole = (0.0, run.seconds)
    return {actor: run.timeline.busy_share(actor, whole) for actor in run.timeline.actors}
