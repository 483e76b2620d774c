"""Replay a run from its journal, unchanged, and name the first difference if there is one.

    run folder ──read_recording──► Recording ──replay──► Replayed

Every step is trained on the episodes of the journal. So a difference in one place does not spread
to all that follows: the sampling of every episode and the arithmetic of every step are each checked
against what the run wrote down.

    episodes      tokens, turns, versions, rewards, and the log-probability of every token, bit for bit
    steps         loss, norm of the gradient and every other number of the learner, all digits
    evaluations   greedy and sampled accuracy
    weights       every checkpoint that is there, and the trained policy, bit for bit

In Python, with ``what_if.py``:

    recording = read_recording(Path("runs/NAME"))
    replay(recording).first_difference                                        None if there is none
    found = what_if(recording, recording.config.changed(max_lag=4), seeds=5)
    found.difference("sampled, at the end"), found.why                        changed − original and its interval; where they part
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.checkpoint import FILE
from zorplex_rl.learning.journal import Batch, Journal, Written, machine, read_journal
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.run_folder import MetricsRow, RunFolder, expect_task_named, read_config, step_of
from zorplex_rl.simulation.execute import Evaluated, Execution, Trained
from zorplex_rl.simulation.schedule import Part, Schedule
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource

Progress = Callable[[int], None]
"""Called with the number of each step that is done."""


@dataclass(slots=True)
class Recording:
    """A run that can be replayed: its settings, its rows, its journal, and the policy that it began
    with."""

    folder: RunFolder
    config: Config
    source: EnvironmentSource
    journal: Journal
    rows: list[MetricsRow]
    policy: Policy

    @property
    def batches(self) -> dict[int, Batch]:
        """The batch of each step."""
        return {step: batch for sitting in self.journal.sittings for step, batch in sitting.batches.items()}

    def events(self, event: str) -> list[MetricsRow]:
        """Return the rows about ``event``."""
        return [row for row in self.rows if row["event"] == event]

    def schedule(self, is_exact: bool = False) -> Schedule:
        """Return the schedule that the run had; see ``Schedule``."""
        parts = []
        for sitting in self.journal.sittings:
            batches = {n: [*zip(b.groups, b.generators, strict=True)] for n, b in sitting.batches.items()}
            parts.append(Part(sitting.steps, sitting.histories, batches))
        evaluations = sorted({row["step"] for row in self.events("eval")} & {*range(self.journal.steps + 1)})
        return Schedule(parts, evaluations, is_exact)


def read_recording(path: Path, device: str = "cpu", task: str | None = None, task_data: str | None = None) -> Recording:
    """Return the run in ``path``, and load its policy. A run with a task of the user needs its file
    again, ``task``. Raises ConfigError if it cannot be replayed."""
    config = read_config(path, "the run")
    expect_task_named(path, config, task)
    if config.is_own_task:
        config = config.changed(task=task, task_data=task_data)
    folder = RunFolder(path)
    if folder.is_under_way:
        raise ConfigError(f"the run in {str(path)!r} is under way; wait for its end, or stop it first")
    if not folder.journal.is_file():
        # Before the policy is loaded.
        read_journal(folder.journal, config, 1)
    source = EnvironmentSource.of(config)
    policy = load_policy(config.policy, device, config.dtype)
    journal = read_journal(folder.journal, config, policy.model.get_input_embeddings().num_embeddings)
    return Recording(folder, config, source, journal, folder.metrics(), policy)


@dataclass(slots=True)
class Replayed:
    """What an unchanged replay has found. ``weights`` names what was compared with the replay's
    weights."""

    steps: int = 0
    episodes: int = 0
    same_episodes: int = 0
    same_steps: int = 0
    evaluations: int = 0
    same_evaluations: int = 0
    weights: list[str] = field(default_factory=list)
    same_weights: list[str] = field(default_factory=list)
    first_difference: str | None = None
    why: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether everything is as it was, bit for bit."""
        return self.first_difference is None

    def note(self, difference: str | None) -> bool:
        """Note the first difference. Returns whether there is none."""
        self.first_difference = self.first_difference or difference
        return difference is None


def replay(recording: Recording, on_step: Progress = lambda step: None) -> Replayed:
    """Execute the run again, unchanged, and compare all of it with what the run wrote down."""
    found, written = Replayed(), recording.batches
    size = recording.config.group_size

    def train_on(step: int, episodes: list[Episode]) -> list[Episode]:
        return [as_written(*pair) for pair in zip(episodes, written[step].episodes, strict=True)]

    execution = Execution(
        recording.config, recording.source, recording.schedule(is_exact=True), recording.policy, train_on
    )
    checkpoints = {step_of(path): path for path in recording.folder.checkpoints()}
    rows = {row["step"]: row for row in recording.events("step")}
    accuracies = {row["step"]: row for row in recording.events("eval")}
    for done in execution:
        match done:
            case Evaluated(version, greedy, sampled):
                row = accuracies[version]
                before = row.get("greedy_accuracy"), row.get("sampled_accuracy")
                found.evaluations += 1
                found.same_evaluations += found.note(
                    None
                    if before == (greedy, sampled)
                    else f"the evaluation of version {version}: accuracy {greedy}, {sampled} and not {before[0]}, {before[1]}"
                )
            case Trained(step, groups, episodes, metrics):
                for place, (episode, other) in enumerate(zip(episodes, written[step].episodes, strict=True)):
                    difference = difference_of(episode, other)
                    where = f"step {step}, group {groups[place // size]}, episode {place % size}"
                    found.same_episodes += found.note(difference and f"{where}: {difference}")
                found.episodes += len(episodes)
                found.steps += 1
                found.same_steps += found.note(_difference_of_metrics(step, metrics, rows.get(step, {})))
                if step in checkpoints:
                    _compare_weights(
                        found, execution, f"checkpoint of step {step}", checkpoints[step] / "trainer" / FILE
                    )
                on_step(step)
    if any(row.get("final") and row["step"] == recording.journal.steps for row in accuracies.values()):
        _compare_weights(found, execution, "trained policy", recording.folder.policy / "model.safetensors")
    if found.first_difference:
        found.why = _reason(recording, found)
    return found


