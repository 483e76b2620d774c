"""What would a run have been with one thing changed? Execute it twice on the same random draws, as
it was and changed, and compare.

    Recording ──┬── as it was ──┐
                │               ├── pair, for each of some seeds ──► difference in accuracy, its interval, where they part
                └── changed ────┘

A loss, a learning rate, a temperature: both are executed on the schedule of the journal. Another
``max_lag``, or a fault that does not happen: the run would have had another schedule. Then the
simulator makes one from the latencies that the run's timeline shows (``recorded.py``), and says how
many seconds it takes; with another lag that of the unchanged run is simulated, too, so that both
have the same mistakes. A simulated generator takes new weights between groups.

The first seed is the run's own. A group's task and its random draws follow from the seed and the
group's number, so they are the same in both runs of a pair.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

import torch

from zorplex_rl.config import LOSS_KNOBS, Config, check_range
from zorplex_rl.errors import ConfigError, TrainingDiverged
from zorplex_rl.simulation.execute import Evaluated, Execution
from zorplex_rl.simulation.recorded import predict
from zorplex_rl.simulation.replay import Progress, Recording
from zorplex_rl.simulation.schedule import Schedule, latencies_of, simulated
from zorplex_rl.weights.layout import named_weights

MOST_SEEDS = 1000


@dataclass(slots=True)
class Course:
    """How one execution went: its evaluations, and of every step the mean lag, what its episodes
    were (by group and place in the group), and a checksum of the weights after it."""

    evaluations: list[Evaluated] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    episodes: list[dict[tuple[int, int], int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


MEASURES: dict[str, Callable[[Course], float]] = {
    "greedy, at the end": lambda course: course.evaluations[-1].greedy,
    "sampled, at the end": lambda course: course.evaluations[-1].sampled,
    "sampled, mean of all evaluations": lambda course: fmean(e.sampled for e in course.evaluations),
}
"""What is compared, on held-out tasks."""


@dataclass(slots=True)
class Pair:
    """Both executions of one seed."""

    seed: int
    original: Course
    changed: Course

    def same_episodes(self) -> list[float]:
        """Return for each step of the changed run the share of its episodes that the original has
        too, token for token."""
        others = {key: value for step in self.original.episodes for key, value in step.items()}
        return [fmean(others.get(key) == value for key, value in step.items()) for step in self.changed.episodes]

    @property
    def parted(self) -> int | None:
        """The first step after which the weights differ, or None."""
        steps = enumerate(zip(self.original.weights, self.changed.weights, strict=False), 1)
        return next((step for step, (first, second) in steps if first != second), None)

    def why(self, change: str, learns_otherwise: bool) -> str:
        """Say where the two runs part, and why. ``learns_otherwise``: on the same episodes, too."""
        if (step := self.parted) is None:
            return "the two runs do not part: all weights are the same, bit for bit"
        first, second = self.original.episodes[step - 1], self.changed.episodes[step - 1]
        what = f"they part in step {step}: "
        lag, other_lag = self.original.lags[step - 1], self.changed.lags[step - 1]
        if first.keys() != second.keys():
            return f"{what}it is trained on other groups"
        if lag != other_lag:
            return f"{what}the mean lag of its groups is {lag:g} versions, and in the changed run {other_lag:g}"
        if first != second:
            return f"{what}its groups are the same, and {sum(first[key] != second[key] for key in first)} of its episodes are not"
        if not learns_otherwise:
            return f"{what}its tokens are the same, but sampled beside others, so the last digits of log-probabilities are not"
        return f"{what}its episodes are the same, but it is taken with {change}"


@dataclass(slots=True)
class WhatIf:
    """The result. ``seconds`` of training: as measured, and by the simulator for the original and
    the changed run, None where the schedule is the journal's."""

    change: str
    learns_otherwise: bool
    pairs: list[Pair]
    seconds: float
    predicted: tuple[float | None, float | None]
    note: str | None = None

    @property
    def measures(self) -> list[str]:
        """The names of what is compared."""
        return list(MEASURES)

    @property
    def why(self) -> str:
        """Where the two runs of the first seed part, and why."""
        return self.pairs[0].why(self.change, self.learns_otherwise)

    def means(self, measure: str) -> tuple[float, float]:
        """Return the mean over the seeds of a measure, as it was and changed."""
        of = MEASURES[measure]
        return fmean(of(pair.original) for pair in self.pairs), fmean(of(pair.changed) for pair in self.pairs)

    def difference(self, measure: str) -> tuple[float, tuple[float, float] | None]:
        """Return the mean of changed − original over the seeds, and its 95 % interval, None for one
        seed."""
        found = [MEASURES[measure](pair.changed) - MEASURES[measure](pair.original) for pair in self.pairs]
        return fmean(found), paired_interval(found)


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the mean of paired ``differences`` of shares by Student's t, within
    ±1; None for fewer than two.

    >>> [round(bound, 2) for bound in paired_interval([0.0, 0.1, 0.2])]
    [-0.15, 0.35]
    """
    if (n := len(differences)) < 2:
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * stdev(differences) / math.sqrt(n)
    return max(-1.0, fmean(differences) - half), min(1.0, fmean(differences) + half)


def what_if(
    recording: Recording,
    config: Config,
    without_fault: bool = False,
    seeds: int = 3,
    on_step: Progress = lambda step: None,
    evaluate_every: int = 0,
) -> WhatIf:
    """Compare the run with what it would have been with the settings ``config``, or without the
    processes that died. Both are evaluated where the run was, and also after every
    ``evaluate_every`` steps. Raises ConfigError if that changes nothing, or cannot be known."""
    check_range("seeds", seeds, 1, MOST_SEEDS)
    change = expect_change(recording, config, without_fault)
    has_other_lag = config.max_lag != recording.config.max_lag
    original = recording.schedule()
    if evaluate_every:
        original.evaluations = sorted({*original.evaluations, *range(0, original.steps + 1, evaluate_every)})
    changed = original
    predicted: list[float | None] = [None, None]
    note = None
    if has_other_lag or without_fault:
        recorded, note = latencies_of(recording.folder.timeline, recording.config, recording.journal.steps)
        plan = recording.config.steps, original.evaluations
        after = predict(recorded, config.max_lag)
        changed, predicted[1] = simulated(after, recorded, *plan), after.seconds
        if has_other_lag:
            before = predict(recorded)
            original, predicted[0] = simulated(before, recorded, *plan), before.seconds
    pairs = []
    for seed in range(recording.config.seed, recording.config.seed + seeds):
        first = _course(recording, recording.config.changed(seed=seed), original, on_step)
        try:
            second = _course(recording, config.changed(seed=seed), changed, on_step)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"with {change} and seed {seed} {error}") from error
        pairs.append(Pair(seed, first, second))
    seconds = max((row.get("seconds", 0.0) for row in recording.events("step")), default=0.0)
    learns_otherwise = config.learner != recording.config.learner
    return WhatIf(change, learns_otherwise, pairs, seconds, (predicted[0], predicted[1]), note)


def expect_change(recording: Recording, config: Config, without_fault: bool) -> str:
    """Return what is changed, in words. Raises ConfigError if nothing is, or if it cannot work."""
    own = recording.config
    named = [
        f"--{name.replace('_', '-')} {value} instead of {own.settings()[name]}"
        for name, value in config.settings().items()
        if value != own.settings()[name]
    ]
    if without_fault and not recording.events("restart"):
        raise ConfigError("--without-fault changes nothing: no process of this run was replaced")
    if without_fault:
        named.append("no process that dies")
    if not named:
        raise ConfigError(
            "this changes nothing: the run had the same settings; give another loss or lag, or leave all out for a replay as it was"
        )
    config.check()
    return " and ".join(named)


def with_own_knobs(config: Config, earlier: Config) -> Config:
    """Return ``config`` without those settings of the run's loss that its new loss does not have."""
    foreign = [
        knob
        for knob, losses in LOSS_KNOBS.items()
        if config.learner.loss not in losses and config.settings()[knob] == earlier.settings()[knob]
    ]
    return config.changed(**dict.fromkeys(foreign))


def _course(recording: Recording, config: Config, schedule: Schedule, on_step: Callable[[int], None]) -> Course:
    """Execute ``schedule`` with the settings ``config``. It is evaluated at its end in any case."""
    source = replace(recording.source, seed=config.seed)
    schedule = replace(schedule, evaluations=sorted({*schedule.evaluations, schedule.steps}))
    execution, course = Execution(config, source, schedule, recording.policy), Course()
    for done in execution:
        if isinstance(done, Evaluated):
            course.evaluations.append(done)
            continue
        size = config.group_size
        course.lags.append(done.metrics["lag_mean"])
        course.episodes.append(
            {(done.groups[i // size], i % size): hash(tuple(e.token_ids)) for i, e in enumerate(done.episodes)}
        )
        checksum = 0
        for weight in named_weights(execution.learner.policy.model).values():
            as_bytes = weight.detach().cpu().contiguous().view(-1).view(torch.uint8)
            checksum = zlib.crc32(as_bytes.numpy().data, checksum)
        course.weights.append(checksum)
        on_step(done.step)
    return course
