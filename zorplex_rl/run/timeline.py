"""Record what every actor does when, as spans of wall time, and collect them into one timeline.

    in each actor's process                     in the controller
    SpanRecorder.span("pull")  ──┐
    SpanRecorder.span("train") ──┴─ drain() ──► Timeline.add ──► busy_share, between
                                                             └─► save: a trace for ui.perfetto.dev

Times are seconds of ``now``: the time of day when the process began, and from there on a clock that
only goes forward. Spans of different hosts can be compared as well as their clocks agree.

>>> timeline = Timeline()
>>> timeline.add([Span("generator 0", "generate", 10.0, 16.0), Span("generator 0", "pull", 15.0, 17.0)])
>>> timeline.add([Span("trainer", "idle", 10.0, 18.0), Span("trainer", "train", 18.0, 20.0, {"step": 1})])
>>> timeline.busy_share("generator 0")  # 7 of 10 seconds: the second in which both spans run counts once
0.7
>>> timeline.between(16.0, 19.0).spans[-1]
Span(actor='trainer', kind='train', start=18.0, end=19.0, args={'step': 1})
"""

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zorplex_rl.task.episode import Episode

KINDS = (
    "generate",
    "train",
    "publish",
    "pull",
    "tool",
    "evaluate",
    "reward",
    "checkpoint",
    "restart",
    "idle",
)
"""The kinds of work. Every kind except ``idle`` counts as busy."""
CAPACITY = 100_000
Window = tuple[float, float]
"""(start, end) in seconds on the clock of the spans."""
_OFFSET = time.time() - time.monotonic()


def now() -> float:
    """Return the present time of spans, in seconds."""
    return _OFFSET + time.monotonic()


@dataclass(frozen=True, slots=True)
class Span:
    """``actor`` did ``kind`` from ``start`` to ``end`` (seconds), with ``args``."""

    actor: str
    kind: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict, hash=False)


class SpanRecorder:
    """Record the spans of one actor, from any of its threads, until they are drained. Holds at most
    ``CAPACITY`` spans; one more drops the oldest.

    >>> recorder = SpanRecorder("trainer")
    >>> with recorder.span("train", step=3) as args:
    ...     args["loss"] = 0.25  # known only at the end of the span
    >>> [(span.kind, span.args) for span in recorder.drain()]
    [('train', {'step': 3, 'loss': 0.25})]
    >>> recorder.drain()
    []
    """

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self._spans: deque[Span] = deque(maxlen=CAPACITY)

    @contextmanager
    def span(self, kind: str, /, **args: Any) -> Iterator[dict[str, Any]]:
        """Record the body's time, also if it raises. Yields ``args``, for the body's entries."""
        start = now()
        try:
            yield args
        finally:
            self._spans.append(Span(self.actor, kind, start, now(), args))

    def drain(self) -> list[Span]:
        """Remove and return the spans that ended since the last drain, in that order."""
        # One at a time: other threads may append meanwhile.
        return [self._spans.popleft() for _ in range(len(self._spans))]


GroupLatency = tuple[int, int, float]
"""Of a group: number, version, seconds of its slowest episode."""


def group_latencies(episodes: Iterable[Episode]) -> list[GroupLatency]:
    """Return the latency of each group: the ``groups`` argument of a ``train`` span."""
    versions: dict[int, int] = {}
    slowest: dict[int, float] = {}
    for episode in episodes:
        group = episode.group
        version = versions.get(group, episode.first_version)
        versions[group] = min(version, episode.first_version)
        seconds = round(episode.seconds, 6)
        slowest[group] = max(slowest.get(group, 0.0), seconds)
    return [(group, versions[group], slowest[group]) for group in sorted(versions)]


