"""Simulate synchronous and asynchronous training event by event.

    generators   take the next share of a step's groups from the replay buffer, sample it, hand it in, take the next
    trainer      takes a batch as soon as the replay buffer has one, trains on it, publishes the new version
    weights      are sent to the generators, one version after another, while the generators continue to sample

``ReplayBuffer`` of the real system decides which groups may start and which are trained on; only
the latencies are simulated. The result is a ``Timeline``, the same type as for a real run.

Asynchronous training is never slower than synchronous training on the same latencies. By induction:
when synchronous training takes batch v, asynchronous training has also finished all groups below
(v + 1)P, because it admitted, began and supplied none of them with weights later. Two conditions:
both cut a step's groups into the same shares, and ``turnaround`` is 0.

>>> both = compare(Setting(generators=4, generation_seconds=1, variation=0, training_seconds=2, sync_seconds=0.5))
>>> both.sync.seconds, both.asynchronous.seconds  # sync: six rounds of 0.5 + 2 + 2 seconds; async: two steps per round after the first
(27.0, 15.5)
"""

import heapq
from collections import Counter, deque
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
        begin = arrived
        for generator in range(setting.generators):
            end = arrived
            for kind, seconds in latencies.pauses(generator, step - 1, step):
                end = spans.add(_name(generator), kind, end, seconds, version=step)
            begin = max(begin, end)
        begin += latencies.start
        free = [(begin, generator) for generator in range(setting.generators)]
        complete = 0.0
        for first in range(step * groups, (step + 1) * groups, latencies.share):
            began, generator = heapq.heappop(free)
            end = began
            for group in range(first, min(first + latencies.share, (step + 1) * groups)):
                end = spans.add(_name(generator), "generate", end, latencies.generate[group], group=group, version=step)
                complete = max(complete, end, began + latencies.latency.get(group, 0.0))
            heapq.heappush(free, (end, generator))
        batch = list(range(step * groups, (step + 1) * groups))
        complete += latencies.deliver
        now = spans.add("trainer", "train", complete, latencies.train[step], step=step, groups=batch)
    return SimulatedRun(spans.timeline(setting, now), now, {0: setting.steps * groups})


def simulate_async(setting: Setting, latencies: Latencies) -> SimulatedRun:
    """Simulate generators beside the trainer, within ``max_lag``. ``setting``: counts and lag."""
    return _Async(setting, latencies).run()


@dataclass(slots=True)
class _Generator:
    """One simulated generator. ``idle_since`` is None while it is busy. ``queue`` holds the shares that
    it has taken ahead, ``admitted`` and ``begun`` the groups of its share that it has not begun and
    has. It ``began`` its share then, and will have finished it when it is ``ready``, all shares when
    it is ``done``."""

    number: int
    version: int = -1
    idle_since: float | None = -1.0
    queue: deque[list[int]] = field(default_factory=deque)
    admitted: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    began: float = 0.0
    ready: float = 0.0
    done: float = 0.0


class _Async:
    """Process events in time order; equal times are all applied before any actor acts."""

    def __init__(self, setting: Setting, latencies: Latencies) -> None:
        self.setting, self.latencies = setting, latencies
        groups = setting.groups_per_step
        self.buffer = ReplayBuffer[int](groups, setting.max_lag, groups * setting.steps)
        self.generators = [_Generator(number) for number in range(setting.generators)]
        self.newest = -1
        self.refused = (-1, -1)
        self.link_free = 0.0
        self.training = False
        self.finished = 0.0
        self.spans = _Spans()
        self.staleness = Counter[int]()
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
        self.staleness.update(version - sampled_with for _, sampled_with in batch)
        taken = [group for group, _ in batch]
        end = self.spans.add("trainer", "train", now, self.latencies.train[version], step=version, groups=taken)
        self.at(end, lambda now: self.publish(version + 1, now))
        self.at(end + self.latencies.turnaround, lambda now: setattr(self, "training", False))

    def publish(self, version: int, now: float) -> None:
        """Send ``version`` after those before it have arrived; a run's last one is not sent."""
        if version == self.setting.steps:
            self.finished = now
            return
        start, seconds = max(now, self.link_free), self.latencies.transfer[version]
        self.link_free = self.spans.add("weights", "publish", start, seconds, version=version)
        self.at(self.link_free, lambda now: setattr(self, "newest", version))

    def generate(self, now: float) -> None:
        """Give idle generators work: their share's next group, newer weights, or a new share."""
        for generator in self.generators:
            if generator.idle_since is None or self.newest < 0:
                continue
            if not generator.admitted:
                if not generator.queue:
                    if self.latencies.ahead and generator.version != self.newest and generator.done > now:
                        self.keep_busy(generator, generator.done)
                        continue
                    if self.load(generator, now):
                        continue
                generator.admitted = generator.queue.popleft() if generator.queue else self.admit(generator)
                generator.began = generator.ready = now
            if generator.admitted:
                self.sample(generator, now)
        takers = [taker for taker in self.generators if self.latencies.ahead and taker.version == self.newest]
        while shares := [(taker, share) for taker in takers if (share := self.admit(taker))]:
            for taker, share in shares:
                taker.queue.append(share)

    def admit(self, generator: _Generator) -> list[int]:
        """Return the groups of a share that ``generator`` may sample, none if there is none."""
        versions = generator.version, self.buffer.version
        if versions == self.refused:  # It would be refused again.
            return []
        share = self.buffer.admit(generator.version, min(self.latencies.share, self.buffer.left_of_step))
        self.refused = self.refused if share else versions
        return share

    def load(self, generator: _Generator, now: float) -> bool:
        """Load the newest weights if ``generator`` lacks them. Returns True if that takes time."""
        if generator.version == self.newest:
            return False
        end = now
        for kind, seconds in self.latencies.pauses(generator.number, generator.version, self.newest):
            end = self.spans.add(_name(generator.number), kind, end, seconds, version=self.newest)
        if generator.idle_since is not None and generator.idle_since < now:
            end += self.latencies.start
        generator.version = self.newest
        if end > now:
            self.keep_busy(generator, end)
        return end > now

    def sample(self, generator: _Generator, now: float) -> None:
        """Sample the share's next group; after the last one, schedule the share's hand-in."""
        group, version = generator.admitted.pop(0), generator.version
        seconds = self.latencies.generate[group]
        end = self.spans.add(_name(generator.number), "generate", now, seconds, group=group, version=version)
        generator.begun.append(group)
        generator.ready = max(generator.ready, end, generator.began + self.latencies.latency.get(group, 0.0))
        if not generator.admitted:
            generator.done = max(generator.done, generator.ready)
            share, generator.begun = generator.begun, []
            self.at(generator.ready + self.latencies.deliver, lambda now: self.hand_in(share, version))
        self.keep_busy(generator, end)

    def hand_in(self, share: list[int], version: int) -> None:
        """Add the groups of ``share``, sampled with ``version``, to the replay buffer."""
        for group in share:
            self.buffer.add(group, version, version)

    def keep_busy(self, generator: _Generator, until: float) -> None:
        """Mark ``generator`` as busy until the time ``until``."""
        generator.idle_since = None
        self.at(until, lambda now: setattr(generator, "idle_since", now))


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
