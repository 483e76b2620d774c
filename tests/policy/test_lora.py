"""Adapters: what is trained beside a frozen model, what travels and is stored of it, and who reads it."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from conftest import babbler
from safetensors.torch import load_file

from zorplex_rl.config import LearnerConfig
from zorplex_rl.errors import CheckpointError, PolicyError
from zorplex_rl.learning.checkpoint import load_learner, save_learner
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.learning.train_simple import compare, play
from zorplex_rl.policy.load import EMBEDDED_PATH, Policy, load_policy, policy_folder, save_model
from zorplex_rl.policy.lora import (
    AdaptedLinear,
    adapt,
    adapted_layers,
    as_it_began,
    merge,
    merge_to_sample,
    merged_weights,
    save_adapter,
)
from zorplex_rl.policy.model_folder import digest_of
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.weights.layout import Layout

IDS = torch.arange(3, 43)[None]
RANK = 4


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(IDS).logits


def moved(policy: Policy, seed: int = 0) -> Policy:
    """The policy, with some adapter."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapted_layers(policy.model).values():
            layer.lora_b.copy_(0.02 * torch.randn(layer.lora_b.shape, generator=draws))
    return policy


@pytest.fixture
def adapted() -> Policy:
    return load_policy(lora_rank=RANK)


@pytest.fixture(scope="module")
def batch(embedded):
    """Four groups of four episodes, with their advantages."""
    zorplex = Zorplex(0)
    tasks = zorplex.tasks(("compositional:easy",), 4, "train")
    episodes = play(embedded, zorplex, [task for task in tasks for _ in range(4)], seed=0)
    rewards = [episode.scored.reward for episode in episodes]
    return episodes, [a for i in range(0, 16, 4) for a in compare(rewards[i : i + 4])]


def test_an_adapted_model_begins_as_the_one_that_it_adapts(adapted, embedded):
    assert torch.equal(logits(adapted), logits(embedded))


def test_a_sampler_computes_with_one_weight_in_a_layer_what_the_trainer_does_with_two_paths(
    adapted,
):
    trainer = logits(moved(adapted))
    weights = {name: value.clone() for name, value in adapted.model.named_parameters()}
    merge_to_sample(adapted.model)
    torch.testing.assert_close(logits(adapted), trainer, rtol=0, atol=1e-4)
    assert all(
        torch.equal(value, weights[name]) for name, value in adapted.model.named_parameters()
    )


def test_a_sampler_that_gets_another_version_merges_again(adapted, embedded):
    merge_to_sample(moved(adapted).model)
    first = logits(adapted)
    merge_to_sample(moved(adapted, seed=1).model)
    assert not torch.allclose(logits(adapted), first, atol=1e-2)


def test_another_version_of_a_large_layer_takes_the_place_of_the_one_before():
    draws = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512))
    model[0] = layer = AdaptedLinear(model[0], RANK, draws)
    x = torch.randn(3, 512, generator=draws)
    places = set()
    for _ in range(3):
        torch.nn.init.normal_(layer.lora_b, generator=draws)
        merge_to_sample(model)
        places.add(id(layer.whole))
        with torch.inference_mode():
            expected = x @ layer.merged().T + layer.bias
            torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)
    assert len(places) == 1


def test_in_bfloat16_a_sampler_computes_the_paths():
    policy = moved(load_policy(lora_rank=RANK, dtype="bfloat16"))
    before = logits(policy)
    merge_to_sample(policy.model)
    assert torch.equal(logits(policy), before)


def test_each_linear_layer_but_the_output_layer_has_a_path_and_nothing_else_is_trained(adapted):
    trained = {name for name, value in adapted.model.named_parameters() if value.requires_grad}
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert len(adapted_layers(adapted.model)) == len(kinds) * adapted.model.config.num_hidden_layers
    assert trained == {
        f"{name}.lora_{side}" for name in adapted_layers(adapted.model) for side in "ab"
    }


def test_the_log_probs_of_the_trainer_are_those_of_the_sampler(adapted):
    policy, zorplex = moved(adapted), Zorplex(0)
    episodes = play(policy, zorplex, zorplex.tasks(("compositional:easy",), 8, "train"), seed=0)
    for episode, logprobs in zip(episodes, response_logprobs(policy, episodes), strict=True):
        own = [x for x, sampled in zip(logprobs, episode.sampled, strict=True) if sampled]
        written = [
            x for x, sampled in zip(episode.logprobs, episode.sampled, strict=True) if sampled
        ]
        assert own == pytest.approx(written, abs=1e-4)


def test_a_step_changes_the_adapter_alone_and_keeps_nothing_for_the_weights(adapted, batch):
    before = {name: value.clone() for name, value in adapted.model.named_parameters()}
    learner = Learner(adapted, LearnerConfig(warmup_steps=0))
    learner.step(*batch)
    changed = {
        name
        for name, value in adapted.model.named_parameters()
        if not torch.equal(value, before[name])
    }
    # With B at zero A has no gradient yet.
    assert changed == {f"{name}.lora_b" for name in adapted_layers(adapted.model)}
    learner.step(*batch)
    numbers = sum(value.numel() for name, value in before.items() if "lora" in name)
    assert sum(t.numel() for t in learner.state_dict().values()) == pytest.approx(
        3 * numbers, rel=0.01
    )