@dataclass(slots=True)
class Timeline:
    """Hold the spans of all actors of one host, from a real run or a simulated one."""

    spans: list[Span] = field(default_factory=list)

    def add(self, spans: Iterable[Span]) -> None:
        self.spans.extend(spans)

    @property
    def actors(self) -> list[str]:
        """The names of the actors, in the order in which they were first added."""
        return list(dict.fromkeys(span.actor for span in self.spans))

    @property
    def start(self) -> float:
        """The time at which the first span starts; 0.0 without spans."""
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        """The time at which the last span ends; 0.0 without spans."""
        return max((span.end for span in self.spans), default=0.0)

    def between(self, start: float, end: float) -> "Timeline":
        """Return the timeline from ``start`` to ``end``; spans that cross a limit are cut there."""
        spans = []
        for span in self.spans:
            if span.start < end and span.end > start:
                first = max(span.start, start)
                last = min(span.end, end)
                spans.append(
                    Span(
                        span.actor,
                        span.kind,
                        first,
                        last,
                        span.args,
                    )
                )
        return Timeline(spans)

    def shifted(self, seconds: float) -> "Timeline":
        """Return the timeline ``seconds`` later, for the clock of another machine or boot."""
        spans = []
        for span in self.spans:
            start = span.start + seconds
            end = span.end + seconds
            spans.append(replace(span, start=start, end=end))
        return Timeline(spans)

    def busy_share(self, actor: str, window: Window | None = None) -> float:
        """Return ``actor``'s busy share of the window (default: all); overlaps count once."""
        start, end = window or (self.start, self.end)
        if end <= start:
            return 0.0
        busy = [span for span in self.spans if span.actor == actor and span.kind != "idle"]
        return _covered(busy, start, end) / (end - start)

    def to_chrome_trace(self) -> dict[str, Any]:
        """Return the timeline in Chrome's trace format, for ui.perfetto.dev, chrome://tracing.

        Each actor becomes a process of the trace. Times are whole microseconds from the start.
        Overlapping spans of an actor get different lanes (threads): viewers read overlap as nesting.
        """
        origin = _microseconds(self.start)
        process_ids: dict[str, int] = {}
        events: list[dict[str, Any]] = []
        for number, actor in enumerate(self.actors, start=1):
            process_ids[actor] = number
            metadata = {
                "process_name": {"name": actor},
                "process_sort_index": {"sort_index": number},
            }
            for name, args in metadata.items():
                events.append({"ph": "M", "name": name, "pid": number, "args": args})
        for span, lane in zip(self.spans, _lanes(self.spans), strict=True):
            start = _microseconds(span.start)
            event = {
                "ph": "X",
                "name": span.kind,
                "pid": process_ids[span.actor],
                "tid": lane,
                "ts": start - origin,
                "dur": _microseconds(span.end) - start,
                "args": span.args,
            }
            events.append(event)
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"origin_microseconds": origin},
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Timeline":
        """Read a timeline from its Chrome trace, in microseconds."""
        trace = json.loads(Path(path).read_text(encoding="utf-8"))
        origin = trace["otherData"]["origin_microseconds"]
        actors: dict[int, str] = {}
        spans = []
        for event in trace["traceEvents"]:
            if event["name"] == "process_name":
                actors[event["pid"]] = event["args"]["name"]
            if event["ph"] != "X":
                continue
            start = origin + event["ts"]
            end = start + event["dur"]
            span = Span(
                actor=actors[event["pid"]],
                kind=event["name"],
                start=start / 1e6,
                end=end / 1e6,
                args=event["args"],
            )
            spans.append(span)
        return cls(spans)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _covered(spans: Iterable[Span], start: float, end: float) -> float:
    """Return the seconds from ``start`` to ``end`` in which at least one of ``spans`` runs."""
    covered = 0.0
    reached = start
    for span in sorted(spans, key=lambda span: span.start):
        covered += max(0.0, min(span.end, end) - max(span.start, reached))
        reached = max(reached, span.end)
    return covered


def _lanes(spans: list[Span]) -> list[int]:
    """Return for each span the first lane of its actor that is free when it starts."""
    lanes = [0] * len(spans)
    ends_of: dict[str, list[float]] = {}
    for index in sorted(range(len(spans)), key=lambda index: spans[index].start):
        span = spans[index]
        ends = ends_of.setdefault(span.actor, [])
        lane = 0
        while lane < len(ends) and ends[lane] > span.start:
            lane += 1
        ends[lane : lane + 1] = [span.end]
        lanes[index] = lane
    return lanes
