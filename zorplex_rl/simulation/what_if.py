"""Execute a recorded run again: unchanged, or with one thing changed.

    run folder ── read_recording ──► RecordedRun ──┬─ replay ───► Replayed: equal to what the run wrote?
                                                   └─ what_if ──► PairedRuns: the effect of a change

With a change, each seed runs twice: original and changed. A group's task and its random draws follow
from the seed and the group's number, so both runs have the same ones. With another loss, learning rate
or temperature both runs have the schedule of the journal. With another ``max_lag`` both have a schedule
that the simulator makes from the latencies in the run's timeline. With ``--without-fault`` only the
changed run has a simulated schedule.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from safetensors.torch import load_file

from zorplex_rl.config import Config, flag
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.checkpoint import FILE
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import Policy, load_policy_of
from zorplex_rl.policy.lora import merged_weights
from zorplex_rl.policy.requests import EngineEvent
from zorplex_rl.run.folder import MetricsRow, RunFolder, read_config, step_of
from zorplex_rl.run.journal import RecordedBatch, RecordedEpisode, Session, machine, read_journal
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.simulation.execute import Evaluated, Execution, Schedule, Segment, Trained
from zorplex_rl.simulation.recorded import setting_of
from zorplex_rl.simulation.simulate import SimulatedRun, simulate_async
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.weights.layout import named_weights


@dataclass(slots=True)
class RecordedRun:
    """A run that can be executed again."""

    folder: RunFolder
    config: Config
    source: EnvironmentSource
    sessions: list[Session]
    """What the journal has of it."""
    rows: list[MetricsRow]
    """All rows of ``metrics.jsonl``."""
    policy: Policy
    """The policy that the run began with."""

    def events(self, event: str) -> list[MetricsRow]:
        """Return the rows about ``event``."""
        return [row for row in self.rows if row["event"] == event]

    @property
    def batches(self) -> dict[int, RecordedBatch]:
        """The batch that each step was trained on."""
        batches: dict[int, RecordedBatch] = {}
        for session in self.sessions:
            batches |= session.batches
        return batches

    def schedule(self) -> Schedule:
        """Return the schedule that the run had."""
        segments = []
        for session in self.sessions:
            batches = {}
            for step, batch in session.batches.items():
                batches[step] = list(zip(batch.groups, batch.generators, strict=True))
            segments.append(Segment(session.steps, session.histories, batches))
        last = len(self.batches)
        evaluated = {row["step"] for row in self.events("eval") if row["step"] <= last}
        return Schedule(segments, sorted(evaluated))


def read_recording(
    path: Path,
    device: str = "cpu",
    task: str | None = None,
    task_data: str | None = None,
) -> RecordedRun:
    """Return the run in ``path``, and load its policy; ``task`` is the file of a user's task."""
    config = read_config(path)
    if config.is_own_task:
        if task is None:
            problem = f"the run in {str(path)!r} has a task of your own, {config.task}"
            raise ConfigError(f"{problem}; name its file again with --task")
        config = config.changed(task=task, task_data=task_data)
    folder = RunFolder(path)
    with folder.locked():
        sessions = read_journal(folder.journal)
    source = EnvironmentSource.of(config)
    policy = load_policy_of(config, device)
    return RecordedRun(
        folder,
        config,
        source,
        sessions,
        folder.metrics(),
        policy,
    )


@dataclass(slots=True)
class Replayed:
    """What an unchanged replay has compared with the run."""

    compared: Counter[str] = field(default_factory=Counter)
    """How many results of each kind were compared."""
    same: Counter[str] = field(default_factory=Counter)
    """How many of them were the same."""
    first_difference: str | None = None
    why: str | None = None
    """A likely cause of a difference: another machine."""

    @property
    def is_equal(self) -> bool:
        """Whether all results are those of the run, bit for bit."""
        return self.first_difference is None

    def note(self, kind: str, difference: str | None) -> None:
        """Count one more result of ``kind``; ``difference`` is None if it is the same."""
        self.compared[kind] += 1
        if difference is None:
            self.same[kind] += 1
        elif self.is_equal:
            self.first_difference = difference

    def compare_evaluation(self, evaluated: Evaluated, row: MetricsRow) -> None:
        """Compare an evaluation with its row."""
        difference = f"the accuracy of version {evaluated.version}"
        is_same = (
            row["greedy_accuracy"] == evaluated.greedy
            and row["sampled_accuracy"] == evaluated.sampled
        )
        self.note("evaluations", None if is_same else difference)

    def compare_step(
        self,
        trained: Trained,
        batch: RecordedBatch,
        row: MetricsRow,
    ) -> None:
        """Compare a step's episodes with the journal, and its diagnostics with its row."""
        step = trained.step
        for episode, recorded in zip(trained.episodes, batch.episodes, strict=True):
            difference = difference_of(episode, recorded)
            if difference:
                difference = f"step {step}, group {episode.group}: {difference}"
            self.note("episodes", difference)
        # A row counts the episodes of the whole run.
        names = trained.metrics.keys() & row.keys() - {"episodes"}
        wrong = [name for name in names if trained.metrics[name] != row[name]]
        self.note("steps", f"{min(wrong)} of step {step}" if wrong else None)

    def compare_weights(self, name: str, learner: Learner, file: Path) -> None:
        """Compare weights and state of ``learner`` with a file that the run wrote."""
        weights = merged_weights(learner.policy.model) | learner.state_dict()
        wrong = []
        for key, written in load_file(file).items():
            if key in weights and not written.equal(weights[key].detach().cpu()):
                wrong.append(key)
        self.note("files of weights", f"{min(wrong)} of the {name}" if wrong else None)


