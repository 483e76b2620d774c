"""Simulate synchronous and asynchronous training event by event.

    generators   take the next share of a step's groups from the replay buffer, sample it, hand it in, take the next
    trainer      takes a batch as soon as the replay buffer has one, trains on it, publishes the new version
    weights      are sent to the generators, one version after another, while the generators continue to sample

``ReplayBuffer`` of the real system decides which groups may start and which are trained on; only
the latencies are simulated. The result is a ``Timeline``, the same type as for a real run.

Asynchronous training is never slower than synchronous training on the same latencies. By induction:
when synchronous training takes batch v, asynchronous training has also finished all groups below
(v + 1)P, because it admitted, began and supplied none of them with weights later. Both cut a step's
groups into the same shares.

>>> both = compare(Setting(generators=4, generation_seconds=1, variation=0, training_seconds=2, sync_seconds=0.5))
>>> both.sync.seconds, both.asynchronous.seconds  # sync: six rounds of 0.5 + 2 + 2 seconds; async: two steps per round after the first
(27.0, 15.5)
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.setting import Latencies, Setting


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of a simulated run."""

    timeline: Timeline
    seconds: float  # wall time from the start until the last step is trained
    staleness: dict[int, int]  # lag in versions → number of groups trained on at that lag

    def utilisation(self) -> dict[str, float]:
        """Return for each actor the share of the wall time, 0 to 1, in which it was busy."""
        return {actor: self.timeline.busy_share(actor, (0.0, self.seconds)) for actor in self.timeline.actors}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs on the same latencies and the same groups."""

    sync: SimulatedRun
    asynchronous: SimulatedRun

    @property
    def speed_up(self) -> float:
        """Return the synchronous wall time ÷ the asynchronous one."""
        return self.sync.seconds / self.asynchronous.seconds if self.asynchronous.seconds else 1.0


def compare(setting: Setting) -> Comparison:
    """Simulate ``setting`` in both modes."""
    latencies = setting.latencies()
    return Comparison(simulate_sync(setting, latencies), simulate_async(setting, latencies))


def simulate_sync(setting: Setting, latencies: Latencies) -> SimulatedRun:
    """Simulate steps in turns: send weights, sample a batch, train. ``setting``: counts only."""
    spans, groups = _Spans(), setting.groups_per_step
    now = 0.0
    for step in range(setting.steps):
        arrived = spans.add("weights", "publish", now, latencies.transfer[step], version=step)
        free = [(arrived, generator) for generator in range(setting.generators)]
        batch = range(step * groups, (step + 1) * groups)
        for first in batch[:: setting.share]:
            end, generator = heapq.heappop(free)
            for group in range(first, min(first + setting.share, batch.stop)):
                end = spans.add(_name(generator), "generate", end, latencies.generate[group], group=group, version=step)
            heapq.heappush(free, (end, generator))
        now = spans.add("trainer", "train", max(free)[0], latencies.train[step], step=step, groups=list(batch))
    return SimulatedRun(spans.timeline(setting, now), now, {0: setting.steps * groups})


def simulate_async(setting: Setting, latencies: Latencies) -> SimulatedRun:
    """Simulate generators beside the trainer, within ``max_lag``. ``setting``: counts and lag."""
    return _Async(setting, latencies).run()


@dataclass(slots=True)
class _Generator:
    """One simulated generator, with the groups of its share that it has begun, and those to come."""

    number: int
    version: int = -1
    is_idle: bool = True
    begun: list[int] = field(default_factory=list)
    to_come: list[int] = field(default_factory=list)


class _Async:
    """Process events in time order; equal times are all applied before any actor acts."""

    def __init__(self, setting: Setting, latencies: Latencies) -> None:
        self.setting, self.latencies = setting, latencies
        groups = setting.groups_per_step
        self.buffer = ReplayBuffer(groups, setting.max_lag, groups * setting.steps)
        self.generators = [_Generator(number) for number in range(setting.generators)]
        self.newest = -1
        self.refused = (-1, -1)
        self.link_free = 0.0
        self.training = False
        self.finished = 0.0
        self.spans = _Spans()
        self.staleness = Counter[int]()
        self.sampled_with: dict[int, int] = {}
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers = count()

    def run(self) -> SimulatedRun:
        self.publish(0, 0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                heapq.heappop(self.events)[2](now)
            self.train(now)
            self.generate(now)
        timeline = self.spans.timeline(self.setting, self.finished)
        return SimulatedRun(timeline, self.finished, dict(sorted(self.staleness.items())))

    def at(self, time: float, what: Callable[[float], None]) -> None:
        """Schedule the call ``what(time)``."""
        heapq.heappush(self.events, (time, next(self.numbers), what))

    def train(self, now: float) -> None:
        """Start a training step if the trainer is free and the buffer has a batch."""
        version = self.buffer.version
        if self.training or (batch := self.buffer.take()) is None:
            return
        self.training = True
        self.staleness.update(version - self.sampled_with[group] for group in batch)
        end = self.spans.add("trainer", "train", now, self.latencies.train[version], step=version, groups=batch)
        self.at(end, lambda now: self.publish(version + 1, now))

    def publish(self, version: int, now: float) -> None:
        """Send ``version`` after those before it have arrived; a run's last one is not sent."""
        self.training = False
        if version == self.setting.steps:
            self.finished = now
            return
        start, seconds = max(now, self.link_free), self.latencies.transfer[version]
        self.link_free = self.spans.add("weights", "publish", start, seconds, version=version)
        self.at(self.link_free, lambda now: setattr(self, "newest", version))

    def generate(self, now: float) -> None:
        """Give idle generators work: the next group of their share, or a new share."""
        for generator in self.generators:
            if not generator.is_idle or self.newest < 0:
                continue
            if not generator.to_come:
                generator.version = self.newest
                generator.to_come = self.admit()
            if generator.to_come:
                self.sample(generator, now)

    def admit(self) -> list[int]:
        """Return the groups of a share that the newest weights may sample, none if there is none."""
        versions = self.newest, self.buffer.version
        if versions == self.refused:  # It would be refused again.
            return []
        share = self.buffer.admit(self.newest, min(self.setting.share, self.buffer.left_of_step))
        self.refused = self.refused if share else versions
        return share

    def sample(self, generator: _Generator, now: float) -> None:
        """Sample the share's next group; after the last one, hand the share in."""
        group, version = generator.to_come.pop(0), generator.version
        seconds = self.latencies.generate[group]
        end = self.spans.add(_name(generator.number), "generate", now, seconds, group=group, version=version)
        generator.begun.append(group)
        generator.is_idle = False
        self.at(end, lambda now: self.sampled(generator))

    def sampled(self, generator: _Generator) -> None:
        """Note that ``generator`` has sampled a group."""
        generator.is_idle = True
        if not generator.to_come:
            for group in generator.begun:
                self.sampled_with[group] = generator.version
                self.buffer.add(group, generator.version)
            generator.begun = []


class _Spans(list[Span]):
    """Collect spans in the order in which they are scheduled."""

    def add(self, actor: str, kind: str, start: float, seconds: float, **args: int | list[int]) -> float:
        """Add a span unless its length is 0. Returns the time at which it ends."""
        if seconds > 0:
            self.append(Span(actor, kind, start, start + seconds, args))
        return start + seconds

    def timeline(self, setting: Setting, end: float) -> Timeline:
        """Return the spans until ``end``, ordered by row: trainer, weights, generators."""
        rows = {name: row for row, name in enumerate(["trainer", "weights", *map(_name, range(setting.generators))])}
        return Timeline(sorted(Timeline(self).between(0.0, end).spans, key=lambda span: (rows[span.actor], span.start)))


def _name(generator: int) -> str:
    return f"generator_{generator}"
