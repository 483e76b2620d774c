"""Failures that users of other frameworks for asynchronous RL have reported, injected here. Each is
survived, or named in one sentence within ten seconds.

A report is told in a test's docstring as its authors tell it; what has become of it there since, the
thread says. Two more are in ``training/test_faults.py``, where every role of a run is lost.
"""

from __future__ import annotations

import ast
import json
import shutil
import time
from pathlib import Path

import pytest
from runs import SMALL, as_flags, command, rows, train_here, train_on

import zorplex_rl
from zorplex_rl.cli.commands import main
from zorplex_rl.config import LOSS_KNOBS, Config
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.simulation.replay import read_recording

CONFIG = SMALL.changed(max_lag=1, steps=4, checkpoint_every=1, task_timeout=2.0)
SECONDS = 10
TASK = """
import random, time
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import WORDS_OF

class Lookups(Environment):
    tools = ("LOOKUP",)

    def task(self, index, split):
        draw = random.Random(f"{{self.seed}} {{split}} {{index}}")
        word, value = draw.choice(WORDS_OF[split]), draw.randrange(100)
        table = {{word: value, "odd": split == "train" and index == 5}}
        return Task("lookups", f"What is {{word}}?", value, 1, "Use LOOKUP[word], then [ANSWER] and the integer.",
                    words=(word,), table=table)

    def execute(self, task, call):
        if task.table["odd"]:
            {harm}
        return str(task.table.get(call.argument, "ERROR"))
"""


def run_of(folder: Path, harm: str) -> tuple[str, ...]:
    """The arguments of a run whose tool does ``harm`` in the sixth task, which step 3 has."""
    (folder / "tasks.py").write_text(TASK.format(harm=harm))
    return ("train", *as_flags(CONFIG.changed(task=str(folder / "tasks.py"))), "--out", str(folder / "run"))


def told(folder: Path, *arguments: str) -> tuple[float, str]:
    """Run until it ends with an error. Returns the seconds from its last step to its end, and what
    it said of the error."""
    with command(*arguments) as running:
        code, said = running.finish()
        ended = time.time()
        assert code == 1 and "Traceback" not in said, said
        assert running.all_gone(SECONDS)
    (sentence,) = [line for line in said.splitlines() if line.startswith("zorplex-rl")]
    return ended - (folder / "metrics.jsonl").stat().st_mtime, sentence


def test_one_rollout_that_never_ends_wedges_neither_the_run_nor_the_resumed_one(tmp_path):
    """NVIDIA-NeMo/RL issue 3238: a group counts only when all its rollouts have ended, so one
    tool call that hangs keeps the buffer short of a batch for ever; a resumed run draws the same
    prompt again, and is stuck again."""
    seconds, sentence = told(tmp_path / "run", *run_of(tmp_path, "time.sleep(10**6)"))
    assert "execute(" in sentence and "has not returned within 2 s (--task-timeout)" in sentence
    assert seconds < CONFIG.task_timeout + SECONDS
    done = len(rows(tmp_path / "run", "step"))
    _, sentence = told(tmp_path / "run", "train", "--resume", str(tmp_path / "run"))
    assert "has not returned within 2 s (--task-timeout)" in sentence
    assert len(rows(tmp_path / "run", "step")) >= done


@pytest.mark.parametrize(("tool_latency", "resumed"), [(0.0, True), (0.01, False)])
def test_a_tool_that_never_answers_has_timed_out_for_its_episode_and_the_run_goes_on_and_is_resumed(
    tmp_path, tool_latency, resumed
):
    """The same reports. In a process of their own, tools wait in turn; in a generator, its rows."""
    (tmp_path / "tasks.py").write_text(TASK.format(harm="time.sleep(10**6)"))
    task = {"task": str(tmp_path / "tasks.py"), "task_timeout": 60.0, "tool_timeout": 0.5}
    config = CONFIG.changed(**task, tool_latency=tool_latency, group_size=2, checkpoint_every=2)
    run = train_here(config, tmp_path / "run")
    assert len(rows(run.path, "step")) == config.steps
    if resumed:
        # Step 3 has the odd task: it comes again.
        for later in (run.checkpoints()[-1], run.policy):
            shutil.rmtree(later)
        train_on(config, run, resume=run.newest_checkpoint())
        assert len(rows(run.path, "step")) == config.steps
    recording = read_recording(run.path, trusts_task=True)
    assert [len(sitting.batches) for sitting in recording.journal.sittings] == ([2, 2] if resumed else [4])
    timed_out = set()
    for batch in recording.batches.values():
        for place, episode in enumerate(batch.episodes):
            if "] -> ERROR: timed out after 0.5 s" in recording.policy.tokenizer.decode(episode.token_ids):
                timed_out.add(batch.groups[place // config.group_size])
    assert timed_out == {5}


def test_a_failed_rollout_is_no_episode_without_reward(tmp_path):
    """NVIDIA-NeMo/RL pull request 3470: an exception in a rollout was caught, and an empty answer
    with reward zero went into the group's baseline. Nothing failed; the advantages were wrong."""
    _, sentence = told(tmp_path / "run", *run_of(tmp_path, "raise ConnectionError('the backend is gone')"))
    line = 1 + (tmp_path / "tasks.py").read_text().partition("raise ")[0].count("\n")
    assert "failed in execute(" in sentence and f"ConnectionError: the backend is gone, in line {line};" in sentence
    folder = RunFolder(tmp_path / "run")
    kept = [json.loads(line) for line in (folder.path / "episodes.jsonl").read_text().splitlines()]
    assert all("backend" not in row["text"] for row in kept)
    assert len(rows(folder.path, "step")) < CONFIG.steps, "the run does not count as done"
    assert not folder.policy.exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--loss", "reinforce", "--clip-high", "0.3"], "--clip-high"),
        (["--full-weights-every", "9", "--trainer-processes", "2"], "--full-weights-every"),
        (["--order", "freshest", "--max-lag", "0"], "--order"),
        (["--on-update", "restart", "--max-lag", "0"], "--on-update"),
        (["--max-staleness", "4"], "--max-staleness"),
    ],
)
def test_a_setting_that_could_have_no_effect_is_refused(flags, named, tmp_path, capsys):
    """huggingface/trl issue 7009: with one kernel a term of the loss is dropped without an error or
    a warning, although the setting for it stays on."""
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert named in said.err + said.out
    assert not (tmp_path / "run").exists()


def test_every_setting_is_read_somewhere():
    read = set()
    for path in Path(zorplex_rl.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if path.name == "config.py":
            # What its checks read does nothing yet.
            tree = ast.Module([node for node in ast.walk(tree) if ast.unparse(node).startswith("@property")], [])
        if path.name != "presets.py" and "course" not in path.parts:
            read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # The knobs go to the loss by their names.
    assert Config().settings().keys() - read - LOSS_KNOBS.keys() == set()
