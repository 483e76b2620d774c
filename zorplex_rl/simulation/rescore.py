"""What would another reward have paid? Score a run's recorded episodes again, without sampling.

journal ──► tokens of an episode ── attempt_of ──► what a score is made from ── the other task's score ──► reward
"""

from dataclasses import dataclass, replace
from statistics import fmean

from zorplex_rl.config import Config
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.tokenizer import decode_text
from zorplex_rl.run.journal import RecordedEpisode
from zorplex_rl.simulation.what_if import RecordedRun
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Finish
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.parser import answer_is_complete, find_call


@dataclass(frozen=True, slots=True)
class Paid:
    """The rewards of the episodes that one step was trained on, in their order."""

    step: int
    recorded: list[float]
    other: list[float]

    @property
    def means(self) -> tuple[float, float]:
        """The mean reward as recorded, and the other one."""
        return fmean(self.recorded), fmean(self.other)


def other_task(
    run: RecordedRun, task: str | None, task_data: str | None
) -> EnvironmentSource | None:
    """Return the task in the file ``task`` if it is not the one that the run was trained on, or None.
    Raises TaskError if it cannot be read."""
    if task is None:
        return None
    source = EnvironmentSource.of(run.config.changed(task=task, task_data=task_data))
    own = run.folder.path / "task.py"
    if run.source.code and own.is_file() and own.read_text(encoding="utf-8") == source.code:
        return None
    return source


def rescore(run: RecordedRun, other: EnvironmentSource) -> list[Paid]:
    """Return for each step what its episodes were paid, and what ``other``'s score would have paid. The
    questions stay those of the run: of Zorplex, or what the file of a task of one's own draws."""
    environment = run.source.make()
    judge = replace(other, shots=0).make()
    paid = []
    for step, batch in run.batches.items():
        rewards = []
        for place, episode in enumerate(batch.episodes):
            task = environment.task(batch.groups[place // run.config.group_size], "train")
            turns, tool_calls, finish = attempt_of(episode, run.policy, environment, run.config)
            rewards.append(judge.score(task, turns, tool_calls, finish).reward)
        paid.append(Paid(step, [episode.reward for episode in batch.episodes], rewards))
    return paid


def attempt_of(
    episode: RecordedEpisode,
    policy: Policy,
    environment: Environment,
    config: Config,
) -> tuple[list[str], int, Finish]:
    """Return the text of each turn, the number of tool calls, and what ended the episode, as
    ``ToolLoop`` told them from the same tokens."""
    turns = []
    for start, end, _ in episode.turns:
        turns.append(decode_text(policy.tokenizer, episode.token_ids[start:end], policy.eos_ids))
    last_line = turns[-1].removesuffix("\n").rpartition("\n")[2]
    called = find_call(last_line, environment.tools) is not None
    tool_calls = len(turns) if called else len(turns) - 1
    finish: Finish = "tokens"
    if end == len(episode.token_ids) and episode.token_ids[-1] in policy.eos_ids:
        finish = "eos"
    elif called and len(turns) >= config.max_turns:
        finish = "turns"
    elif answer_is_complete(turns[-1], environment.find_answer):
        finish = "answer"
    return turns, tool_calls, finish
