"""What a run would take: synchronous and asynchronous training, simulated event by event.

    generators   take the next share of a step's groups, sample it, take the next; start none that the replay buffer does not admit
    trainer      takes a batch as soon as the replay buffer has one, trains, publishes
    weights      travel to the generators, one version after another, while those go on sampling

Who may start and what is trained on is not modelled: it is ``ReplayBuffer``, the one of the real system. What comes out is a ``Timeline``,
as of a real run. ``bounds.py`` says how fast a run can be at best; ``recorded.py`` feeds in the latencies of a run that was.

Asynchronous training is never slower than synchronous training on the same latencies. By induction over the steps: when synchronous training takes
batch v, asynchronous training has finished all groups below (v + 1)P too, because none of them was admitted, begun or supplied with weights later;
and with these the replay buffer gives out a batch, v + 1 being the number of batches it has then given. Both cut a step's groups into the same
shares: a share with groups of two steps would hand in the first of them only with the second. One latency is left out: ``turnaround``, the trainer's
bookkeeping, is part of the transfer in a synchronous run, and only in an asynchronous one can it stand in the way by itself.

>>> setting = Setting(generators=4, steps=6, generation_seconds=1, variation=0, training_seconds=2, sync_seconds=0.5)
>>> both = compare(setting)
>>> both.sync.seconds, both.asynchronous.seconds  # six rounds of 0.5 + 2 + 2 seconds; two steps in each round, but for the first
(27.0, 15.5)
>>> both.asynchronous.staleness
{0: 8, 1: 40}
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from zorplex_rl.analysis.setting import Latencies, Setting
from zorplex_rl.analysis.timeline import Span, Timeline
from zorplex_rl.learning.replay import ReplayBuffer


@dataclass(frozen=True, slots=True)
class Run:
    """What came out: when everything happened, and how old the weights were that had sampled what was trained on."""

    timeline: Timeline
    seconds: float
    """From the start until the last step is trained."""
    staleness: dict[int, int]
    """Lag in versions → groups trained on at that lag."""

    def utilisation(self) -> dict[str, float]:
        """The share of the whole time that each row of the timeline was busy."""
        busy = dict.fromkeys(self.timeline.actors, 0.0)
        for span in self.timeline.spans:
            busy[span.actor] += span.end - span.start
        return {actor: seconds / self.seconds if self.seconds else 0.0 for actor, seconds in busy.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both modes on the same latencies and the same number of groups."""

    sync: Run
    asynchronous: Run

    @property
    def speed_up(self) -> float:
        return self.sync.seconds / self.asynchronous.seconds if self.asynchronous.seconds else 1.0


def compare(setting: Setting) -> Comparison:
    """Simulate ``setting`` in both modes."""
    latencies = setting.latencies()
    return Comparison(simulate_sync(setting, latencies), simulate_async(setting, latencies))


def simulate_sync(setting: Setting, latencies: Latencies) -> Run:
    """In turns: the weights travel, a whole batch is sampled, the trainer trains on it; again. ``setting`` gives the shape."""
    spans, details, groups = _Spans(), latencies.details, setting.groups_per_step
    now = 0.0
    for step in range(setting.steps):
        arrived = spans.add("weights", "publish", now, latencies.transfer[step], version=step)
        begin = arrived
        for generator in range(setting.generators):
            end = arrived
            for kind, seconds in details.pauses(generator, step - 1, step):
                end = spans.add(_name(generator), kind, end, seconds, version=step)
            begin = max(begin, end)
        begin += details.start
        free = [(begin, generator) for generator in range(setting.generators)]
        complete = 0.0
        for first in range(step * groups, (step + 1) * groups, details.share):
            began, generator = heapq.heappop(free)
            end = began
            for group in range(first, min(first + details.share, (step + 1) * groups)):
                end = spans.add(_name(generator), "generate", end, latencies.generate[group], group=group, version=step)
                complete = max(complete, end, began + details.latency.get(group, 0.0))
            heapq.heappush(free, (end, generator))
        now = spans.add("trainer", "train", complete + details.deliver, latencies.train[step], step=step)
    return Run(spans.timeline(setting, now), now, {0: setting.steps * groups})


def simulate_async(setting: Setting, latencies: Latencies) -> Run:
    """Side by side, within ``setting.max_lag``. ``setting`` gives the shape."""
    return _Async(setting, latencies).run()


@dataclass(slots=True)
class _Generator:
    number: int
    version: int = -1
    idle_since: float | None = -1.0
    """None while it is at work."""
    admitted: list[int] = field(default_factory=list)
    """Groups of its share that it has not begun."""
    begun: list[int] = field(default_factory=list)
    """Groups of its share that it has begun."""
    began: float = 0.0
    """When it began with its share."""
    ready: float = 0.0
    """When all that it has begun of its share is finished."""


