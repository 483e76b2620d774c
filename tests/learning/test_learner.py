"""The learner, on real episodes of the embedded policy."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch

from zorplex_rl.config import LOSS_KNOBS, Config, LearnerConfig
from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.learning import train_simple
from zorplex_rl.learning.advantages import by_prefix, group_relative
from zorplex_rl.learning.batches import collate, split_by_tokens
from zorplex_rl.learning.checkpoint import load_learner, save_learner
from zorplex_rl.learning.learner import Learner, _rows, embed, response_logprobs, response_states, token_logprobs
from zorplex_rl.learning.losses import LOSSES, policy_loss
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def episodes(embedded):
    """Four groups of four, one of each kind."""
    zorplex = Zorplex(0)
    tasks = zorplex.tasks(("simple:easy", "compositional:easy", "multi_step:easy", "recursive:easy"), 4, "train")
    requests = [RolloutRequest(task, 10 * g + i, g) for g, task in enumerate(tasks) for i in range(4)]
    found = rollout(embedded, requests, zorplex.execute, Sampling())
    for episode in found:
        episode.score = score(episode)
    return found


@pytest.fixture(scope="module")
def advantages(episodes):
    groups = [[e.score.reward for e in episodes[i : i + 4]] for i in range(0, 16, 4)]
    return [a for group in group_relative(groups) for a in group]


def fresh(embedded: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(copy.deepcopy(embedded.model).to(dtype), embedded.tokenizer, embedded.name, embedded.eos_ids)


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in policy.model.parameters()])


def test_the_log_probs_of_the_trainer_are_those_of_the_sampler(embedded, episodes):
    for episode, found in zip(episodes, response_logprobs(embedded, episodes), strict=True):
        assert len(found) == len(episode.token_ids)
        for mine, theirs, sampled in zip(found, episode.logprobs, episode.sampled, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4) if sampled else mine == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_takes_a_step_with_all_diagnostics(embedded, episodes, advantages, loss):
    policy = fresh(embedded)
    before = weights(policy)
    metrics = Learner(policy, LearnerConfig(loss=loss, updates_per_batch=2)).step(episodes[:4], advantages[:4])
    assert not torch.equal(before, weights(policy))
    promised = (
        "loss entropy grad_norm mismatch_kl second_moment max_logp_difference ratio_mean ratio_max effective_sample_size episode_sample_size "
        "reward accuracy format_rate truncation_rate lag_mean lag_max"
    )
    assert set(promised.split()) <= metrics.keys()
    of_loss = policy_loss(LOSSES[loss], *torch.ones(2, 1, 1), torch.ones(1), torch.ones(1, 1))[1]
    assert set(of_loss) <= metrics.keys()


def test_the_token_budget_bounds_memory_and_does_not_change_the_gradient(embedded, episodes, advantages):
    found = []
    for budget in (100_000, 300):
        policy = fresh(embedded)
        assert all(
            b.ids.numel() + b.prompts.shape[1] * len(b.ids) <= budget for b in collate(episodes, advantages, budget)
        )
        metrics = Learner(policy, LearnerConfig(token_budget=budget)).step(episodes, advantages)
        found.append((weights(policy), metrics["loss"], metrics["grad_norm"]))
    (whole, loss, norm), (split, split_loss, split_norm) = found
    torch.testing.assert_close(whole, split, atol=1e-5, rtol=0)
    assert (loss, norm) == pytest.approx((split_loss, split_norm), rel=1e-4)


def gradient(embedded, episodes, advantages, dtype, budget, loss="grpo") -> torch.Tensor:
    """That of one step, whatever its size: AdamW's first moment is in proportion to it."""
    learner = Learner(fresh(embedded, dtype), LearnerConfig(loss=loss, token_budget=budget, max_grad_norm=1e9))
    learner.step(episodes, advantages)
    return torch.cat([moments["exp_avg"].flatten() for moments in learner.optimizer.state.values()])


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


ONE_EPISODE_AT_A_TIME = 1
ALL_AT_ONCE = 100_000


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.008)])
def test_many_micro_batches_add_up_to_the_gradient_of_few(embedded, episodes, advantages, dtype, bound):
    """Four times the same episodes: 64 micro-batches, and as few as there can be."""
    whole = gradient(embedded, 4 * episodes, 4 * advantages, dtype, ALL_AT_ONCE)
    split = gradient(embedded, 4 * episodes, 4 * advantages, dtype, ONE_EPISODE_AT_A_TIME)
    assert distance(split, whole) < bound


