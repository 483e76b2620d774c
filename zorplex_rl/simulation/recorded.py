"""Read a finished run's latencies from its timeline, and predict its wall time from them.

    run folder ── read_run ──► Recorded ── predict ──► Run        compare Recorded.seconds with Run.seconds

The latencies, and the spans that they are measured between:

    generate     a group's part of the busy seconds with its version
    train        train.start → publish.end, of each step
    load         pull.start → pull.end, of pulls that brought a newer version
    evaluate     first evaluate.start → the generator's next work
    latency      the slowest episode of a group, if it waited for tools (``groups``, an argument of the ``train`` spans)

and the delays of messages, each a mean over cases in which the actor waited for nothing else:

    transfer     publish.end → pull.start
    start        pull.end → generate.start
    deliver      generate.end → reward → train.start
    turnaround   publish.end → train.start, if a batch was ready

``predict`` combines these by the rules of ``simulate.py`` alone. It does not look at when anything
happened, so it also answers what this machine would have done with another lag bound.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev

from zorplex_rl.config import Config
from zorplex_rl.simulation.setting import Details, Latencies, Setting
from zorplex_rl.simulation.simulate import Run, simulate_async, simulate_sync
from zorplex_rl.timeline import Span, Timeline

CHUNK_GAP_SECONDS = 0.005
"""Seconds. A generator samples in chunks; a gap shorter than this counts as work."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Latencies measured in a real run. ``setting`` holds its counts and its mean latencies."""

    seconds: float
    """Measured wall time: from the first pull or token until the last version is published."""
    setting: Setting
    latencies: Latencies


def group_variation(batches: Iterable[Sequence[tuple[int, int, float, float]]]) -> float:
    """Return the groups' coefficient of variation, over all ``batches`` of ``group_latencies``.

    This is ``Setting.variation``. Batches vary less: each is as slow as its slowest group.

    >>> group_variation([[(0, 0, 1.0, 0.0), (1, 0, 3.0, 0.0)], [(2, 1, 1.0, 0.0), (3, 1, 3.0, 0.0)]])
    0.5
    """
    seconds = [seconds for batch in batches for _, _, seconds, _ in batch]
    return pstdev(seconds) / fmean(seconds)


def read_run(folder: str | Path) -> Recorded:
    """Read the run in ``folder``. Raises ValueError if it was resumed or an actor replaced."""
    config = Config.from_dict(json.loads((Path(folder) / "config.json").read_text()))
    return read_timeline(Timeline.load(Path(folder) / "timeline.json"), config)


def read_timeline(timeline: Timeline, config: Config) -> Recorded:
    """Do the same as ``read_run`` for a timeline in memory."""
    spans = _RunSpans(timeline, config)
    generate = spans.generate_seconds()
    train = [published - span.start for span, published in zip(spans.train, spans.published[1:], strict=True)]
    load, transfer = _mean(span.end - span.start for span in spans.new_pulls()), spans.transfer()
    later_versions = range(1, config.steps)  # The first one was loaded before training began.
    details = Details(
        latency={number: seconds for number, _, seconds, waited in spans.groups if waited > 0},
        load=dict.fromkeys(later_versions, load),
        evaluate=spans.evaluations(),
        start=spans.start(),
        deliver=spans.deliver(),
        turnaround=spans.turnaround(),
        share=config.share,
        ahead=config.on_update == "wait",
    )
    setting = Setting(
        generators=config.services.generators,
        groups_per_step=config.prompts_per_step,
        steps=config.steps,
        max_lag=config.max_lag,
        generation_seconds=fmean(generate),
        variation=group_variation([spans.groups]),
        training_seconds=fmean(train),
        sync_seconds=transfer + load,
        seed=config.seed,
    )
    latencies = Latencies(tuple(generate), tuple(train), (0.0, *(transfer for _ in later_versions)), details)
    return Recorded(spans.end - spans.begin, setting, latencies)


def predict(recorded: Recorded, max_lag: int | None = None) -> Run:
    """Simulate a run with the recorded latencies; the lag is by default the recorded one."""
    lag = recorded.setting.max_lag if max_lag is None else max_lag
    simulate = simulate_async if lag else simulate_sync
    return simulate(replace(recorded.setting, max_lag=lag), recorded.latencies)