class _Async:
    """Events in the order of their times. All that happen at one time are taken in before anybody decides what to do next."""

    def __init__(self, setting: Setting, latencies: Latencies) -> None:
        self.setting, self.latencies, self.details = setting, latencies, latencies.details
        groups = setting.groups_per_step
        self.buffer: ReplayBuffer[int] = ReplayBuffer(groups, setting.max_lag, groups * setting.steps)
        self.generators = [_Generator(number) for number in range(setting.generators)]
        self.newest, self.link_free, self.training, self.finished = -1, 0.0, False, 0.0
        self.spans, self.staleness = _Spans(), Counter[int]()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = count()

    def run(self) -> Run:
        self.publish(0, 0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                heapq.heappop(self.events)[2](now)
            self.train(now)
            self.generate(now)
        timeline = self.spans.timeline(self.setting, self.finished)
        return Run(timeline, self.finished, dict(sorted(self.staleness.items())))

    def at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), what))

    def train(self, now: float) -> None:
        """The trainer, if it is free, takes a batch, if there is one."""
        version = self.buffer.version
        if self.training or (batch := self.buffer.take()) is None:
            return
        self.training = True
        self.staleness.update(version - sampled_with for _, sampled_with in batch)
        end = self.spans.add("trainer", "train", now, self.latencies.train[version], step=version)
        self.at(end, lambda now: self.publish(version + 1, now))
        self.at(end + self.details.turnaround, lambda now: setattr(self, "training", False))

    def publish(self, version: int, now: float) -> None:
        """A version sets off as soon as those before it have arrived. The last one of a run is for nobody."""
        if version == self.setting.steps:
            self.finished = now
            return
        start, seconds = max(now, self.link_free), self.latencies.transfer[version]
        self.link_free = self.spans.add("weights", "publish", start, seconds, version=version)
        self.at(self.link_free, lambda now: setattr(self, "newest", version))

    def generate(self, now: float) -> None:
        """Every idle generator samples the next group of its share; after the last, it takes over newer weights, then what the buffer admits."""
        for generator in self.generators:
            if generator.idle_since is None or self.newest < 0:
                continue
            if not generator.admitted:
                if self.load(generator, now):
                    continue
                share = min(self.details.share, self.buffer.left_of_step)
                generator.admitted = self.buffer.admit(generator.version, share)
                generator.began = generator.ready = now
            if generator.admitted:  # What this one is refused, another may have been given before, and not yet begun.
                self.sample(generator, now)

    def load(self, generator: _Generator, now: float) -> bool:
        """Whether there are newer weights, and ``generator`` has to stop for them."""
        if generator.version == self.newest:
            return False
        end = now
        for kind, seconds in self.details.pauses(generator.number, generator.version, self.newest):
            end = self.spans.add(_name(generator.number), kind, end, seconds, version=self.newest)
        if generator.idle_since < now:
            end += self.details.start
        generator.version = self.newest
        if end > now:
            self.keep_busy(generator, end)
        return end > now

    def sample(self, generator: _Generator, now: float) -> None:
        """Sample the next group of the share; with its last one, the share is on its way to the replay buffer."""
        group, version = generator.admitted.pop(0), generator.version
        seconds = self.latencies.generate[group]
        end = self.spans.add(_name(generator.number), "generate", now, seconds, group=group, version=version)
        generator.begun.append(group)
        generator.ready = max(generator.ready, end, generator.began + self.details.latency.get(group, 0.0))
        if not generator.admitted:
            share, generator.begun = generator.begun, []
            self.at(generator.ready + self.details.deliver, lambda now: self.hand_in(share, version))
        self.keep_busy(generator, end)

    def hand_in(self, share: list[int], version: int) -> None:
        for group in share:
            self.buffer.add(group, version, version)

    def keep_busy(self, generator: _Generator, until: float) -> None:
        generator.idle_since = None
        self.at(until, lambda now: setattr(generator, "idle_since", now))


class _Spans(list[Span]):
    """Spans as they come up."""

    def add(self, actor: str, kind: str, start: float, seconds: float, **args: int) -> float:
        """Add a span, unless it has no length; where it ends."""
        if seconds > 0:
            self.append(Span(actor, kind, start, start + seconds, args))
        return start + seconds

    def timeline(self, setting: Setting, end: float) -> Timeline:
        """What happened until ``end``, by row: the trainer, the weights on their way, the generators."""
        rows = {name: row for row, name in enumerate(["trainer", "weights", *map(_name, range(setting.generators))])}
        return Timeline(sorted(Timeline(self).between(0.0, end).spans, key=lambda span: (rows[span.actor], span.start)))


def _name(generator: int) -> str:
    return f"generator_{generator}"
