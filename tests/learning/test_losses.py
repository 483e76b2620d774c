"""The losses against their formulas, written out by hand, and against each other where theory says
they agree."""

import math

import pytest
import torch

from zorplex_rl.learning.advantages import ADVANTAGES, batch_baseline, group_relative, zero_variance_share
from zorplex_rl.learning.losses import (
    LOSSES,
    dapo,
    decoupled_ppo,
    effective_sample_size,
    episode_ratios,
    grpo,
    kl_penalty,
    mismatch,
    reinforce,
    tis,
)


def tensors(seed=0, rows=3, width=5, shift=0.3):
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(rows, width, generator=generator) * 2
    logp = (behaviour + shift * torch.randn(rows, width, generator=generator)).requires_grad_()
    advantage = torch.randn(rows, generator=generator)
    mask = (torch.rand(rows, width, generator=generator) < 0.7).float()
    mask[:, 0] = 1
    return logp, behaviour, advantage, mask


def by_hand(term, logp, behaviour, advantage, mask):
    total = sum(
        term(logp[i, t].item(), behaviour[i, t].item(), advantage[i].item())
        for i in range(mask.shape[0])
        for t in range(mask.shape[1])
        if mask[i, t]
    )
    return total / mask.sum().item()


def clip(value, low, high):
    return max(low, min(high, value))


