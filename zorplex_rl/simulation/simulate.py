"""Simulate asynchronous training event by event.

    generators   take the next share of a step's groups from the replay buffer, sample it, return it
    trainer      takes a batch as soon as the replay buffer has one, trains on it, publishes a version
    weights      are sent to the generators, one version after another; meanwhile generators sample

``ReplayBuffer`` of the real system decides which groups may start and which are trained on; only
the latencies are simulated. The result is a ``Timeline``, the same type as for a real run.

>>> setting = Setting(variation=0, sync_seconds=0.5)  # 4 generators, 6 steps of 8 groups
>>> simulate_async(setting, setting.latencies()).seconds  # 0.5 + 2 + 2, then two steps per round
15.5
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.setting import Latencies, Setting


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of a simulated run."""

    timeline: Timeline
    """What every actor did when."""
    seconds: float
    """Wall time from the start until the last step is trained."""
    staleness: dict[int, int]
    """Number of groups that were trained on at each lag in versions."""


def simulate_async(setting: Setting, latencies: Latencies) -> SimulatedRun:
    """Simulate generators beside the trainer, within ``max_lag``. ``setting``: counts and lag."""
    return _Async(setting, latencies).run()


@dataclass(slots=True)
class _Generator:
    """One simulated generator, and its share of a step."""

    number: int
    version: int = -1
    """The weights that it samples its share with."""
    is_idle: bool = True
    begun: list[int] = field(default_factory=list)
    """Groups of its share that it has begun or finished."""
    to_come: list[int] = field(default_factory=list)
    """Groups of its share that it has not begun."""


class _Async:
    """Process events in time order; equal times are all applied before any actor acts."""

    def __init__(self, setting: Setting, latencies: Latencies) -> None:
        self.setting = setting
        self.latencies = latencies
        groups = setting.groups_per_step
        self.buffer = ReplayBuffer(groups, setting.max_lag, groups * setting.steps)
        self.generators = [_Generator(number) for number in range(setting.generators)]
        self.newest = -1
        self.refused = (-1, -1)
        self.link_free = 0.0
        self.training = False
        self.finished = 0.0
        self.spans = Spans()
        self.staleness = Counter[int]()
        self.sampled_with: dict[int, int] = {}
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers = count()

    def run(self) -> SimulatedRun:
        self.publish(0, 0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, apply = heapq.heappop(self.events)
                apply(now)
            self.train(now)
            self.generate(now)
        return SimulatedRun(
            timeline=self.spans.timeline(self.setting, self.finished),
            seconds=self.finished,
            staleness=dict(sorted(self.staleness.items())),
        )

    def at(self, time: float, event: Callable[[float], None]) -> None:
        """Schedule the call ``event(time)``; of events at the same time the first one comes first."""
        heapq.heappush(self.events, (time, next(self.numbers), event))

    def train(self, now: float) -> None:
        """Start a training step if the trainer is free and the buffer has a batch."""
        if self.training:
            return
        version = self.buffer.version
        batch = self.buffer.take()
        if batch is None:
            return
        self.training = True
        self.staleness.update(version - self.sampled_with[group] for group in batch)
        end = self.spans.add(
            "trainer",
            "train",
            now,
            self.latencies.train[version],
            step=version,
            groups=batch,
        )
        self.at(end, partial(self.publish, version + 1))

    def publish(self, version: int, now: float) -> None:
        """Send ``version`` after those before it have arrived; a run's last one is not sent."""
        self.training = False
        if version == self.setting.steps:
            self.finished = now
            return
        self.link_free = self.spans.add(
            "weights",
            "publish",
            max(now, self.link_free),
            self.latencies.transfer[version],
            version=version,
        )
        self.at(self.link_free, partial(self.arrive, version))

    def arrive(self, version: int, now: float) -> None:
        """Note that the generators have ``version``."""
        self.newest = version

    def generate(self, now: float) -> None:
        """Give idle generators work: the next group of their share, or a new share."""
        if self.newest < 0:
            return
        for generator in self.generators:
            if not generator.is_idle:
                continue
            if not generator.to_come:
                generator.version = self.newest
                generator.to_come = self.admit()
            if generator.to_come:
                self.sample(generator, now)

    def admit(self) -> list[int]:
        """Return the groups of a share that the newest weights may sample, none if there is none."""
        versions = (self.newest, self.buffer.version)
        if versions == self.refused:  # It would be refused again.
            return []
        most = min(self.setting.share, self.buffer.left_of_step)
        share = self.buffer.admit(self.newest, most)
        if not share:
            self.refused = versions
        return share

    def sample(self, generator: _Generator, now: float) -> None:
        """Sample the next group of the generator's share."""
        group = generator.to_come.pop(0)
        end = self.spans.add(
            name_of(generator.number),
            "generate",
            now,
            self.latencies.generate[group],
            group=group,
            version=generator.version,
        )
        generator.begun.append(group)
        generator.is_idle = False
        self.at(end, partial(self.sampled, generator))

    def sampled(self, generator: _Generator, now: float) -> None:
        """Note that ``generator`` has sampled a group. After the last one it returns its share."""
        generator.is_idle = True
        if not generator.to_come:
            for group in generator.begun:
                self.sampled_with[group] = generator.version
                self.buffer.add(group, generator.version)
            generator.begun = []


class Spans(list[Span]):
    """Collect spans in the order in which they are scheduled."""

    def add(
        self,
        actor: str,
        kind: str,
        start: float,
        seconds: float,
        **args: int | list[int],
    ) -> float:
        """Add a span unless its length is 0. Returns the time at which it ends."""
        end = start + seconds
        if seconds > 0:
            self.append(Span(actor, kind, start, end, args))
        return end

    def timeline(self, setting: Setting, end: float) -> Timeline:
        """Return the spans until ``end``, ordered by row: trainer, weights, generators."""
        actors = ["trainer", "weights"]
        actors += [name_of(generator) for generator in range(setting.generators)]
        rows = {actor: row for row, actor in enumerate(actors)}
        timeline = Timeline(self).between(0.0, end)
        timeline.spans.sort(key=lambda span: (rows[span.actor], span.start))
        return timeline


def name_of(generator: int) -> str:
    """Return the row of ``generator`` in the timeline."""
    return f"generator_{generator}"
