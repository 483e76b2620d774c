"""Execute a recorded run again: unchanged, or with one thing changed.

    run folder ──read_recording──► RecordedRun ──┬── replay ───► Replayed      what differs from what the run wrote: nothing
                                                 └── what_if ──► PairedRuns    what the change does, on the same random draws

A changed run is executed twice for each of some seeds, as it was and changed. A group's task and its
random draws follow from seed and number, so they are the same in both. With another loss, learning
rate or temperature both have the schedule of the journal; with another ``max_lag`` one that the
simulator makes from the latencies in the run's timeline. Without a fault only the changed one has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from safetensors.torch import load_file

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.checkpoint import FILE
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.requests import EngineEvent
from zorplex_rl.run.folder import MetricsRow, RunFolder, read_config, step_of
from zorplex_rl.run.journal import Sitting, Written, WrittenBatch, machine, read_journal
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.simulation.execute import Evaluated, Execution, Part, Schedule, Trained
from zorplex_rl.simulation.recorded import setting_of
from zorplex_rl.simulation.simulate import SimulatedRun, simulate_async
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.weights.layout import named_weights

Progress = Callable[[int], None]  # Called with the number of each step that is done.


@dataclass(slots=True)
class RecordedRun:
    """A run that can be executed again, and the policy that it began with."""

    folder: RunFolder
    config: Config
    source: EnvironmentSource
    sittings: list[Sitting]
    rows: list[MetricsRow]
    policy: Policy

    def events(self, event: str) -> list[MetricsRow]:
        """Return the rows about ``event``."""
        return [row for row in self.rows if row["event"] == event]

    @property
    def batches(self) -> dict[int, WrittenBatch]:
        """What each step was trained on."""
        return {step: batch for sitting in self.sittings for step, batch in sitting.batches.items()}

    def schedule(self) -> Schedule:
        """Return the schedule that the run had."""
        parts = []
        for sitting in self.sittings:
            batches = {n: [*zip(b.groups, b.generators, strict=True)] for n, b in sitting.batches.items()}
            parts.append(Part(sitting.steps, sitting.histories, batches))
        evaluations = {row["step"] for row in self.events("eval") if row["step"] <= len(self.batches)}
        return Schedule(parts, sorted(evaluations))


def read_recording(
    path: Path, device: str = "cpu", task: str | None = None, task_data: str | None = None
) -> RecordedRun:
    """Return the run in ``path``, and load its policy; ``task`` is the file of a user's task."""
    config, folder = read_config(path), RunFolder(path)
    if config.is_own_task:
        if task is None:
            raise ConfigError(
                f"the run in {str(path)!r} has a task of your own, {config.task}; name its file again with --task"
            )
        config = config.changed(task=task, task_data=task_data)
    with folder.locked():
        sittings = read_journal(folder.journal)
    source = EnvironmentSource.of(config)
    policy = load_policy(config.policy, device, config.dtype, config.template_arguments)
    return RecordedRun(folder, config, source, sittings, folder.metrics(), policy)


