"""The learner, on real episodes of the embedded policy."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.errors import ConfigError, TrainingDiverged
from zorplex_rl.learning.advantages import by_prefix
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.checkpoint import load_learner, save_learner
from zorplex_rl.learning.learner import (
    LOSS_SETTINGS,
    Learner,
    loss_of,
    response_logprobs,
    token_logprobs,
)
from zorplex_rl.learning.losses import LOSSES, LossInputs, policy_loss
from zorplex_rl.learning.train_simple import compare, play
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.model import embed
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def episodes(embedded):
    """Four groups of four, one of each kind."""
    zorplex = Zorplex(0)
    tasks = zorplex.tasks(
        ("simple:easy", "compositional:easy", "multi_step:easy", "recursive:easy"), 4, "train"
    )
    return play(embedded, zorplex, [task for task in tasks for _ in range(4)], seed=0)


@pytest.fixture(scope="module")
def advantages(episodes):
    return [
        a for i in range(0, 16, 4) for a in compare([e.score.reward for e in episodes[i : i + 4]])
    ]


def fresh(embedded: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(
        copy.deepcopy(embedded.model).to(dtype), embedded.tokenizer, embedded.name, embedded.eos_ids
    )


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
    metrics = Learner(policy, LearnerConfig(loss=loss, updates_per_batch=2)).step(
        episodes[:4], advantages[:4]
    )
    assert not torch.equal(before, weights(policy))
    promised = "loss entropy grad_norm mismatch_kl max_logp_difference ratio_max effective_sample_size reward lag_max"
    of_loss = policy_loss(
        LOSSES[loss], LossInputs(*torch.ones(2, 1, 1), torch.ones(1), torch.ones(1, 1))
    )[1]
    assert {*promised.split(), *of_loss} <= metrics.keys()


@pytest.fixture
def unclipped(monkeypatch):
    """Gradients of any size."""
    monkeypatch.setattr("zorplex_rl.learning.learner.MAX_GRAD_NORM", 1e9)


def gradient(embedded, episodes, advantages, dtype=torch.float32, **settings) -> torch.Tensor:
    """That of one step: AdamW's first moment is in proportion to it."""
    learner = Learner(fresh(embedded, dtype), LearnerConfig(**settings))
    learner.step(episodes, advantages)
    return torch.cat([moments["exp_avg"].flatten() for moments in learner.optimizer.state.values()])


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