def test_what_is_published_is_the_adapter(adapted, embedded):
    numbers = sum(p.numel() for p in adapted.model.parameters() if p.requires_grad)
    assert Layout.of(adapted.model).size == 4 * numbers < Layout.of(embedded.model).size / 4


def test_merged_the_model_computes_the_same_and_so_does_the_folder_that_is_written(
    adapted, tmp_path
):
    policy = moved(adapted)
    expected = logits(policy)
    save_model(policy.model, policy.tokenizer, tmp_path / "merged")
    assert (
        load_file(tmp_path / "merged" / "model.safetensors").keys()
        == merged_weights(policy.model).keys()
    )
    torch.testing.assert_close(
        logits(load_policy(str(tmp_path / "merged"))), expected, atol=1e-4, rtol=1e-4
    )
    merge(policy.model)
    assert not adapted_layers(policy.model) and all(
        p.requires_grad for p in policy.model.parameters()
    )
    torch.testing.assert_close(logits(policy), expected, atol=1e-4, rtol=1e-4)


def test_a_model_that_transformers_computes_is_adapted_alike(tokenizer):
    ours, theirs = (babbler(tokenizer, "llama", foreign=foreign) for foreign in (False, True))
    for policy in (ours, theirs):
        adapt(policy.model, RANK)
        moved(policy)
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("foreign", [False, True])
def test_peft_loads_the_adapter_onto_the_model_with_the_same_logits(tokenizer, tmp_path, foreign):
    peft = pytest.importorskip("peft")
    base = babbler(tokenizer, "llama", foreign=True)
    policy = babbler(tokenizer, "llama", foreign=foreign)
    adapt(policy.model, RANK)
    save_adapter(moved(policy).model, "a model", "", tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base.model), tmp_path)
    torch.testing.assert_close(
        logits(replace(base, model=theirs)), logits(policy), atol=1e-5, rtol=1e-4
    )


def test_the_folder_of_an_adapter_is_a_policy_to_go_on_from(adapted, embedded, tmp_path):
    policy = moved(adapted)
    save_adapter(policy.model, "embedded", digest_of(EMBEDDED_PATH), tmp_path)
    assert policy_folder(str(tmp_path)) == EMBEDDED_PATH
    again = load_policy(str(tmp_path), lora_rank=RANK)
    assert torch.equal(logits(again), logits(policy))
    merged = load_policy(str(tmp_path))
    assert not adapted_layers(merged.model)
    torch.testing.assert_close(logits(merged), logits(policy), atol=1e-4, rtol=1e-4)
    # A penalty for leaving the start is for leaving this one.
    started = logits(again)
    with as_it_began(moved(again, seed=1).model):
        assert torch.equal(logits(again), started)
    assert not torch.equal(logits(again), started)


def test_an_adapter_of_another_model_or_rank_is_refused(adapted, tmp_path):
    save_adapter(adapted.model, "embedded", "another digest", tmp_path)
    with pytest.raises(PolicyError, match="its adapter belongs to another model"):
        load_policy(str(tmp_path))
    save_adapter(adapted.model, "embedded", digest_of(EMBEDDED_PATH), tmp_path)
    with pytest.raises(PolicyError, match="has rank 4; give --lora-rank 4, or 0"):
        load_policy(str(tmp_path), lora_rank=8)


def test_a_checkpoint_names_its_model_and_is_not_loaded_onto_another_one(
    adapted, embedded, batch, tmp_path
):
    learner = Learner(adapted, LearnerConfig(warmup_steps=0))
    learner.step(*batch)
    save_learner(learner, tmp_path)
    again = Learner(load_policy(lora_rank=RANK), LearnerConfig())
    load_learner(again, tmp_path)
    assert torch.equal(logits(again.policy), logits(adapted))
    other = load_policy(lora_rank=RANK)
    save_model(moved(load_policy(lora_rank=1)).model, embedded.tokenizer, tmp_path / "other")
    for policy in (load_policy(), load_policy(str(tmp_path / "other"), lora_rank=RANK)):
        with pytest.raises(CheckpointError, match="another model than policy"):
            load_learner(Learner(policy, LearnerConfig()), tmp_path)
    load_learner(Learner(other, LearnerConfig()), tmp_path)


def test_the_reference_of_a_kl_penalty_is_the_model_without_its_adapter(adapted, batch):
    """So the first step has no distance to it, and the second has one, without a second model."""
    learner = Learner(
        adapted, LearnerConfig(kl_coefficient=0.1, warmup_steps=0, learning_rate=1e-2)
    )
    assert learner.step(*batch)["reference_kl"] == pytest.approx(0, abs=1e-9)
    assert learner.step(*batch)["reference_kl"] > 1e-6