@dataclass(slots=True)
class Replayed:
    """How many things of each kind an unchanged replay has compared, and how many were the same."""

    compared: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    first_difference: str | None = None
    why: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether everything is as it was, bit for bit."""
        return self.first_difference is None

    def note(self, what: str, difference: str | None) -> None:
        """Count one more of ``what``, and its ``difference`` if there is one."""
        self.compared[what] += 1
        self.same[what] += difference is None
        self.first_difference = self.first_difference or difference


def replay(recording: RecordedRun, on_step: Callable[[int, Policy], None] = lambda step, policy: None) -> Replayed:
    """Execute the run again, unchanged, and compare all of it with what it wrote. ``on_step`` gets the policy, too."""

    def compare_weights(name: str, file: Path) -> None:
        own = execution.learner.policy.model.state_dict() | execution.learner.state_dict()
        written = load_file(file)
        wrong = [key for key in written.keys() & own.keys() if not written[key].equal(own[key].detach().cpu())]
        found.note("files of weights", f"{min(wrong)} of the {name}" if wrong else None)

    found = Replayed()
    execution = Execution(recording.config, recording.source, recording.schedule(), recording.policy)
    batches = recording.batches
    checkpoints = {step_of(path): path for path in recording.folder.checkpoints()}
    rows = {row["step"]: row for row in recording.events("step")}
    evaluations = {row["step"]: row for row in recording.events("eval")}
    for done in execution:
        if isinstance(done, Evaluated):
            row = evaluations[done.version]
            same = (row["greedy_accuracy"], row["sampled_accuracy"]) == (done.greedy, done.sampled)
            found.note("evaluations", None if same else f"the accuracy of version {done.version}")
            continue
        for episode, written in zip(done.episodes, batches[done.step].episodes, strict=True):
            difference = difference_of(episode, written)
            found.note("episodes", difference and f"step {done.step}, group {episode.group}: {difference}")
        row = rows[done.step]
        named = done.metrics.keys() & row.keys() - {"episodes"}  # A row counts those of the whole run.
        wrong = sorted(name for name in named if done.metrics[name] != row[name])
        found.note("steps", f"{wrong[0]} of step {done.step}" if wrong else None)
        if done.step in checkpoints:
            compare_weights(f"checkpoint of step {done.step}", checkpoints[done.step] / "trainer" / FILE)
        on_step(done.step, execution.learner.policy)
    if any(row.get("final") and row["step"] == len(batches) for row in evaluations.values()):
        compare_weights("trained policy", recording.folder.policy / "model.safetensors")
    if not found.is_equal:
        found.why = f"it was made with {recording.sittings[0].machine}; this is {machine()}"
    return found


def difference_of(episode: Episode, written: Written) -> str | None:
    """Return the first difference between an episode and one that was written, or None."""
    turns = [(turn.start, turn.end, turn.version) for turn in episode.turns]
    for place, pair in enumerate(zip(episode.token_ids, written.token_ids, strict=False)):
        if pair[0] != pair[1] or episode.logprobs[place] != written.logprobs[place]:
            return f"token {place} or its log-probability"
    if (len(episode.token_ids), turns) != (len(written.token_ids), written.turns):
        return "its turns"
    same = (episode.first_version, episode.scored.reward) == (written.first_version, written.reward)
    return None if same else "its first version or its reward"


@dataclass(slots=True)
class Trace:
    """How one execution went: its evaluations, its steps, and a checksum of the weights after each."""

    evaluations: list[Evaluated] = field(default_factory=list)
    steps: list[Trained] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


MEASURES: dict[str, Callable[[Trace], float]] = {
    "greedy, at the end": lambda trace: trace.evaluations[-1].greedy,
    "sampled, at the end": lambda trace: trace.evaluations[-1].sampled,
    "sampled, mean of all evaluations": lambda trace: fmean(e.sampled for e in trace.evaluations),
}
"""What is compared, on held-out tasks."""


@dataclass(slots=True)
class Pair:
    """Both executions of one seed."""

    seed: int
    original: Trace
    changed: Trace

    @property
    def parted(self) -> int | None:
        """The first step after which the weights differ, or None."""
        steps = enumerate(zip(self.original.weights, self.changed.weights, strict=False), 1)
        return next((step for step, (first, second) in steps if first != second), None)


@dataclass(slots=True)
class PairedRuns:
    """The result. Seconds of training: measured, and simulated for both (None: journal's schedule)."""

    change: str
    pairs: list[Pair]
    seconds: float
    predicted: tuple[float | None, float | None]

    def means(self, measure: str) -> tuple[float, float]:
        """Return the mean over the seeds of a measure, as it was and changed."""
        of = MEASURES[measure]
        return fmean(of(pair.original) for pair in self.pairs), fmean(of(pair.changed) for pair in self.pairs)

    def difference(self, measure: str) -> tuple[float, tuple[float, float] | None]:
        """Return the mean of changed − original over the seeds, and its interval."""
        found = [MEASURES[measure](pair.changed) - MEASURES[measure](pair.original) for pair in self.pairs]
        return fmean(found), paired_interval(found)


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of paired ``differences`` by Student's t, None for one."""
    if (n := len(differences)) < 2:
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.975)) * stdev(differences) / math.sqrt(n)
    return max(-1.0, fmean(differences) - half), min(1.0, fmean(differences) + half)