def as_written(episode: Episode, written: Written) -> Episode:
    """Return ``episode`` with the tokens, log-probabilities and reward of the journal: the same one
    if they are equal."""
    if difference_of(episode, written) is None:
        return episode
    turns = [replace(episode.turns[0], start=start, end=end, version=v) for start, end, v in written.turns]
    score = replace(episode.scored, correct=written.reward, format=0.0, extra_calls=0.0)
    return replace(
        episode, token_ids=written.token_ids, logprobs=written.logprobs, sampled=written.sampled, turns=turns,
        first_version=written.first_version, last_version=turns[-1].version, score=score,
    )  # fmt: skip


def difference_of(episode: Episode, written: Written) -> str | None:
    """Return the first difference between an episode and one that was written down, or None."""
    for token, (ours, theirs) in enumerate(zip(episode.token_ids, written.token_ids, strict=False)):
        if ours != theirs:
            return f"token {token} is {ours} and not {theirs}"
        if (p := episode.logprobs[token]) != (q := written.logprobs[token]):
            return f"the log-probability of token {token} is {p:.9g} and not {q:.9g} (apart by {abs(p - q):.1e})"
    compared: dict[str, tuple[Any, Any]] = {
        "number of tokens": (len(episode.token_ids), len(written.token_ids)),
        "turns (start, end, version)": ([(t.start, t.end, t.version) for t in episode.turns], written.turns),
        "first version": (episode.first_version, written.first_version),
        "reward": (episode.scored.reward, written.reward),
    }
    apart = next((name for name, (ours, theirs) in compared.items() if ours != theirs), None)
    return apart and f"the {apart} is {compared[apart][0]!s:.60} and not {compared[apart][1]!s:.60}"


def _difference_of_metrics(step: int, metrics: dict[str, float], row: MetricsRow) -> str | None:
    # A row counts the episodes of the whole run.
    compared = metrics.keys() & row.keys() - {"episodes"}
    apart = next((name for name in metrics if name in compared and row[name] != metrics[name]), None)
    return apart and f"step {step}: the learner's {apart} is {metrics[apart]!r} and not {row[apart]!r}"


def _compare_weights(found: Replayed, execution: Execution, name: str, file: Path) -> None:
    """Compare the newest weights, and the optimizer's state if it is there, with ``file``."""
    found.weights.append(name)
    own = execution.learner.policy.model.state_dict() | execution.learner.state_dict()
    try:
        apart = next((f"{n} is apart by {d:.1e}" for n, d in _distances(file, own)), None)
    except (OSError, SafetensorError) as error:
        apart = f"it cannot be read: {error}"
    if found.note(apart and f"the weights of the {name}: {apart}"):
        found.same_weights.append(name)


def _distances(file: Path, own: dict[str, torch.Tensor]) -> Iterator[tuple[str, float]]:
    """Yield the name of every tensor that is not the same, and the largest distance."""
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            tensor, ours = opened.get_tensor(name), own.get(name)
            if ours is not None:
                ours = ours.detach().cpu()
                if tensor.shape != ours.shape:
                    yield name, math.inf
                elif not torch.equal(tensor, ours):
                    yield name, float((tensor.double() - ours.double()).abs().max())


def _reason(recording: Recording, found: Replayed) -> str:
    """Say what the likeliest reason is for a difference."""
    here = machine()
    for sitting in recording.journal.sittings:
        for name, value in sitting.machine.items():
            if value != here[name]:
                return f"the run's {name} was {value}, and this is {here[name]}: their last bits differ"
    config = recording.config
    if config.services.trainer_processes > 1:
        return f"the run's trainer had {config.services.trainer_processes} processes, which add up gradients in another order"
    if recording.policy.model.device.type != "cpu" or (config.device != "cpu" and torch.cuda.is_available()):
        return "a GPU adds up in an order of its own, which differs from call to call"
    if recording.journal.lost:
        return f"the journal lacks events of {recording.journal.lost}, so its rows are decoded beside others than in the run"
    if (found.same_steps, found.same_episodes) == (found.steps, found.episodes) and found.weights != found.same_weights:
        return "every step was the same, so the files of the weights are not what the run wrote"
    return "same versions and processor: the policy or the task was changed since, or this is a mistake of the replay"
