"""Read a finished run's latencies from its timeline, and predict its wall time from them.

    run folder ── read_run ──► MeasuredRun ── predict ──► SimulatedRun        compare their seconds

The latencies, and the spans that they are measured between:

    generate     a group's part of the busy seconds with its version
    train        train.start → publish.end, of each step
    load         pull.start → pull.end, of pulls that brought a newer version
    evaluate     first evaluate.start → the generator's next work
    latency      the slowest episode of a group, if it waited for tools (``groups``, an argument of the ``train`` spans)

and the delays of messages, each a mean over cases in which the actor waited for nothing else:

    transfer     publish.end → pull.start           deliver       generate.end → reward → train.start
    start        pull.end → generate.start          turnaround    publish.end → train.start, if a batch was ready

``predict`` combines these by the rules of ``simulate.py`` alone, so it also answers what this machine
would have done with another lag bound.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev

from zorplex_rl.config import Config
from zorplex_rl.run.folder import read_config
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.setting import Latencies, Setting
from zorplex_rl.simulation.simulate import SimulatedRun, simulate_async, simulate_sync

CHUNK_GAP_SECONDS = 0.005  # A generator samples in chunks; a shorter gap counts as work.


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Latencies of a real run. ``setting`` holds its counts and its mean latencies; ``seconds`` are from
    the first pull or token until the last version is published."""

    seconds: float
    setting: Setting
    latencies: Latencies


def group_variation(batches: Iterable[Sequence[tuple[int, int, float, float]]]) -> float:
    """Return the groups' coefficient of variation, over all ``batches`` of ``group_latencies``.

    >>> group_variation([[(0, 0, 1.0, 0.0), (1, 0, 3.0, 0.0)]])
    0.5
    """
    seconds = [seconds for batch in batches for _, _, seconds, _ in batch]
    return pstdev(seconds) / fmean(seconds)


def read_run(folder: str | Path) -> MeasuredRun:
    """Read the run in ``folder``. Raises ValueError if it was resumed or an actor replaced."""
    return read_timeline(Timeline.load(Path(folder) / "timeline.json"), read_config(Path(folder)))


def read_timeline(timeline: Timeline, config: Config) -> MeasuredRun:
    """Do the same as ``read_run`` for a timeline in memory."""
    spans = _RunSpans(timeline, config)
    generate = spans.generate_seconds()
    train = [published - span.start for span, published in zip(spans.train, spans.published[1:], strict=True)]
    load, transfer = _mean(span.end - span.start for span in spans.new_pulls()), spans.transfer()
    later_versions = range(1, config.steps)  # The first one was loaded before training began.
    setting = replace(
        counts_of(config, config.steps),
        generation_seconds=fmean(generate),
        variation=group_variation([spans.groups]),
        training_seconds=fmean(train),
        sync_seconds=transfer + load,
    )
    latencies = Latencies(
        tuple(generate),
        tuple(train),
        (0.0, *(transfer for _ in later_versions)),
        latency={number: seconds for number, _, seconds, waited in spans.groups if waited > 0},
        load=dict.fromkeys(later_versions, load),
        evaluate=spans.evaluations(),
        start=spans.start(),
        deliver=spans.deliver(),
        turnaround=spans.turnaround(),
        share=config.share,
        ahead=config.on_update == "wait",
    )
    return MeasuredRun(spans.end - spans.begin, setting, latencies)


def counts_of(config: Config, steps: int) -> Setting:
    """Return the counts of a run of ``config``."""
    return Setting(config.services.generators, config.prompts_per_step, steps, config.max_lag, seed=config.seed)


def latencies_of(timeline: Timeline, config: Config, steps: int) -> tuple[MeasuredRun, str | None]:
    """Return a run's latencies, means if processes were replaced, and what is to be said of them."""
    try:
        return read_timeline(timeline, config), None
    except (ValueError, LookupError):
        note = "the run was not in one go, so the schedule is simulated from mean latencies"
    spans = {kind: [s for s in timeline.spans if s.kind == kind] for kind in ("generate", "train", "publish", "pull")}
    mean = {kind: _mean(span.end - span.start for span in found) for kind, found in spans.items()}
    busy = sum(shares.get("generate", 0.0) for shares in timeline.shares().values()) * (timeline.end - timeline.start)
    setting = replace(
        counts_of(config, steps),
        generation_seconds=busy / (len(spans["train"]) * config.prompts_per_step),
        variation=0.0,
        training_seconds=mean["train"] + mean["publish"],
        sync_seconds=mean["pull"],
    )
    latencies = replace(setting.latencies(), share=config.share)
    return MeasuredRun(timeline.end - timeline.start, setting, latencies), note


def predict(measured: MeasuredRun, max_lag: int | None = None) -> SimulatedRun:
    """Simulate a run with the measured latencies; the lag bound is by default the run's."""
    lag = measured.setting.max_lag if max_lag is None else max_lag
    simulate = simulate_async if lag else simulate_sync
    return simulate(replace(measured.setting, max_lag=lag), measured.latencies)


class _RunSpans:
    """Sort a run's spans by kind, measure latencies between. Raises ValueError if not in one go."""

    def __init__(self, timeline: Timeline, config: Config) -> None:
        spans = sorted(timeline.spans, key=lambda span: span.start)
        self.train = [span for span in spans if span.kind == "train"]
        samplers = {span.actor for span in spans if span.kind == "generate"}
        publications = Counter(span.args["version"] for span in spans if span.kind == "publish")
        in_order = [span.args["step"] for span in self.train] == list(range(config.steps))
        if not in_order or len(samplers) > config.services.generators or max(publications.values()) > 1:
            raise ValueError("the run was not in one go: it was resumed, or a process was replaced")
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
        self.samplers = {int(n): name for span in self.train for n, name in span.args["sampled_by"].items()}
        self.chunks = {actor: _joined(span for span in self.generate if span.actor == actor) for actor in samplers}

    def generate_seconds(self) -> list[float]:
        """Return each group's seconds: its part of its generator's work with a version, in proportion
        to its own seconds without tools. With equal parts, generators would stay in step for ever
        in a simulation, and they do not in a run."""
        shares = [(self.samplers[number], version) for number, version, _, _ in self.groups]
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