@pytest.mark.parametrize("loss", ["gspo", "m2po", "sequence_rejection", "geometric_rejection"])
def test_what_is_judged_by_episode_or_batch_is_the_same_in_micro_batches(embedded, episodes, advantages, loss):
    """m2po's mask is that of the whole batch: one episode alone would have another."""
    noise, old = torch.Generator().manual_seed(0), []
    for episode in episodes:
        stale = copy.copy(episode)
        stale.logprobs = [x + 0.3 * torch.randn((), generator=noise).item() for x in episode.logprobs]
        old.append(stale)
    whole = gradient(embedded, old, advantages, torch.float32, ALL_AT_ONCE, loss)
    split = gradient(embedded, old, advantages, torch.float32, ONE_EPISODE_AT_A_TIME, loss)
    assert distance(split, whole) < 2e-6
    assert distance(whole, gradient(embedded, episodes, advantages, torch.float32, ALL_AT_ONCE, loss)) > 0.01


def test_the_log_probs_of_a_bfloat16_model_are_rounded_no_more_than_its_last_hidden_states(
    embedded, episodes, advantages
):
    policy = fresh(embedded, torch.bfloat16)
    batch, *_ = collate(episodes, advantages, ALL_AT_ONCE)
    sampled = batch.mask.bool()
    with torch.no_grad():
        found = token_logprobs(policy, batch)[0][sampled]
        states = response_states(policy.model, batch)[sampled].float()
        logits = states @ policy.model.get_output_embeddings().weight.float().T
    expected = logits.log_softmax(-1).gather(1, batch.ids[sampled][:, None])[:, 0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_gradient_of_what_many_tokens_share_is_added_up_in_float32(embedded):
    """In bfloat16 a sum of ones ends at 256."""
    count = 1000
    shared = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    _rows(shared, torch.zeros(count, dtype=torch.long)).sum(dtype=torch.float32).backward()
    assert shared.grad.item() == count
    model = fresh(embedded, torch.bfloat16).model
    embed(model, torch.full((1, count), 7)).sum(dtype=torch.float32).backward()
    assert (model.get_input_embeddings().weight.grad[7] == count).all()


def test_a_group_runs_its_prompt_once(episodes, advantages):
    for batch in collate(episodes, advantages, 100_000):
        assert len(batch.prompts) == len({tuple(episodes[i].prompt_ids) for i in batch.episodes})
        for row, index in zip(batch.follows.tolist(), batch.episodes, strict=True):
            prompt = batch.prompts[row, : batch.prompt_lengths[row]].tolist()
            assert prompt == episodes[index].prompt_ids


def test_an_episode_without_advantage_leaves_no_trace_in_the_gradient(embedded, episodes, advantages):
    changed, muted = [], [0.0 if i < 4 else advantage for i, advantage in enumerate(advantages)]
    for chosen in (range(16), range(4, 16)):
        policy = fresh(embedded)
        learner = Learner(policy, LearnerConfig(max_grad_norm=1e9))
        learner.step([episodes[i] for i in chosen], [muted[i] for i in chosen])
        changed.append(torch.cat([m["exp_avg"].flatten() for m in learner.optimizer.state.values()]))
    share = sum(sum(e.sampled) for e in episodes[4:]) / sum(sum(e.sampled) for e in episodes)
    torch.testing.assert_close(changed[0], changed[1] * share, atol=1e-7, rtol=1e-4)


def test_every_row_is_in_exactly_one_micro_batch():
    lengths = [7, 3, 9, 9, 1, 30]
    batches = split_by_tokens(lengths, 18)
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= 18


def test_better_than_expected_becomes_likelier_and_worse_less_likely(embedded, episodes, advantages):
    policy = fresh(embedded)
    before = [sum(row) for row in response_logprobs(policy, episodes)]
    learner = Learner(policy, LearnerConfig(learning_rate=1e-3, warmup_steps=1))
    for _ in range(3):
        learner.step(episodes, advantages)
    after = [sum(row) for row in response_logprobs(policy, episodes)]
    gained = [a - b for a, b in zip(after, before, strict=True)]
    assert sum(g * a for g, a in zip(gained, advantages, strict=True)) > 0.5


def test_injected_tokens_carry_no_gradient(embedded, episodes):
    episode = next(e for e in episodes if e.tool_calls)
    tampered = copy.copy(episode)
    tampered.logprobs = [lp if s else -99.0 for lp, s in zip(episode.logprobs, episode.sampled, strict=True)]
    changed = []
    for one in (episode, tampered):
        policy = fresh(embedded)
        Learner(policy).step([one], [1.0])
        changed.append(weights(policy))
    assert torch.equal(*changed)


def test_every_setting_of_a_loss_can_be_set_in_the_configuration_and_has_one_default():
    for knob, losses in LOSS_KNOBS.items():
        assert getattr(LearnerConfig(), knob) is None
        assert set(losses) == {name for name, row in LOSSES.items() if math.isfinite(getattr(row, knob))}


def test_the_learning_rate_has_one_default_whichever_way_one_trains(embedded):
    default = Config().learner.learning_rate
    assert Learner(fresh(embedded)).config.learning_rate == default
    assert inspect.signature(train_simple.train).parameters["learning_rate"].default == default


@pytest.mark.parametrize(
    ("loss", "knob"), [("grpo", {"clip_low": 1e-4}), ("dapo", {"clip_high": 1e-4}), ("m2po", {"truncation": 1e-9})]
)
def test_a_setting_of_a_loss_changes_what_is_learned(embedded, episodes, advantages, loss, knob):
    config, found = Config().changed(loss=loss, updates_per_batch=2), []
    for chosen in (config, config.changed(**knob)):
        chosen.check()
        policy = fresh(embedded)
        Learner(policy, chosen.learner).step(episodes[:4], advantages[:4])
        found.append(weights(policy))
    assert not torch.equal(*found)


def test_small_steps_do_not_vanish_in_bfloat16(embedded, episodes, advantages):
    policy = fresh(embedded, torch.bfloat16)
    learner = Learner(policy, LearnerConfig(learning_rate=1e-7, warmup_steps=1))
    before = weights(policy)
    masters = torch.cat([m.detach().flatten() for m in learner.optimizer.masters])
    learner.step(episodes, advantages)
    moved = torch.cat([m.detach().flatten() for m in learner.optimizer.masters]) - masters
    assert (weights(policy) == before).float().mean() > 0.99
    assert (moved != 0).float().mean() > 0.9
    assert all(p.dtype == torch.bfloat16 for p in policy.model.parameters())


def test_with_credit_by_prefix_every_token_has_the_gradient_of_its_own_advantage(embedded, episodes, advantages):
    credit = by_prefix(episodes, advantages)
    assert any(len(set(values)) > 1 for values in credit)
    config = LearnerConfig(loss="reinforce", credit="prefix", max_grad_norm=1e9)
    found = Learner(fresh(embedded), config).step(episodes, advantages)
    policy = fresh(embedded)
    total, tokens = torch.tensor(0.0), sum(sum(episode.sampled) for episode in episodes)
    for episode, values in zip(episodes, credit, strict=True):
        (batch,) = collate([episode], [1.0], 8192)
        logp, _ = token_logprobs(policy, batch)
        total = total - (torch.tensor([values]) * logp * batch.mask).sum() / tokens
    total.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in policy.model.parameters()])
    assert found["loss"] == pytest.approx(total.item(), abs=1e-6)
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_continues_bit_for_bit(embedded, episodes, advantages, tmp_path, dtype):
    config = LearnerConfig()
    straight = Learner(fresh(embedded, dtype), config)
    for _ in range(2):
        straight.step(episodes[:4], advantages[:4])
    interrupted = Learner(fresh(embedded, dtype), config)
    interrupted.step(episodes[:4], advantages[:4])
    save_learner(interrupted, tmp_path / "checkpoint")
    resumed = Learner(fresh(embedded, dtype), config)
    load_learner(resumed, tmp_path / "checkpoint")
    resumed.step(episodes[:4], advantages[:4])
    assert resumed.version == straight.version == 2
    assert torch.equal(weights(resumed.policy), weights(straight.policy))