def replay(
    recording: RecordedRun,
    on_step: Callable[[int, Policy], None] | None = None,
) -> Replayed:
    """Execute the run again, unchanged, and compare the results with the files that it wrote. ``on_step``
    gets the number of each step and the policy after it."""
    result = Replayed()
    execution = Execution(
        recording.config,
        recording.source,
        recording.schedule(),
        recording.policy,
    )
    learner = execution.learner
    batches = recording.batches
    checkpoints = {step_of(path): path for path in recording.folder.checkpoints()}
    rows = {row["step"]: row for row in recording.events("step")}
    evaluations = {row["step"]: row for row in recording.events("eval")}
    for outcome in execution:
        if isinstance(outcome, Evaluated):
            result.compare_evaluation(outcome, evaluations[outcome.version])
            continue
        step = outcome.step
        result.compare_step(outcome, batches[step], rows[step])
        if step in checkpoints:
            file = checkpoints[step] / "trainer" / FILE
            result.compare_weights(f"checkpoint of step {step}", learner, file)
        if on_step:
            on_step(step, learner.policy)
    last = evaluations.get(len(batches), {})
    if last.get("final"):
        file = recording.folder.policy / "model.safetensors"
        result.compare_weights("trained policy", learner, file)
    if not result.is_equal:
        result.why = f"it was made with {recording.sessions[0].machine}; this is {machine()}"
    return result


def difference_of(episode: Episode, recorded: RecordedEpisode) -> str | None:
    """Return the first difference between an episode and the recorded one, or None."""
    tokens = zip(episode.token_ids, episode.logprobs, strict=True)
    recorded_tokens = zip(recorded.token_ids, recorded.logprobs, strict=True)
    for index, (one, other) in enumerate(zip(tokens, recorded_tokens, strict=False)):
        if one != other:
            return f"token {index} or its log-probability"
    turns = [(turn.start, turn.end, turn.version) for turn in episode.turns]
    if len(episode.token_ids) != len(recorded.token_ids) or turns != recorded.turns:
        return "its turns"
    if episode.first_version != recorded.first_version:
        return "its first version"
    if episode.scored.reward != recorded.reward:
        return "its reward"
    return None


@dataclass(slots=True)
class Trace:
    """How one execution went."""

    evaluations: list[Evaluated] = field(default_factory=list)
    steps: list[Trained] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """A checksum of the weights after each step."""


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
        checksums = zip(self.original.weights, self.changed.weights, strict=False)
        for step, (original, changed) in enumerate(checksums, start=1):
            if original != changed:
                return step
        return None


@dataclass(slots=True)
class PairedRuns:
    """The result of a change."""

    change: str
    """What was changed, in words."""
    pairs: list[Pair]
    seconds: float
    """Seconds of training that were measured in the run."""
    predicted: tuple[float | None, float | None]
    """Simulated seconds of the original and of the changed run; None with the journal's schedule."""

    def means(self, measure: str) -> tuple[float, float]:
        """Return the mean over the seeds of a measure, of the original and of the changed runs."""
        value_of = MEASURES[measure]
        original = fmean(value_of(pair.original) for pair in self.pairs)
        changed = fmean(value_of(pair.changed) for pair in self.pairs)
        return original, changed

    def difference(self, measure: str) -> tuple[float, tuple[float, float] | None]:
        """Return the mean of changed − original over the seeds, and its interval."""
        value_of = MEASURES[measure]
        differences = [value_of(pair.changed) - value_of(pair.original) for pair in self.pairs]
        return fmean(differences), paired_interval(differences)


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of paired ``differences`` by Student's t, None for one."""
    count = len(differences)
    if count < 2:
        return None
    from scipy.special import stdtrit

    mean = fmean(differences)
    half = float(stdtrit(count - 1, 0.975)) * stdev(differences) / math.sqrt(count)
    return max(-1.0, mean - half), min(1.0, mean + half)