FORMULAS = {
    "reinforce": lambda p, b, a: -a * p,
    "grpo": lambda p, b, a: -min(math.exp(p - b) * a, clip(math.exp(p - b), 0.8, 1.2) * a),
    "dapo": lambda p, b, a: -min(math.exp(p - b) * a, clip(math.exp(p - b), 0.8, 1.28) * a),
    "tis": lambda p, b, a: -min(math.exp(p - b), 2.0) * a * p,
    "decoupled_ppo": lambda p, b, a: -min(math.exp(p - b), 2.0) * a,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_equals_its_formula_summed_by_hand_over_sampled_tokens(name):
    found, _ = LOSSES[name](*tensors(shift=1.0))
    assert found.item() == pytest.approx(by_hand(FORMULAS[name], *tensors(shift=1.0)), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_all_losses_have_the_policy_gradient(name):
    logp, _, advantage, mask = tensors()
    LOSSES[name](logp, logp.detach(), advantage, mask)[0].backward()
    expected = -advantage[:, None] * mask / mask.sum()
    torch.testing.assert_close(logp.grad, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_masked_tokens_have_no_gradient_and_their_values_do_not_matter(name):
    logp, behaviour, advantage, mask = tensors()
    loss, _ = LOSSES[name](logp, behaviour, advantage, mask)
    loss.backward()
    assert (logp.grad[mask == 0] == 0).all()
    disturbed = (logp + 7 * (1 - mask)).detach()
    assert LOSSES[name](disturbed, behaviour, advantage, mask)[0].item() == pytest.approx(loss.item())


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_add_up_to_the_batch_for_loss_and_diagnostics(name):
    logp, behaviour, advantage, mask = tensors(shift=1.0)
    whole, found = LOSSES[name](logp, behaviour, advantage, mask)
    tokens = mask.sum().item()
    parts = [
        LOSSES[name](logp[i : i + 1], behaviour[i : i + 1], advantage[i : i + 1], mask[i : i + 1], tokens=tokens)
        for i in range(3)
    ]
    assert sum(part.item() for part, _ in parts) == pytest.approx(whole.item(), rel=1e-5)
    for key, value in found.items():
        assert sum(diagnostics[key] for _, diagnostics in parts) == pytest.approx(value)


def test_clipping_stops_the_gradient_only_where_the_ratio_has_moved_the_way_the_advantage_wants():
    behaviour = torch.zeros(4, 1)
    logp = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    _, found = grpo(logp, behaviour, advantage, torch.ones(4, 1))
    grpo(logp, behaviour, advantage, torch.ones(4, 1))[0].backward()
    assert (logp.grad[:, 0] == 0).tolist() == [True, False, False, True]
    assert found == {"clip_fraction_low": 0.25, "clip_fraction_high": 0.25}


def test_dapo_lets_a_good_token_grow_where_the_symmetric_clip_holds_it():
    logp = torch.tensor([[math.log(1.25)]], requires_grad=True)
    arguments = (torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1))
    assert torch.autograd.grad(grpo(logp, *arguments)[0], logp)[0].item() == 0
    assert torch.autograd.grad(dapo(logp, *arguments)[0], logp)[0].item() < 0


def test_truncated_importance_sampling_bounds_the_weight_of_a_token():
    logp = torch.tensor([[5.0]], requires_grad=True)
    gradient = torch.autograd.grad(
        tis(logp, torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1), truncation=2.0)[0], logp
    )[0]
    assert gradient.item() == pytest.approx(-2.0)


def test_decoupled_ppo_clips_against_the_recent_policy_and_not_against_the_stale_one():
    behaviour, proximal = torch.full((1, 1), -1.0), torch.zeros(1, 1)
    logp = torch.tensor([[0.05]], requires_grad=True)
    arguments = (behaviour, torch.ones(1), torch.ones(1, 1))
    assert torch.autograd.grad(grpo(logp, *arguments)[0], logp)[0].item() == 0
    near = torch.autograd.grad(decoupled_ppo(logp, *arguments, proximal_logp=proximal)[0], logp)[0].item()
    assert near == pytest.approx(-2.0 * math.exp(0.05), rel=1e-5)


def test_diagnostics_of_an_on_policy_batch_say_so_exactly():
    logp, _, _, mask = tensors()
    assert mismatch(logp, logp.detach(), mask) == {
        "mismatch_kl": 0.0,
        "max_logp_difference": 0.0,
        "ratio_mean": 1.0,
        "ratio_max": 1.0,
        "effective_sample_size": 1.0,
    }


def test_the_mismatch_estimate_agrees_with_the_exact_kl_on_samples_of_a_known_distribution():
    behaviour = torch.tensor([0.5, 0.3, 0.2])
    policy = torch.tensor([0.4, 0.4, 0.2])
    tokens = torch.multinomial(behaviour, 200_000, replacement=True, generator=torch.Generator().manual_seed(0))
    found = mismatch(policy.log()[tokens][None], behaviour.log()[tokens][None], torch.ones(1, len(tokens)))
    exact = (behaviour * (behaviour / policy).log()).sum().item()
    assert found["mismatch_kl"] == pytest.approx(exact, rel=0.03)
    assert found["ratio_mean"] == pytest.approx(1.0, abs=0.01)


def test_less_is_left_of_whole_episodes_than_of_their_tokens():
    behaviour = torch.zeros(64, 20)
    logp = 0.2 * torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(64, 20)
    tokens = mismatch(logp, behaviour, mask)["effective_sample_size"]
    episodes = effective_sample_size(episode_ratios(logp, behaviour, mask))
    # The logarithm of an episode's ratio has 20 times the variance of a token's: exp(-0.04) and
    # exp(-20 * 0.04) are expected.
    assert tokens == pytest.approx(0.96, abs=0.02)
    assert episodes == pytest.approx(0.45, abs=0.12)


def test_what_a_tool_wrote_has_no_part_in_the_ratio_of_an_episode():
    logp, mask = torch.tensor([[-1.0, -9.0]]), torch.tensor([[1.0, 0.0]])
    assert episode_ratios(logp, torch.tensor([[-1.0, 0.0]]), mask).tolist() == [1.0]


def test_the_kl_penalty_is_zero_at_the_reference_and_pulls_towards_it():
    reference = torch.tensor([[-1.0]])
    assert kl_penalty(reference, reference, torch.ones(1, 1)).item() == 0
    logp = torch.tensor([[-0.5]], requires_grad=True)
    assert torch.autograd.grad(kl_penalty(logp, reference, torch.ones(1, 1)), logp)[0].item() > 0


def test_every_loss_has_an_advantage():
    assert ADVANTAGES.keys() == LOSSES.keys()


def test_group_relative_advantages_compare_within_a_group_only():
    first, second = group_relative([[1.0, 0.0, 0.0, 0.0], [5.0, 4.0, 4.0, 4.0]])
    assert first == pytest.approx(second)
    assert sum(first) == pytest.approx(0.0, abs=1e-9)
    assert group_relative([[0.2, 0.2, 0.2]]) == [[0.0, 0.0, 0.0]]
    # Failures in a batch teach nothing unless a group has both.
    assert group_relative([[0.0, 0.0], [1.0, 1.0]]) == [[0.0, 0.0], [0.0, 0.0]]


def test_the_batch_baseline_needs_no_groups():
    assert batch_baseline([[1.0], [0.0], [0.5]]) == [[0.5], [-0.5], [0.0]]
    assert zero_variance_share([[1.0, 1.0], [1.0, 0.0]]) == 0.5
    assert reinforce is LOSSES["reinforce"]
