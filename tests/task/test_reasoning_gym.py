"""Three environments of reasoning-gym, unmodified, with a policy that writes answers at random."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch
from conftest import babbler

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import TaskError
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.tool_loop import encode_prompt, encode_text
from zorplex_rl.policy.warmstart import save_policy
from zorplex_rl.task.source import EnvironmentSource

installed = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs zorplex-rl[reasoning-gym]")
NAMES = ("chain_sum", "count_bits", "lcm")
# <answer>4</answer>, and what comes of it when the dice fall otherwise.
HABITS: dict[str, dict[str, float]] = {
    "Ċ": {"<": 9}, "<": {"a": 3, "/": 3}, "/": {"a": 9}, "a": {"n": 9}, "n": {"s": 9}, "s": {"w": 9}, "w": {"e": 9}, "e": {"r": 9}, "r": {">": 9},
    ">": {"1": 2, "2": 2, "4": 2, "<|im_end|>": 3}, "1": {"<": 9}, "2": {"<": 9}, "4": {"<": 9},
}  # fmt: skip


def source(name: str, data: str = "") -> EnvironmentSource:
    return EnvironmentSource(f"reasoning-gym:{name}", data=data)


@pytest.fixture(scope="module")
def writer(tokenizer):
    return babbler(tokenizer, habits=HABITS)


@pytest.fixture(scope="module")
def folder(writer, tmp_path_factory) -> str:
    save_policy(writer, found := tmp_path_factory.mktemp("writer"))
    return str(found)


@installed
@pytest.mark.parametrize("name", NAMES)
def test_an_environment_of_the_library_passes_every_check(name, folder, capsys):
    code = main(["env", "check", f"reasoning-gym:{name}", "--policy", folder])
    said = capsys.readouterr().out
    assert code == 0 and f"Ready: zorplex-rl train --task reasoning-gym:{name} --policy {folder}" in said, said


@installed
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_measured_on_it(name, folder, tmp_path):
    task, file = f"reasoning-gym:{name}", tmp_path / "found.json"
    assert (
        main(["eval", "--task", task, "--policy", folder, "--tasks", "40", "--temperature", "1", "--json", str(file)])
        == 0
    )
    (report,) = json.loads(file.read_text())["tasks"]
    assert report["outcomes"]["wrong_answer"] > 0, report


@installed
@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_the_librarys_entry_and_its_score_the_librarys(name):
    import reasoning_gym

    environment = source(name).make()
    dataset = reasoning_gym.create_dataset(name, seed=0)
    tasks = [environment.task(index, split) for split in ("train", "held_out") for index in range(30)]
    assert len({task.question for task in tasks}) > 20
    for task in tasks:
        for said in (task.answer, f"{task.answer} or so", "no", ""):
            scored = environment.score(task, [f"So <answer> {said} </answer>"], 0, "eos")
            assert scored.correct == dataset.score_answer(said, task.table)
            assert (scored.outcome == "success") == (said == task.answer)


@installed
def test_settings_reach_the_library_and_a_question_is_in_one_split_only():
    environment = source("chain_sum", '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}').make()
    found = {
        split: {environment.task(index, split).question for index in range(300)} for split in ("train", "held_out")
    }
    assert all(20 < len(questions) < 200 for questions in found.values())
    assert not found["train"] & found["held_out"]


@installed
def test_what_the_policy_sampled_is_what_is_trained_on(writer):
    environment = source("chain_sum").make()
    tasks = [environment.task(index, "train") for index in range(8)]
    requests = [RolloutRequest(task, seed, seed) for seed, task in enumerate(tasks)]
    episodes = rollout(writer, requests, environment.execute, Sampling(max_tokens=48), environment=environment)
    for episode in episodes:
        assert episode.prompt_ids == encode_prompt(writer.tokenizer, episode.task) and all(episode.sampled)
        ids = torch.tensor([episode.prompt_ids + episode.token_ids])
        with torch.no_grad():
            logp = writer.model(ids).logits[0, len(episode.prompt_ids) - 1 : -1].log_softmax(-1)
        trained = logp[range(len(episode.token_ids)), episode.token_ids]
        assert torch.allclose(trained, torch.tensor(episode.logprobs), atol=1e-4)
    # It writes letter by letter where its tokenizer takes longer pieces: nothing was tokenised again.
    assert any(episode.token_ids != encode_text(writer.tokenizer, episode.text) for episode in episodes)


@installed
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("chain_sums", "", "reasoning-gym has no environment 'chain_sums'"),
        ("chain_sum", '{"terms": 2}', "unexpected keyword argument 'terms'"),
        ("boxnet", "", "the answer of task(0, 'train') is None; expected int or str"),
        ("count_bits", '{"min_n": 5, "max_n": 5}', "'reasoning-gym:count_bits' has too few questions for two splits"),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_sentence(name, data, said):
    with pytest.raises(TaskError) as refused:
        environment = source(name, data).make()
        [environment.task(0, split) for split in ("train", "held_out")]
    assert said in str(refused.value)


@pytest.mark.parametrize("task", ["reasoning-gym", "reasoning-gym:", "reasoning-gym:a b"])
def test_a_name_is_asked_for(task):
    with pytest.raises(TaskError, match="expected reasoning-gym:NAME"):
        EnvironmentSource.of(Config(task=task))


def test_where_the_library_is_missing_its_extra_is_named(monkeypatch):
    monkeypatch.setattr("zorplex_rl.task.source.find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"pip install 'zorplex-rl\[reasoning-gym\]'"):
        EnvironmentSource.of(Config(task="reasoning-gym:chain_sum"))
