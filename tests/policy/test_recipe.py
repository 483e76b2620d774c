"""The embedded policy's origin, ``recipes/embedded_policy.py``: its tokenizer, the careless
demonstrations, and a build that repeats to the byte."""

from __future__ import annotations

import importlib
import itertools
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from zorplex_rl.config import Config
from zorplex_rl.policy.load import Policy, load_policy, save_model
from zorplex_rl.policy.rollout import RolloutRequest, rollout
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.parser import find_call
from zorplex_rl.task.rewards import score, score_turns
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS, get_spec

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
sys.path.insert(0, str(RECIPES))
recipe = importlib.import_module("embedded_policy")
sys.path.remove(str(RECIPES))

SMALL = recipe.Recipe(batch_size=4, hidden_size=16, layers=1)
CAREFUL = recipe.Habits(
    tag_by_phrasing=(1.0, 1.0, 1.0), repeat_call=0, spam=0, ramble=0, guess=0, slip=0, hint=0
)


def built(of: recipe.Recipe, steps: int) -> tuple[Policy, list[float]]:
    """The policy of a recipe after ``steps`` steps of its first phase, and their losses."""
    policy = recipe.new_policy(of)
    return policy, list(itertools.islice(recipe.imitate(policy, of, 0), steps))


@pytest.fixture(scope="module")
def tokenizer():
    return recipe.build_tokenizer()


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def turns_of(demo) -> list[str]:
    return [text for text, written in demo.pieces if written]


def test_a_careful_demonstrator_is_right_with_exactly_the_calls_that_it_takes_within_the_limits(
    tokenizer,
):
    for kind, difficulty, seed in itertools.product(TASK_SPECS, DIFFICULTIES, range(40)):
        spec = get_spec(kind, seed, difficulty)
        demo = recipe.demonstrate(spec, spec.task(seed), random.Random(seed), CAREFUL)
        calls = sum(find_call(text) is not None for text in turns_of(demo))
        result = score_turns(demo.task, turns_of(demo), calls, "eos")
        assert demo.ends and calls == demo.task.min_tool_calls < Config.max_turns
        assert sum(len(ids_of(tokenizer, text)) for text, _ in demo.pieces) <= Config.max_tokens
        assert (result.outcome, result.reward) == ("success", pytest.approx(1.2))
        lines = re.findall(r"^(-?\d+)([+-])(\d+)=(-?\d+)$", turns_of(demo)[-1], re.MULTILINE)
        assert len(lines) == (DIFFICULTIES[difficulty] - 1 if kind == "compositional" else 0)
        assert all(
            int(a) + int(b) * (1 if sign == "+" else -1) == int(c) for a, sign, b, c in lines
        )


def test_labels_cover_what_the_policy_wrote_and_mask_prompts_and_injected_results(tokenizer):
    reader = Policy(None, tokenizer, "reader", (tokenizer.eos_token_id,))
    seen = {"result": 0, "prompt": 0, "drill": 0}
    rows = recipe.rows(reader, replace(SMALL, max_length=10_000), 0, random.Random(0))
    for ids, labels in itertools.islice(rows, 400):
        assert len(ids) == len(labels)
        assert all(
            label in (recipe.IGNORED, token) for token, label in zip(ids, labels, strict=True)
        )
        for learned, run in itertools.groupby(
            zip(ids, labels, strict=True), key=lambda pair: pair[1] >= 0
        ):
            text = tokenizer.decode([token for token, _ in run])
            if learned:
                assert "->" not in text and "<|im_start|>" not in text
            elif text.startswith("<|im_start|>system"):
                assert text.endswith("<|im_start|>assistant\n")
                seen["prompt"] += 1
            elif text.startswith(" -> "):
                assert text.endswith("\n")
                seen["result"] += 1
            else:
                assert re.fullmatch(r"-?\d+[+-]\d+", text)
                seen["drill"] += 1
    assert min(seen.values()) > 50
    for ids, labels in itertools.islice(
        recipe.batches(reader, replace(SMALL, max_length=50), 0), 20
    ):
        assert ids.shape == labels.shape and ids.shape[0] == SMALL.batch_size and ids.shape[1] <= 50
        assert torch.equal(ids[labels >= 0], labels[labels >= 0])


@pytest.mark.long
def test_two_builds_are_identical_to_the_byte_and_another_seed_is_another_policy(tmp_path):
    for name, disturbed, of in (("a", 1, SMALL), ("b", 2, SMALL), ("c", 1, replace(SMALL, seed=1))):
        torch.manual_seed(disturbed)
        random.seed(disturbed)
        policy, _ = built(of, 2)
        save_model(policy.model, policy.tokenizer, tmp_path / name)
    contents = {
        name: {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in "abc"
    }
    assert contents["a"] == contents["b"]
    assert contents["a"]["model.safetensors"] != contents["c"]["model.safetensors"]


@pytest.mark.long
@pytest.mark.parametrize("start", [None, "embedded"])
def test_the_script_writes_a_policy_that_rolls_out(tmp_path, start):
    """From nothing, and from a model that keeps its tokenizer."""
    out = tmp_path / "built"
    flags = ["--out", str(out), "--steps", "1", *(["--start", start] if start else [])]
    subprocess.run([sys.executable, str(RECIPES / "embedded_policy.py"), *flags], check=True)
    policy, embedded = load_policy(str(out)), load_policy()
    assert (policy.tokenizer.get_vocab() == embedded.tokenizer.get_vocab()) == bool(start)
    weight, before = (p.model.model.embed_tokens.weight for p in (policy, embedded))
    assert weight.shape[1] == before.shape[1] and not torch.equal(weight, before)
    env = Zorplex(0)
    (episode,) = rollout(policy, [RolloutRequest(env.task(0))], env.execute)
    assert episode.token_ids


@pytest.mark.long
@pytest.mark.parametrize("kind", recipe.KINDS)
def test_the_embedded_policy_is_right_between_15_and_45_percent_of_the_time_on_tables_it_never_saw(
    embedded, kind
):
    count, env = 200, Zorplex(seed=11)
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(env.tasks((kind,), count))]
    episodes = rollout(embedded, requests, env.execute)
    accuracy = sum(score(episode).outcome == "success" for episode in episodes) / count
    deviation = (accuracy * (1 - accuracy) / count) ** 0.5
    assert 0.15 - 2 * deviation < accuracy < 0.45 + 2 * deviation, accuracy
    assert (
        sum(episode.tool_calls >= episode.task.min_tool_calls for episode in episodes) > 0.8 * count
    )


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_no_call_and_no_answer_of_a_worked_example_is_right_for_its_task(kind):
    spec = get_spec(kind)
    for index in range(500):
        task = spec.task(index)
        example = recipe.worked_example(task)
        calls = re.findall(r"^(\w+\[\w+\]) -> (.+)$", example, re.MULTILINE)
        assert calls and not any(spec.run(task, call) == result for call, result in calls)