class _RunSpans:
    """Sort a run's spans by kind, measure latencies between. Raises ValueError if not in one go."""

    def __init__(self, timeline: Timeline, config: Config) -> None:
        self.config = config
        spans = sorted(timeline.spans, key=lambda span: span.start)
        self.train = [span for span in spans if span.kind == "train"]
        samplers = {span.actor for span in spans if span.kind == "generate"}
        if [span.args["step"] for span in self.train] != list(range(config.steps)) or len(
            samplers
        ) > config.services.generators:
            raise ValueError(
                f"the timeline has {len(self.train)} training steps and {len(samplers)} generators, not {config.steps} steps in one go by "
                f"{config.services.generators}; give that of a run in which nothing was resumed or replaced"
            )
        publications = Counter(span.args["version"] for span in spans if span.kind == "publish")
        if again := [version for version, times in publications.items() if times > 1]:
            raise ValueError(
                f"the timeline has version {min(again)} published twice: the run was resumed, or its trainer replaced, and the time between is "
                f"not the run's own; give the timeline of a run in one go"
            )
        published = {span.args["version"]: span.end for span in spans if span.kind == "publish"}
        self.published = [published[version] for version in range(config.steps + 1)]
        self.evaluate = [span for span in spans if span.kind == "evaluate" and span.args["version"] < config.steps]
        warm = max((span.end for span in self.evaluate if span.args["version"] == 0), default=-math.inf)
        self.pulls = [span for span in spans if span.kind == "pull" and span.start >= warm]
        self.begin = min(span.start for span in spans if span.kind in ("pull", "generate") and span.start >= warm)
        self.end = self.published[-1]
        self.generate = [span for span in spans if span.kind == "generate" and self.begin <= span.start < self.end]
        self.reward = [span for span in spans if span.kind == "reward"]
        for version in {span.args["version"] for span in self.evaluate}:
            # A share may be as large as an evaluation: the first such batch after one is its own.
            over = max(span.end for span in self.evaluate if span.args["version"] == version)
            scored = (s for s in self.reward if s.start >= over and s.args["episodes"] == 2 * config.eval_tasks)
            if own := next(scored, None):
                self.reward.remove(own)
        groups = (tuple(group) for span in self.train for group in span.args["groups"])
        self.groups: list[tuple[int, int, float, float]] = sorted(groups)
        self.samplers = {int(n): name for span in self.train for n, name in span.args.get("sampled_by", {}).items()}
        self.chunks = {actor: _joined(span for span in self.generate if span.actor == actor) for actor in samplers}

    def generate_seconds(self) -> list[float]:
        """Return each group's seconds: its part of its generator's work with a version, in proportion
        to its own seconds without tools. With equal parts, generators would stay in step for ever
        in a simulation, and they do not in a run."""
        shares = [(self._sampled_by(number), version) for number, version, _, _ in self.groups]
        own_seconds = [max(seconds - waited, 1e-9) for _, _, seconds, waited in self.groups]
        begun = dict.fromkeys(shares, 0.0)
        for share, seconds in zip(shares, own_seconds, strict=True):
            begun[share] += seconds
        busy = dict.fromkeys(begun, 0.0)
        for actor, chunks in self.chunks.items():
            own = [span for span in self.generate if span.actor == actor]
            for start, end in chunks:
                inside = [span for span in own if start <= span.start < end]
                for span, following in zip(inside, [*inside[1:], None], strict=True):
                    # No group was begun with this version: the generator still sampled old ones.
                    versions = [version for sampler, version in busy if sampler == actor]
                    version = max((v for v in versions if v <= span.args["version"]), default=min(versions))
                    busy[actor, version] += (following.start if following else end) - span.start
        return [busy[share] * seconds / begun[share] for share, seconds in zip(shares, own_seconds, strict=True)]

    def _sampled_by(self, number: int) -> str:
        """Return the generator of group ``number``; the only one if the timeline does not say."""
        return self.samplers.get(number) or min(self.chunks)

    def new_pulls(self) -> list[Span]:
        """Return the pulls that brought a newer version, before the run ended."""
        have: dict[str, int] = {}
        new = []
        for pull in self.pulls:
            if pull.args["version"] > have.setdefault(pull.actor, 0) and pull.end < self.end:
                new.append(pull)
            have[pull.actor] = pull.args["version"]
        return new

    def transfer(self) -> float:
        """Return the mean seconds from publish.end to pull.start, if the version was waited for."""
        pulls = [(pull, self.published[pull.args["version"]]) for pull in self.new_pulls()]
        waited = [(pull, sent) for pull, sent in pulls if sent <= pull.start and self._is_idle(pull.actor, sent)]
        return _mean(pull.start - sent for pull, sent in waited)

    def start(self) -> float:
        """Return the mean seconds from pull.end to the first token, of generators idle before."""
        gaps = []
        for pull in self.new_pulls():
            following = [start for start, _ in self.chunks[pull.actor] if start >= pull.end]
            if not following or not self._is_idle(pull.actor, pull.start):
                continue
            if not any(span.start < following[0] and span.end > pull.end for span in self.evaluate):
                gaps.append(following[0] - pull.end)
        return _mean(gaps)

    def deliver(self) -> float:
        """Return the mean seconds from a batch's last token to train.start, if waited for."""
        gaps = []
        for step, train in enumerate(self.train):
            scored = [span for span in self.reward if span.end <= train.start]
            if scored and (step == 0 or scored[-1].end > self.published[step]):
                gaps.append(train.start - max(span.end for span in self.generate if span.end <= scored[-1].start))
        return _mean(gaps) if gaps else self.turnaround()

    def turnaround(self) -> float:
        """Return the mean seconds from publish.end to train.start, if the batch was ready."""
        turns = [(train.start, published) for train, published in zip(self.train[1:], self.published[1:], strict=False)]
        gaps = [now - then for now, then in turns if not any(then < span.end <= now for span in self.reward)]
        return _mean(gaps) if gaps else self.transfer()

    def evaluations(self) -> dict[int, float]:
        """Return for each evaluated version its generator's seconds for nothing else."""
        seconds = {}
        for version in sorted({span.args["version"] for span in self.evaluate} - {0}):
            both = [span for span in self.evaluate if span.args["version"] == version]
            work = (s.start for s in (*self.pulls, *self.generate) if s.actor == both[0].actor)
            after = [start for start in work if start >= both[-1].end]
            seconds[version] = min([*after, self.end]) - both[0].start
        return seconds

    def _is_idle(self, actor: str, time: float) -> bool:
        busy = [*self.chunks[actor], *((s.start, s.end) for s in self.evaluate if s.actor == actor)]
        return not any(start <= time <= end + CHUNK_GAP_SECONDS for start, end in busy)


def _joined(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Return intervals of work (start, end), joined across less than ``CHUNK_GAP_SECONDS``."""
    joined: list[tuple[float, float]] = []
    for span in spans:
        if joined and span.start - joined[-1][1] < CHUNK_GAP_SECONDS:
            joined[-1] = (joined[-1][0], span.end)
        else:
            joined.append((span.start, span.end))
    return joined


def _mean(seconds: Iterable[float]) -> float:
    seconds = list(seconds)
    return fmean(seconds) if seconds else 0.0
