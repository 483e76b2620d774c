"""Failures that users of other frameworks for asynchronous RL have reported, injected here. Each is
survived, or named in one sentence.

A report is told in a test's docstring as its authors tell it; what has become of it there since, the
thread says. Two more are in ``training/test_faults.py``, where every role of a run is lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from runs import SMALL, as_flags, command, rows, train_here, train_on

from zorplex_rl.run.folder import RunFolder
from zorplex_rl.simulation.what_if import read_recording

pytestmark = pytest.mark.slow

CONFIG = SMALL.changed(max_lag=1, steps=4, checkpoint_every=1)
TASK = """
import random, time
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import WORDS_OF

class Lookups(Environment):
    tools = ("LOOKUP",)

    def task(self, index, split):
        draw = random.Random(f"{self.seed} {split} {index}")
        word, value = draw.choice(WORDS_OF[split]), draw.randrange(100)
        table = {word: value, "index": index if split == "train" else None}
        return Task("lookups", f"What is {word}?", value, 1, "Use LOOKUP[word], then [ANSWER] and the integer.",
                    words=(word,), table=table)

    def execute(self, task, call):
        if task.table["index"] == 5:
            time.sleep(10**6)
        if task.table["index"] == 6:
            raise ConnectionError("the backend is gone")
        return str(task.table.get(call.argument, "ERROR"))
"""
SCORE = """
    def score(self, task, *rest):
        if task.table["index"] == 5:
            raise ConnectionError("the judge is gone")
        return super().score(task, *rest)
"""


@pytest.mark.parametrize(
    ("tool_latency", "resumed"), [(0.0, True), pytest.param(0.01, False, marks=pytest.mark.long)]
)
def test_a_tool_that_never_answers_or_fails_has_said_so_to_its_episodes_and_the_run_goes_on_and_is_resumed(
    tmp_path, tool_latency, resumed
):
    """NVIDIA-NeMo/RL issue 3238: a group counts only when all its rollouts have ended, so one
    tool call that hangs keeps the buffer short of a batch for ever; a resumed run draws the same
    prompt again, and is stuck again. In a separate process, tools wait in turn; in a generator, its
    rows."""
    task = str(tmp_path / "tasks.py")
    Path(task).write_text(TASK)
    config = CONFIG.changed(
        task=task, tool_timeout=0.5, tool_latency=tool_latency, group_size=2, checkpoint_every=2
    )
    run = train_here(config, tmp_path / "run")
    assert len(rows(run.path, "step")) == config.steps
    if resumed:
        # Step 3 has the tasks 5 and 6: they come again.
        for later in (run.checkpoints()[-1], run.policy):
            shutil.rmtree(later)
        train_on(config, run, resume=run.newest_checkpoint())
        assert len(rows(run.path, "step")) == config.steps
    recording = read_recording(run.path, task=task)
    assert [len(session.batches) for session in recording.sessions] == ([2, 2] if resumed else [4])
    said = {
        "] -> ERROR: timed out after 0.5 s": set(),
        "] -> ERROR: ConnectionError: the backend is gone": set(),
    }
    for batch in (batch for session in recording.sessions for batch in session.batches.values()):
        for place, episode in enumerate(batch.episodes):
            text = recording.policy.tokenizer.decode(episode.token_ids)
            for answer, groups in said.items():
                groups |= {batch.groups[place // config.group_size]} if answer in text else set()
    assert list(said.values()) == [{5}, {6}]


def test_an_episode_whose_score_failed_is_no_episode_without_reward(tmp_path):
    """NVIDIA-NeMo/RL pull request 3470: an exception in a rollout was caught, and an empty answer
    with reward zero went into the group's baseline. Nothing failed; the advantages were wrong."""
    (tmp_path / "tasks.py").write_text(TASK + SCORE)
    flags = as_flags(CONFIG.changed(task=str(tmp_path / "tasks.py"), tool_timeout=0.5))
    folder = RunFolder(tmp_path / "run")
    with command("train", *flags, "--out", str(folder.path)) as running:
        code, said = running.finish()
        assert code == 1 and "Traceback" not in said, said
        assert running.all_gone()
    (sentence,) = [line for line in said.splitlines() if line.startswith("zorplex-rl")]
    line = 1 + (TASK + SCORE).partition('raise ConnectionError("the judge')[0].count("\n")
    assert f"ConnectionError: the judge is gone, in line {line} of" in sentence
    assert f"line {line}, in score" in folder.log.read_text(), "the traceback in the user's code"
    assert len(rows(folder.path, "step")) < CONFIG.steps, "the run does not count as done"
    assert not folder.policy.exists()
