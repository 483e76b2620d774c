"""A run's recorded episodes are scored by another reward, without sampling: what would have been paid?"""

from __future__ import annotations

import shutil

import pytest
from runs import SMALL, train_here

from zorplex_rl.cli.commands import main
from zorplex_rl.simulation.rescore import other_task, rescore
from zorplex_rl.simulation.what_if import read_recording

pytestmark = pytest.mark.slow

REWARD = """
from dataclasses import replace

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.rewards import score_turns


class Reward(Environment):
    def task(self, index, split):
        raise NotImplementedError("the questions are those of the run")

    def score(self, task, turns, tool_calls, finish):
        score = score_turns(task, turns, tool_calls, finish)
        return {score}
"""


def reward_file(folder, score):
    path = folder / "reward.py"
    path.write_text(REWARD.format(score=score))
    return str(path)


@pytest.fixture(scope="module")
def of_all_kinds(tmp_path_factory):
    config = SMALL.changed(task="mix", prompts_per_step=8, steps=2, max_turns=3, max_tokens=48)
    return train_here(config, tmp_path_factory.mktemp("mix") / "run")


def test_the_run_s_own_reward_pays_what_was_paid_however_an_episode_ended(of_all_kinds, tmp_path):
    """So turns, calls and ends are read from the recorded tokens as the rollout read them."""
    recording = read_recording(of_all_kinds.path)
    other = other_task(recording, reward_file(tmp_path, "score"), None)
    paid = rescore(recording, other)
    assert [step.step for step in paid] == [1, 2]
    for step in paid:
        assert len(set(step.recorded)) > 2
        assert step.other == pytest.approx(step.recorded)
    ended = reward_file(
        tmp_path, "replace(score, correct=['eos', 'answer', 'turns', 'tokens'].index(finish) * 1.0)"
    )
    found = rescore(recording, other_task(recording, ended, None))
    assert len({value for step in found for value in step.other}) > 2


def test_the_command_says_what_each_step_would_have_been_paid(sync_run, tmp_path, capsys):
    shutil.copytree(sync_run.path, tmp_path / "run")
    file = reward_file(tmp_path, "replace(score, correct=5.0, format=0.0, extra_calls=0.0)")
    assert main(["replay", str(tmp_path / "run"), "--task", file]) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in steps] == [f"step {step}" for step in (1, 2, 3, 4)]
    assert all(line.endswith("the other reward 5.000") for line in steps)
    episodes = 4 * SMALL.prompts_per_step * SMALL.group_size
    assert last == f"{episodes} of {episodes} episodes would have been paid otherwise"


def test_the_file_that_a_run_was_trained_on_is_replayed_and_a_changed_one_scores(tmp_path, capsys):
    file = tmp_path / "own.py"
    own = (
        REWARD.format(score="score")
        .replace(
            'raise NotImplementedError("the questions are those of the run")',
            'from zorplex_rl.task.environment import Zorplex; return Zorplex(self.seed, ("simple:easy",)).task(index, split)',
        )
        .replace(
            "(Environment):\n",
            '(Environment):\n    tools = ("LOOKUP",)\n\n    def execute(self, task, call):\n        return "7"\n\n',
        )
    )
    file.write_text(own)
    config = SMALL.changed(task=str(file), steps=1)
    run = train_here(config, tmp_path / "run")
    assert main(["replay", str(run.path), "--task", str(file)]) == 0
    assert "the same, bit for bit" in capsys.readouterr().out
    file.write_text(own.replace("return score\n", "return replace(score, correct=2.0)\n"))
    assert main(["replay", str(run.path), "--task", str(file)]) == 0
    assert "8 of 8 episodes would have been paid otherwise" in capsys.readouterr().out