def what_if(
    recording: RecordedRun, config: Config, without_fault: bool = False, seeds: int = 3,
    on_step: Progress = lambda step: None, evaluate_every: int = 0,
) -> PairedRuns:  # fmt: skip
    """Compare the run with what it would have been with the settings ``config``, or without the
    processes that died; the first seed is the run's. Both are evaluated where the run was, at the
    end, and after every ``evaluate_every`` steps."""
    earlier = recording.config
    config.check()
    if not 1 <= seeds <= 1000:
        raise ConfigError(f"--seeds is {seeds}; it must be between 1 and 1000")
    if without_fault and not recording.events("restart"):
        raise ConfigError("--without-fault changes nothing: no process of this run was replaced")
    original = recording.schedule()
    more = range(0, original.steps + 1, evaluate_every) if evaluate_every else ()
    original.evaluations = sorted({*original.evaluations, *more, original.steps})
    changed = original
    before = after = None
    if config.max_lag != earlier.max_lag or without_fault:
        setting = setting_of(Timeline.load(recording.folder.timeline), earlier, original.steps)
        latencies = setting.latencies()
        after = simulate_async(replace(setting, max_lag=config.max_lag), latencies)
        changed = simulated(after, earlier, original.evaluations)
        if config.max_lag != earlier.max_lag:
            before = simulate_async(setting, latencies)
            original = simulated(before, earlier, original.evaluations)
    pairs = []
    for seed in range(earlier.seed, earlier.seed + seeds):
        both = ((earlier, original), (config, changed))
        traces = [_trace(recording, settings.changed(seed=seed), schedule, on_step) for settings, schedule in both]
        pairs.append(Pair(seed, *traces))
    now, was = config.settings(), earlier.settings()
    changes = [f"--{n.replace('_', '-')} {now[n]} instead of {was[n]}" for n in now if now[n] != was[n]]
    change = " and ".join(changes + ["no process that dies"] * without_fault)
    seconds = max(row["seconds"] for row in recording.events("step"))
    predicted = (before.seconds if before else None, after.seconds if after else None)
    return PairedRuns(change, pairs, seconds, predicted)


def _trace(recording: RecordedRun, config: Config, schedule: Schedule, on_step: Progress) -> Trace:
    """Execute ``schedule`` with the settings ``config``."""
    source = replace(recording.source, seed=config.seed)
    execution, trace = Execution(config, source, schedule, recording.policy), Trace()
    for done in execution:
        if isinstance(done, Evaluated):
            trace.evaluations.append(done)
        else:
            trace.steps.append(done)
            weights = named_weights(execution.learner.policy.model).values()
            trace.weights.append(sum(weight.double().sum().item() for weight in weights))
            on_step(done.step)
    return trace


def simulated(run: SimulatedRun, config: Config, evaluations: list[int]) -> Schedule:
    """Return the schedule of a simulated run of ``config``. A generator samples each of its shares
    to the end before it is told anything else."""
    histories: dict[str, list[EngineEvent]] = {}
    batches: dict[int, list[int]] = {}
    sampled_by: dict[int, str] = {}
    versions: dict[str, int] = {}
    for span in run.timeline.spans:
        if span.kind == "train":
            batches[span.args["step"] + 1] = sorted(span.args["groups"])
        if span.kind != "generate":
            continue
        events = histories.setdefault(span.actor, [])
        version, group = span.args["version"], span.args["group"]
        sampled_by[group] = span.actor
        if versions.get(span.actor, 0) != version:
            events.append((None, "version", version))
            versions[span.actor] = version
        if events and events[-1][1] == "submit" and len(events[-1][2]) < config.share:
            events[-1][2].append(group)
        else:
            events.append((None, "submit", [group]))
    parts = {step: [(n, sampled_by[n]) for n in groups] for step, groups in batches.items()}
    return Schedule([Part(config.steps, histories, parts)], evaluations)