def what_if(
    recording: RecordedRun,
    config: Config,
    without_fault: bool = False,
    seeds: int = 3,
    on_step: Callable[[int], None] | None = None,
) -> PairedRuns:
    """Compare the run with what it would have been with the settings ``config``, or if no process had
    died. The first seed is the run's. Both are evaluated where the run was, and at the end."""
    earlier = recording.config
    config.check()
    if not 1 <= seeds <= 1000:
        raise ConfigError(f"--seeds is {seeds}; it must be between 1 and 1000")
    if without_fault and not recording.events("restart"):
        raise ConfigError("--without-fault changes nothing: no process of this run was replaced")
    plan = _plan(recording, config.max_lag, without_fault)
    pairs = []
    for seed in range(earlier.seed, earlier.seed + seeds):
        pair = Pair(
            seed,
            original=_trace(recording, earlier.changed(seed=seed), plan.original, on_step),
            changed=_trace(recording, config.changed(seed=seed), plan.changed, on_step),
        )
        pairs.append(pair)
    was = earlier.settings()
    changes = []
    for name, value in config.settings().items():
        if value != was[name]:
            changes.append(f"{flag(name)} {value} instead of {was[name]}")
    if without_fault:
        changes.append("no process that dies")
    seconds = max(row["seconds"] for row in recording.events("step"))
    return PairedRuns(" and ".join(changes), pairs, seconds, plan.predicted)


@dataclass(slots=True)
class _Plan:
    """The schedules of both runs, and the seconds of those that are simulated."""

    original: Schedule
    changed: Schedule
    predicted: tuple[float | None, float | None] = (None, None)


def _plan(
    recording: RecordedRun,
    max_lag: int,
    without_fault: bool,
) -> _Plan:
    """Return the schedules of the original and of the changed run."""
    earlier = recording.config
    journal = recording.schedule()
    journal.evaluations = sorted({*journal.evaluations, journal.steps})
    has_other_lag = max_lag != earlier.max_lag
    if not (has_other_lag or without_fault):
        return _Plan(journal, journal)
    timeline = Timeline.load(recording.folder.timeline)
    setting = setting_of(timeline, earlier, journal.steps)
    latencies = setting.latencies()
    after = simulate_async(replace(setting, max_lag=max_lag), latencies)
    changed = simulated(after, earlier, journal.evaluations)
    if not has_other_lag:
        return _Plan(journal, changed, (None, after.seconds))
    before = simulate_async(setting, latencies)
    original = simulated(before, earlier, journal.evaluations)
    return _Plan(original, changed, (before.seconds, after.seconds))


def _trace(
    recording: RecordedRun,
    config: Config,
    schedule: Schedule,
    on_step: Callable[[int], None] | None,
) -> Trace:
    """Execute ``schedule`` with the settings ``config``."""
    source = replace(recording.source, seed=config.seed)
    execution = Execution(config, source, schedule, recording.policy)
    trace = Trace()
    for outcome in execution:
        if isinstance(outcome, Evaluated):
            trace.evaluations.append(outcome)
            continue
        trace.steps.append(outcome)
        weights = named_weights(execution.learner.policy.model).values()
        trace.weights.append(sum(weight.double().sum().item() for weight in weights))
        if on_step:
            on_step(outcome.step)
    return trace


def simulated(run: SimulatedRun, config: Config, evaluations: list[int]) -> Schedule:
    """Return the schedule of a simulated run of ``config``. A generator samples each of its shares
    to the end before the next event."""
    histories: dict[str, list[EngineEvent]] = {}
    groups_of: dict[int, list[int]] = {}
    sampled_by: dict[int, str] = {}
    versions: dict[str, int] = {}
    for span in run.timeline.spans:
        if span.kind == "train":
            groups_of[span.args["step"] + 1] = sorted(span.args["groups"])
        if span.kind != "generate":
            continue
        events = histories.setdefault(span.actor, [])
        version = span.args["version"]
        group = span.args["group"]
        sampled_by[group] = span.actor
        if versions.get(span.actor, 0) != version:
            events.append((None, "version", version))
            versions[span.actor] = version
        if events:
            _, last, value = events[-1]
            if last == "submit" and len(value) < config.share:
                value.append(group)
                continue
        events.append((None, "submit", [group]))
    batches = {}
    for step, groups in groups_of.items():
        batches[step] = [(group, sampled_by[group]) for group in groups]
    return Schedule([Segment(config.steps, histories, batches)], evaluations)