ONE_EPISODE_AT_A_TIME, ALL_AT_ONCE = 1, 100_000


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 0.008)])
def test_many_micro_batches_add_up_to_the_gradient_of_few(
    unclipped, embedded, episodes, advantages, dtype, bound
):
    """Where processors do not multiply bfloat16, that is a quarter of the episodes."""
    some = slice(0, len(episodes) // (1 if dtype == torch.float32 else 4))
    many = 2 * episodes[some], 2 * advantages[some], dtype
    whole, split = (
        gradient(embedded, *many, token_budget=n) for n in (ALL_AT_ONCE, ONE_EPISODE_AT_A_TIME)
    )
    assert distance(split, whole) < bound


def test_what_is_judged_by_episode_is_the_same_in_micro_batches(
    unclipped, embedded, episodes, advantages
):
    noise = torch.Generator().manual_seed(0)
    old = [copy.copy(episode) for episode in episodes]
    for stale in old:
        stale.logprobs = [x + 0.3 * torch.randn((), generator=noise).item() for x in stale.logprobs]
    whole = gradient(embedded, old, advantages, loss="gspo", token_budget=ALL_AT_ONCE)
    assert (
        distance(
            gradient(embedded, old, advantages, loss="gspo", token_budget=ONE_EPISODE_AT_A_TIME),
            whole,
        )
        < 2e-6
    )
    assert distance(whole, gradient(embedded, episodes, advantages, loss="gspo")) > 0.01


def test_the_gradient_of_what_many_tokens_share_is_added_up_in_float32(embedded):
    """In bfloat16 a sum of ones ends at 256."""
    table, count = fresh(embedded, torch.bfloat16).model.model.embed_tokens.weight, 1000
    embed(table, torch.full((1, count), 7)).sum(dtype=torch.float32).backward()
    assert (table.grad[7] == count).all()


@pytest.mark.parametrize("budget", [100_000, 300, 1])
def test_each_distinct_beginning_runs_once_and_the_budget_bounds_every_micro_batch(
    episodes, advantages, budget
):
    batches = collate(episodes, advantages, budget)
    assert sorted(i for batch in batches for i in batch.episodes) == list(range(16))
    for batch in batches:
        assert batch.tree.ids.numel() <= budget or len(batch.episodes) == 1
        for row, (index, place) in enumerate(
            zip(batch.episodes, batch.tree.token_index, strict=True)
        ):
            episode = episodes[index]
            assert batch.tree.ids[place].tolist() == episode.prompt_ids + episode.token_ids[:-1]
            before = batch.before[row, : len(episode.token_ids)]
            assert torch.equal(before, place[len(episode.prompt_ids) - 1 :])
    whole = sum(batch.tree.ids.numel() for batch in batches)
    assert (whole < sum(len(e.prompt_ids) + len(e.token_ids) - 1 for e in episodes)) == (budget > 1)


def test_an_episode_without_advantage_leaves_no_trace_in_the_gradient(
    unclipped, embedded, episodes, advantages
):
    muted = [0.0] * 4 + advantages[4:]
    share = sum(sum(e.sampled) for e in episodes[4:]) / sum(sum(e.sampled) for e in episodes)
    without = gradient(embedded, episodes[4:], muted[4:]) * share
    torch.testing.assert_close(gradient(embedded, episodes, muted), without, atol=1e-7, rtol=1e-4)


def test_injected_tokens_carry_no_gradient(embedded, episodes):
    episode = next(e for e in episodes if e.tool_calls)
    tampered = copy.copy(episode)
    tampered.logprobs = [
        lp if s else -99.0 for lp, s in zip(episode.logprobs, episode.sampled, strict=True)
    ]
    changed = []
    for one in (episode, tampered):
        policy = fresh(embedded)
        Learner(policy).step([one], [1.0])
        changed.append(weights(policy))
    assert torch.equal(*changed)


@pytest.mark.parametrize("knob", LOSS_SETTINGS)
def test_a_setting_of_a_loss_is_one_of_the_configuration_and_refused_where_the_loss_has_none(knob):
    assert getattr(LearnerConfig(), knob) is None
    for name, row in LOSSES.items():
        config = LearnerConfig(loss=name, **{knob: 0.07})
        if math.isfinite(getattr(row, knob)):
            assert getattr(loss_of(config), knob) == 0.07
        else:
            with pytest.raises(ConfigError, match=f"--{knob.replace('_', '-')} .*--loss {name}"):
                loss_of(config)


def test_with_credit_by_prefix_every_token_has_the_gradient_of_its_own_advantage(
    embedded, episodes, advantages
):
    credit = by_prefix(episodes, advantages)
    assert any(len(set(values)) > 1 for values in credit)
    config = LearnerConfig(loss="reinforce", credit="prefix")
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


def test_a_loss_that_is_not_finite_does_not_reach_the_weights(embedded, episodes, advantages):
    learner = Learner(fresh(embedded), LearnerConfig())
    before = weights(learner.policy)
    with pytest.raises(TrainingDiverged, match="the loss of step 1 is (inf|nan)"):
        learner.step(episodes, [1e39 * a for a in advantages])
    assert torch.equal(weights(learner.policy), before)


def test_small_steps_do_not_vanish_in_bfloat16(embedded, episodes, advantages):
    learner = Learner(
        fresh(embedded, torch.bfloat16), LearnerConfig(learning_rate=1e-7, warmup_steps=1)
    )
    before, masters = (
        weights(learner.policy),
        [m.detach().clone() for m in learner.optimizer.masters],
    )
    learner.step(episodes[:4], advantages[:4])
    moved = torch.cat(
        [(m != b).flatten() for m, b in zip(learner.optimizer.masters, masters, strict=True)]
    )
    assert (weights(learner.policy) == before).float().mean() > 0.99
    assert moved.float().mean() > 0.9
    assert all(p.dtype == torch.bfloat16 for p in learner.policy.model.parameters())


def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(embedded, episodes, advantages):
    learner = Learner(fresh(embedded), LearnerConfig())
    before = weights(learner.policy)
    next(learner.policy.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingDiverged, match="the norm of the gradient of step 1 is (nan|inf)"):
        learner.step(episodes[:4], advantages[:4])
    assert learner.version == 0
    assert torch.equal(weights(learner.policy), before)
