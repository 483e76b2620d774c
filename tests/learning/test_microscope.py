"""The microscope: what is arithmetic and what is age in the ratio of a token."""

from __future__ import annotations

import copy

import pytest
import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.learning.losses import decoupled_ppo
from zorplex_rl.learning.microscope import NO_CACHE, compare, factors, in_type, sample_as, score_as
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.rollout import RolloutRequest
from zorplex_rl.task.environment import Zorplex

ENVIRONMENT = Zorplex(0)


def requests(count=2):
    tasks = ENVIRONMENT.tasks(("simple:easy", "compositional:easy"), 2, "train")
    return [RolloutRequest(task, 10 * g + i, g) for g, task in enumerate(tasks) for i in range(count)]


@pytest.fixture(scope="module")
def episodes(embedded):
    """Sampled in bfloat16, with the weights of ``embedded``."""
    return sample_as(in_type(embedded, "bfloat16"), requests(), ENVIRONMENT.execute)


@pytest.fixture(scope="module")
def later(embedded, episodes):
    """The policy after a large step."""
    policy = Policy(copy.deepcopy(embedded.model), embedded.tokenizer, embedded.name, embedded.eos_ids)
    Learner(policy, LearnerConfig(learning_rate=1e-3, warmup_steps=1)).step(episodes, [1.0, -1.0, 1.0, -1.0])
    return policy


def test_the_two_factors_multiply_to_the_ratio_of_the_present_policy_to_the_sampler(embedded, later, episodes):
    found = factors(episodes, embedded, later)
    present = response_logprobs(later, episodes)
    whole = [
        (new - old, sampled)
        for e, row in zip(episodes, present, strict=True)
        for new, old, sampled in zip(row, e.logprobs, e.sampled, strict=True)
    ]
    expected = torch.tensor([apart for apart, sampled in whole if sampled], dtype=torch.float64).exp()
    torch.testing.assert_close(found.numerics.exp() * found.staleness.exp(), expected, atol=0, rtol=1e-6)
    # Neither is the whole.
    assert found.numerics.abs().max() > 1e-3 and found.staleness.abs().max() > 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_equal_arithmetic_has_no_numerics_bit_for_bit_however_old_the_weights(embedded, later, episodes, dtype):
    then, now = in_type(embedded, dtype), in_type(embedded, dtype)
    now.model.load_state_dict(later.model.state_dict())
    same = score_as(then, episodes)
    assert (factors(same, then).whole == 0).all()
    old = factors(same, then, now)
    assert (old.numerics == 0).all() and torch.equal(old.whole, old.staleness) and old.staleness.any()


def test_the_same_weights_have_no_staleness_whatever_their_sampler_computed_in(embedded, episodes):
    found = factors(episodes, embedded).describe()
    assert found["staleness"]["max_logp_difference"] == 0 < found["numerics"]["max_logp_difference"]
    assert found["whole"] == found["numerics"]


def test_every_kind_of_sampler_is_measured_and_fewer_bits_are_further_off(embedded):
    looks = compare(embedded, requests(), ENVIRONMENT.execute, slots=(4, NO_CACHE))
    assert [look.path for look in looks] == 3 * ["cache, 4 at once", "no cache", "as the trainer"]
    moment = {(look.dtype, look.path): look.found["second_moment"] for look in looks}
    assert moment["float32", "as the trainer"] == 0
    for path in ("cache, 4 at once", "no cache", "as the trainer"):
        float32, bfloat16, float16 = (moment[dtype, path] for dtype in ("float32", "bfloat16", "float16"))
        assert float32 < 1e-10 < float16 < bfloat16 < 1e-2


def test_a_step_with_the_log_probs_of_the_sampling_version_bounds_each_factor_by_itself(embedded, later, episodes):
    config = LearnerConfig(loss="decoupled_ppo", truncation=1.002, clip_low=0.05, clip_high=0.05)
    advantages = [1.0, -1.0, 1.0, -1.0]
    found = factors(episodes, embedded, later)
    good = torch.tensor([a > 0 for a, e in zip(advantages, episodes, strict=True) for s in e.sampled if s])
    learner = Learner(Policy(copy.deepcopy(later.model), later.tokenizer, later.name, later.eos_ids), config)
    metrics = learner.step(episodes, advantages, proximal_logprobs=response_logprobs(embedded, episodes))
    numerics, staleness = found.numerics.exp(), found.staleness.exp()
    expected = {
        "truncated_fraction": numerics > 1.002,
        "clip_fraction_high": (staleness > 1.05) & good,
        "clip_fraction_low": (staleness < 0.95) & ~good,
    }
    for name, where in expected.items():
        assert metrics[name] == pytest.approx(where.double().mean().item()) and 0 < metrics[name] < 1


def test_with_the_log_probs_of_the_sampling_version_decoupled_ppo_corrects_each_factor_by_itself():
    """The numerics are truncated, the staleness is clipped; neither bound sees the other factor."""
    then = torch.zeros(4, 1)
    numerics, staleness = torch.tensor([[0.5], [1.5], [0.5], [1.5]]), torch.tensor([[0.1], [0.1], [0.3], [0.3]])
    logp = (then + staleness).requires_grad_()
    loss, found = decoupled_ppo(logp, then - numerics, torch.ones(4), torch.ones(4, 1), proximal_logp=then)
    weights = torch.autograd.grad(loss, logp)[0] / -staleness.exp() * 4
    torch.testing.assert_close(
        weights[:, 0], torch.tensor([0.5, torch.tensor(2.0).log(), 0.0, 0.0]).exp() * torch.tensor([1.0, 1.0, 0.0, 0.0])
    )
    assert found == {"clip_fraction_low": 0.0, "clip_fraction_high": 0.5, "truncated_fraction": 0.5}
