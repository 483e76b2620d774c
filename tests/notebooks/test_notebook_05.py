"""Notebook 05: the planted fault shows in the diagnostics and in what is learned; the knobs show what Python computes; word problems are honest."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from test_notebooks import ENV_05, SAMPLING_05, load, small_05

from zorplex_rl.course import word_problems
from zorplex_rl.course.batch_times import batch_times
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.reward_weights import RewardWeights, lesson_of
from zorplex_rl.course.word_problems import Attempt, Recording, ask_word_problems
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.learner import response_logprobs
from zorplex_rl.learning.train_simple import compare
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy
from zorplex_rl.policy.tool_loop import encode_text
from zorplex_rl.task.rewards import score

ROOT = Path(__file__).parents[2]
notebook = load(ROOT / "notebooks" / "05_rl_intro.py")


@pytest.fixture(scope="module")
def batch(embedded):
    return notebook.write_batch(embedded, ENV_05, SAMPLING_05, small_05(samples=8), step=0)


def test_the_diagnostics_tell_the_planted_faults_from_the_solution(embedded, batch):
    planted = notebook.diagnose(embedded, batch, notebook.training_row)
    healthy = notebook.diagnose(embedded, batch, notebook.training_row_solution)
    learned, ends, mean, gap = healthy
    own = sum(sum(episode.sampled) for episode in batch)
    assert int(healthy[learned]) == own < int(planted[learned]), "the tools' tokens are trained on"
    assert int(planted[ends]) == 0 < int(healthy[ends]), "no text ends"
    assert float(healthy[gap]) < 1e-3 < 1 < float(planted[gap])
    assert int(planted[mean].rstrip("%")) < int(healthy[mean].rstrip("%"))


@pytest.mark.parametrize(
    "half_mended",
    [
        lambda policy, episode: (episode.token_ids, [True] * len(episode.token_ids)),
        lambda policy, episode: (
            encode_text(policy.tokenizer, episode.text),
            episode.sampled[: len(encode_text(policy.tokenizer, episode.text))],
        ),
    ],
    ids=["no mask", "no end"],
)
def test_each_of_the_two_faults_shows_alone(embedded, batch, half_mended):
    half, healthy = (notebook.diagnose(embedded, batch, row) for row in (half_mended, notebook.training_row_solution))
    assert half != healthy


def test_a_wrong_training_row_is_seen_in_what_the_policy_learns():
    """With the planted fault in the loop the policy learns to foresee, and so to invent, what tools answer."""

    def foreseen_after(row_of):
        generator, trainer = load_policy(), load_policy()
        tasks = notebook.write_batch(generator, ENV_05, SAMPLING_05, small_05(prompts=8), step=99)
        # Every episode is taken for good, so that only the row decides what becomes more likely.
        notebook.training_loop(
            generator,
            trainer,
            ENV_05,
            SAMPLING_05,
            small_05(steps=3, learning_rate=1e-3),
            lambda rewards: [1.0] * len(rewards),
            row_of,
            lambda step, batch: None,
        )
        everything = [replace(episode, sampled=[True] * len(episode.sampled)) for episode in tasks]
        return fmean(
            logprob
            for episode, logprobs in zip(tasks, response_logprobs(trainer, everything), strict=True)
            for own, logprob in zip(episode.sampled, logprobs, strict=True)
            if not own
        )

    torch.manual_seed(0)
    assert foreseen_after(notebook.training_row) > foreseen_after(notebook.training_row_solution) + 0.3


def test_the_default_weights_are_those_of_the_package(batch):
    assert [RewardWeights().reward(episode.score) for episode in batch] == pytest.approx(
        [episode.score.reward for episode in batch]
    )
    groups = [batch[start : start + 8] for start in range(0, len(batch), 8)]
    taught = lesson_of(groups, RewardWeights(), compare)
    by_hand = [
        (episode.score.outcome, advantage)
        for group in groups
        for episode, advantage in zip(group, compare([e.score.reward for e in group]), strict=True)
    ]
    assert taught.advantages == pytest.approx(
        {outcome: fmean(a for o, a in by_hand if o == outcome) for outcome in taught.advantages}
    )
    assert set(taught.advantages) == {outcome for outcome, _ in by_hand}


def test_without_any_weight_no_group_teaches(batch):
    groups = [batch[start : start + 8] for start in range(0, len(batch), 8)]
    taught = lesson_of(groups, RewardWeights(0.0, 0.0, 0.0), compare)
    assert (taught.teaching, taught.groups) == (0, len(groups))
    assert set(taught.advantages.values()) == {0.0}


def test_a_larger_batch_waits_longer_and_a_slower_tool_too():
    seconds, calls = [1.0, 1.2, 1.5, 3.0], [1, 2, 2, 3]
    by_size = [batch_times(seconds, calls, size, 0.3).slowest for size in (8, 32, 128)]
    by_tool = [batch_times(seconds, calls, 32, tool).slowest for tool in (0.0, 0.3, 3.0)]
    assert by_size == sorted(by_size) and by_tool == sorted(by_tool)
    assert by_tool[0] == pytest.approx(3.0, abs=0.01)
    one = batch_times(seconds, calls, 1, 0.3)
    assert one.slowest == one.episode and one.waiting == pytest.approx(0.0)


def test_the_mean_delay_is_the_one_asked_for():
    times = batch_times([0.0], [4], size=64, tool_seconds=0.5, draws=2000)
    assert times.episode == pytest.approx(4 * 0.5, rel=0.02)
    with pytest.raises(ValueError, match="0 seconds and 0 counts of calls"):
        batch_times([], [], 8, 0.1)


@pytest.mark.parametrize(
    "lenient",
    [
        r"^#### (-?\d[\d,]*)$",
        r"#### (-?[0-9]+(?:,[0-9]{3})*)",
        r"^#### (-?[0-9]+(?:,[0-9]{3})*)$",
        r"^#### (-?[0-9]+)\s*$",
    ],
    ids=["commas anywhere", "any line", "no blank at the end", "no commas"],
)
def test_a_verifier_that_is_not_strict_does_not_pass(lenient):
    def attempt(text, answer):
        found = re.findall(lenient, text, re.MULTILINE)
        return float(bool(found) and int(found[-1].replace(",", "")) == answer)

    assert exercise.complaint(notebook.check_math_reward, attempt) is not None
    assert exercise.complaint(notebook.check_math_reward, notebook.math_reward_solution) is None


def test_the_last_record_of_the_twenty_steps_is_told_with_its_date():
    log = (ROOT / "benchmarks" / "LOG.md").read_text()
    assert notebook.recorded_gains("") == ("", [])
    table = "\n\n| seed | before | after | points | s | CPU s |\n|---|---|---|---|---|---|\n| 0 | 29.5% | 25.0% | -4.5 | 9.4 | 8.4 |\n"
    newer = f"{log}\n## 2099-01-02 · benchmarks/twenty_steps.py{table}\n## 2099-01-03 · another.py\n\n| 1 | +7.0 |\n"
    assert notebook.recorded_gains(newer) == ("2099-01-02", [-4.5])
    date, gains = notebook.recorded_gains(log)
    assert date in log and len(gains) >= 5


def test_the_leave_one_out_advantage_is_the_centred_reward_by_a_constant():
    rewards = [1.2, 0.2, 0.0, -0.1]
    assert notebook.leave_one_out_solution(rewards) == pytest.approx([4 / 3 * (r - fmean(rewards)) for r in rewards])


def test_a_model_of_a_folder_is_asked_recorded_and_read_again(tmp_path, capsys):
    assert word_problems.main([str(EMBEDDED_PATH), "--out", str(tmp_path / "found.json")]) == 0
    assert "embedded has " in capsys.readouterr().out
    found = Recording.read(tmp_path / "found.json")
    assert list(found.attempts) == ask_word_problems(load_policy())
    assert found.command == "python -m zorplex_rl.course.word_problems embedded"
    assert str(EMBEDDED_PATH.parent) not in (tmp_path / "found.json").read_text(), "no path of the machine"


def test_what_is_no_model_and_what_is_no_recording_is_said(tmp_path, capsys):
    assert word_problems.main([str(tmp_path / "none"), "--out", str(tmp_path / "found.json")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert Recording.read(tmp_path / "none.json") is None
    (tmp_path / "wrong.json").write_text(json.dumps({"attempts": [], "model": "x"}))
    with pytest.raises(ConfigError, match=r"wrong.json is no recording of word problems"):
        Recording.read(tmp_path / "wrong.json")


def shown_word_problems(embedded, folder="") -> str:
    output, _ = notebook.word_problems.run(
        config=small_05(), model_folder=SimpleNamespace(value=str(folder)), policy=embedded
    )
    return output.text


def test_the_page_says_of_every_answer_who_gave_it_and_when(embedded, monkeypatch, tmp_path):
    monkeypatch.setattr(Recording, "read", classmethod(lambda cls: None))
    alone = shown_word_problems(embedded)
    assert alone.count("Run on this page") == 1 and "none is shown" in alone
    asked = shown_word_problems(embedded, EMBEDDED_PATH)
    assert asked.count("Run on this page") == 2 and "none is shown" not in asked
    assert "does not exist" in shown_word_problems(embedded, tmp_path / "none")
    attempts = (Attempt("How many?", 3, "three\n[ANSWER] 3", True),)
    recording = Recording("some-model", 494_000_000, "python -m … some-model", "2026-01-02", attempts)
    monkeypatch.setattr(Recording, "read", classmethod(lambda cls: recording))
    recorded = shown_word_problems(embedded)
    assert "Not run here, but recorded on 2026-01-02" in recorded and "some-model" in recorded
    assert "494 million parameters: 1 of 1 right" in recorded and "none is shown" not in recorded


def test_an_attempt_is_right_only_by_the_strict_parser(monkeypatch):
    """The answers are those of arithmetic, and the page's own policy is judged like any other."""
    assert [answer for _, answer in word_problems.WORD_PROBLEMS] == [12 * 7, 35 - 8 + 20, 20 + 65]
    judged = []
    monkeypatch.setattr(word_problems, "score", lambda episode: judged.append(score(episode)) or judged[-1])
    attempts = ask_word_problems(load_policy())
    assert [attempt.right for attempt in attempts] == [
        found.answer == a.answer for found, a in zip(judged, attempts, strict=True)
    ]


def test_the_first_cells_wait_for_no_library_that_they_do_not_use():
    """The setup cell needs torch; transformers, scipy and matplotlib take seconds, and load with what uses them."""
    notebook_path = ROOT / "notebooks" / "05_rl_intro.py"
    code = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('nb', {str(notebook_path)!r}); "
        "module = importlib.util.module_from_spec(spec); sys.modules['nb'] = module; spec.loader.exec_module(module); "
        "print([name for name in ('transformers', 'scipy', 'matplotlib', 'monarch') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert said.stdout.strip().splitlines()[-1] == "[]"


def test_the_error_of_a_batchs_reward_falls_with_its_root(batch):
    """What the page calls the error of the mean is what drawn batches scatter by."""
    dice = torch.Generator().manual_seed(0)
    rewards = torch.tensor([episode.score.reward for episode in batch])
    means = rewards[torch.randint(len(rewards), (4000, 64), generator=dice)].mean(1)
    assert float(means.std()) == pytest.approx(float(rewards.std(correction=0)) / math.sqrt(64), rel=0.05)