def test_all_that_the_optimizer_keeps_is_where_the_weights_are(embedded):
    """A fused AdamW on a GPU refuses a step count in main memory. Here, a device without memory stands for one."""
    policy = fresh(embedded, torch.bfloat16)
    policy.model.to("meta")
    for of_one in Learner(policy).optimizer.state.values():
        assert {name: value.device.type for name, value in of_one.items()} == dict.fromkeys(
            ("step", "exp_avg", "exp_avg_sq"), "meta"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_that_leaves_nothing_finite_names_its_step(embedded, episodes, advantages, dtype):
    learner = Learner(fresh(embedded, dtype), LearnerConfig(learning_rate=1e30))
    with pytest.raises(TrainingDiverged, match="the largest logit of step 1 is nan"):
        learner.step(episodes, advantages)
    assert learner.version == 0


def test_one_infinite_weight_is_found_wherever_it_is(embedded, episodes, advantages, monkeypatch):
    optimizer = (learner := Learner(fresh(embedded))).optimizer
    step = optimizer.step

    def overflow(learning_rate):
        step(learning_rate)
        with torch.no_grad():
            optimizer.parameters[-1].flatten()[-1] = float("inf")

    monkeypatch.setattr(optimizer, "step", overflow)
    with pytest.raises(TrainingDiverged, match="the largest weight of step 1 is inf"):
        learner.step(episodes, advantages)


def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(embedded, episodes, advantages):
    learner = Learner(fresh(embedded), LearnerConfig())
    before = weights(learner.policy)
    next(learner.policy.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingDiverged, match="the norm of the gradient of step 1 is nan"):
        learner.step(episodes, advantages)
    assert torch.equal(weights(learner.policy), before)


def test_a_loss_that_is_not_finite_does_not_reach_the_weights(embedded, episodes, advantages):
    learner = Learner(fresh(embedded), LearnerConfig())
    before = weights(learner.policy)
    with pytest.raises(TrainingDiverged, match="the loss of step 1 is (inf|nan)"):
        learner.step(episodes, [1e39 * a for a in advantages])
    assert torch.equal(weights(learner.policy), before)
