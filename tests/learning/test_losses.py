"""The losses against their formulas, written out by hand, and against each other where theory says
they agree."""

import math
from dataclasses import replace

import pytest
import torch

from zorplex_rl.learning.advantages import (
    batch_baseline,
    group_relative,
    mean_relative,
    zero_variance_share,
)
from zorplex_rl.learning.losses import LOSSES, LossInputs, kl_penalty, policy_loss
from zorplex_rl.learning.ratios import mismatch


def evaluate(name, *arguments, tokens=None, proximal_logp=None, **knobs):
    """The row ``name`` with these knobs."""
    given = LossInputs(*arguments, tokens, proximal_logp)
    return policy_loss(replace(LOSSES[name], **knobs), given)


def gradient(name, logp, *arguments, **given):
    return torch.autograd.grad(evaluate(name, logp, *arguments, **given)[0], logp)[0]


def tensors(seed=0, rows=3, width=5, shift=0.3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(rows, width, generator=generator) * 2
    logp = behaviour + shift * torch.randn(rows, width, generator=generator)
    advantage = torch.randn(rows, generator=generator)
    mask = (torch.rand(rows, width, generator=generator) < 0.7).float()
    mask[:, 0] = 1
    return logp.to(dtype).requires_grad_(), behaviour.to(dtype), advantage.to(dtype), mask.to(dtype)


def clip(value, low, high):
    return max(low, min(high, value))


def tokens_of(mask):
    return [(i, t) for i, row in enumerate(mask) for t, sampled in enumerate(row) if sampled]


# The losses as their papers write them, in Python's float64. ``p`` has a gradient, ``q`` is the
# same number as a constant: a weight or a mask. Each is made of its knobs.


def each_token(term):
    """The sum of term(p, q, b, A) over sampled tokens, divided by how many there are."""

    def loss(p, q, b, advantage, mask):
        chosen = tokens_of(mask)
        return sum(term(p[i][t], q[i][t], b[i][t], advantage[i]) for i, t in chosen) / len(chosen)

    return loss


def each_episode(term):
    """Those of term(Σ log r of p, that of q, Σ log π, tokens, A) over episodes, divided by the tokens."""

    def loss(p, q, b, advantage, mask):
        total = 0.0
        for i, row in enumerate(mask):
            own = [t for t, sampled in enumerate(row) if sampled]
            moved, constant = (sum(x[i][t] - b[i][t] for t in own) for x in (p, q))
            total += term(moved, constant, sum(p[i][t] for t in own), len(own), advantage[i])
        return total / len(tokens_of(mask))

    return loss


def clipped(ratio, a, low, high):
    return min(ratio * a, clip(ratio, 1 - low, 1 + high) * a)


def ppo(low, high):
    return each_token(lambda p, q, b, a: -clipped(math.exp(p - b), a, low, high))


def of_whole_episodes(low, high):
    """The mean of n · min(…) over episodes of n tokens."""
    return each_episode(lambda s, _, p, n, a: -n * clipped(math.exp(s / n), a, low, high))


def decoupled(low, high, c):
    """The proximal policy is halfway between the two others."""
    return each_token(
        lambda p, q, b, a: (
            -min(math.exp((q - b) / 2), c) * clipped(math.exp(p - (q + b) / 2), a, low, high)
        )
    )


def divergence(low, high, c):
    """DPPO: 0 where the probability has moved further than its bound, the way the advantage wants."""

    def term(p, q, b, a):
        moved = math.exp(q) - math.exp(b)
        is_far = moved > high if a > 0 else moved < -low
        return 0.0 if is_far else -min(math.exp(q - b), c) * a * p

    return each_token(term)


REFERENCES = {
    "reinforce": ({}, lambda: each_token(lambda p, q, b, a: -a * p)),
    "grpo": ({"clip_low": 0.2, "clip_high": 0.2}, ppo),
    "dr_grpo": ({"clip_low": 0.2, "clip_high": 0.2}, ppo),
    "dapo": ({"clip_low": 0.2, "clip_high": 0.28}, ppo),
    "gspo": ({"clip_low": 0.03, "clip_high": 0.04}, of_whole_episodes),
    "maxrl": ({"clip_low": 0.2, "clip_high": 0.2}, ppo),
    "tis": (
        {"truncation": 2.0},
        lambda c: each_token(lambda p, q, b, a: -min(math.exp(q - b), c) * a * p),
    ),
    "cispo": (
        {"clip_low": 1.0, "clip_high": 3.0},
        lambda low, high: each_token(
            lambda p, q, b, a: -clip(math.exp(q - b), 1 - low, 1 + high) * a * p
        ),
    ),
    "decoupled_ppo": ({"clip_low": 0.2, "clip_high": 0.2, "truncation": 2.0}, decoupled),
    "icepop": (
        {"clip_low": 0.5, "clip_high": 4.0},
        lambda low, high: each_token(
            lambda p, q, b, a: (
                -math.exp(p - b) * a if 1 - low <= math.exp(q - b) <= 1 + high else 0.0
            )
        ),
    ),
    "dppo": ({"clip_low": 0.15, "clip_high": 0.15, "truncation": 20.0}, divergence),
}
"""Of each loss its knobs, as the papers have them, and what makes the loss of them."""
OTHERS = {
    1: {"clip_low": 0.1, "clip_high": 0.3, "truncation": 1.2},
    2: {"clip_low": 0.4, "clip_high": 0.05, "truncation": 0.3},
}
"""Other knobs, by the seed of the data that they are tried on."""
SHIFT = {"dppo": 2.0, "gspo": 0.2}
"""How far the policies are from each other, so that some tokens are within the bounds and some beyond."""


@pytest.mark.parametrize("seed", [0, *OTHERS])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_its_paper_in_float64(name, seed):
    own, of_knobs = REFERENCES[name]
    others = {knob: OTHERS[seed][knob] for knob in own} if seed else {}
    knobs = own | others
    reference = of_knobs(*knobs.values())
    given = tensors(seed, rows=8, width=6, shift=SHIFT.get(name, 1.0), dtype=torch.float64)
    logp, behaviour, advantage, mask = given
    between = {"proximal_logp": (logp.detach() + behaviour) / 2} if name == "decoupled_ppo" else {}
    loss, found = evaluate(name, *given, **between, **others)
    loss.backward()
    numbers = [tensor.tolist() for tensor in (behaviour, advantage, mask)]
    p, q = logp.tolist(), logp.tolist()
    assert loss.item() == pytest.approx(reference(p, q, *numbers), rel=1e-12)
    for i, t in tokens_of(mask):
        sides = []
        for step in (1e-5, -1e-5):
            p[i][t] = q[i][t] + step
            sides.append(reference(p, q, *numbers))
        p[i][t] = q[i][t]
        assert logp.grad[i, t].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-8)
    # By default the data lie on both sides of every bound.
    assert seed or all(0 < share < 1 for share in found.values())


def test_each_row_has_the_knobs_of_its_paper_and_no_other():
    for name, row in LOSSES.items():
        knobs = {knob: getattr(row, knob) for knob in ("clip_low", "clip_high", "truncation")}
        assert {knob: value for knob, value in knobs.items() if math.isfinite(value)} == REFERENCES[
            name
        ][0]


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_all_losses_have_the_policy_gradient(name):
    logp, _, advantage, mask = tensors()
    expected = -advantage[:, None] * mask / mask.sum()
    torch.testing.assert_close(gradient(name, logp, logp.detach(), advantage, mask), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_an_advantage_for_each_token_is_that_of_its_episode_where_all_are_the_same(name):
    logp, behaviour, advantage, mask = tensors(shift=1.0)
    one = gradient(name, logp, behaviour, advantage, mask)
    assert torch.equal(
        gradient(name, logp, behaviour, advantage[:, None].expand_as(mask), mask), one
    )


@pytest.mark.parametrize("name", LOSSES)
def test_masked_tokens_have_no_gradient_and_their_values_do_not_matter(name):
    logp, behaviour, advantage, mask = tensors()
    loss, _ = evaluate(name, logp, behaviour, advantage, mask)
    assert (gradient(name, logp, behaviour, advantage, mask)[mask == 0] == 0).all()
    disturbed = (logp + 7 * (1 - mask)).detach()
    assert evaluate(name, disturbed, behaviour, advantage, mask)[0].item() == pytest.approx(
        loss.item()
    )


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_add_up_to_the_batch_for_loss_and_diagnostics(name):
    logp, behaviour, advantage, mask = tensors(shift=1.0)
    whole, found = evaluate(name, logp, behaviour, advantage, mask)
    parts = [
        evaluate(
            name,
            *(x[i : i + 1] for x in (logp, behaviour, advantage, mask)),
            tokens=mask.sum().item(),
        )
        for i in range(3)
    ]
    assert sum(part.item() for part, _ in parts) == pytest.approx(whole.item(), rel=1e-5)
    for key, value in found.items():
        assert sum(diagnostics[key] for _, diagnostics in parts) == pytest.approx(value)


def test_clipping_stops_the_gradient_only_where_the_ratio_has_moved_the_way_the_advantage_wants():
    logp = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]], requires_grad=True)
    arguments = (torch.zeros(4, 1), torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.ones(4, 1))
    assert (gradient("grpo", logp, *arguments)[:, 0] == 0).tolist() == [True, False, False, True]
    assert evaluate("grpo", logp, *arguments)[1] == {
        "clip_fraction_low": 0.25,
        "clip_fraction_high": 0.25,
    }


def test_decoupled_ppo_truncates_the_weight_of_what_is_old_and_clips_what_has_moved_since():
    """Neither bound sees the other factor."""
    then = torch.zeros(4, 1)
    old, moved = (
        torch.tensor([[0.5], [1.5], [0.5], [1.5]]),
        torch.tensor([[0.1], [0.1], [0.3], [0.3]]),
    )
    logp = (then + moved).requires_grad_()
    arguments = (logp, then - old, torch.ones(4), torch.ones(4, 1))
    weights = gradient("decoupled_ppo", *arguments, proximal_logp=then) / -moved.exp() * 4
    torch.testing.assert_close(weights[:, 0], torch.tensor([math.exp(0.5), 2.0, 0.0, 0.0]))
    found = evaluate("decoupled_ppo", *arguments, proximal_logp=then)[1]
    assert found == {"clip_fraction_low": 0.0, "clip_fraction_high": 0.5, "truncated_fraction": 0.5}


def test_the_mismatch_estimate_agrees_with_the_exact_kl_on_samples_of_a_known_distribution():
    behaviour = torch.tensor([0.5, 0.3, 0.2])
    policy = torch.tensor([0.4, 0.4, 0.2])
    tokens = torch.multinomial(
        behaviour, 200_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    found = mismatch(
        policy.log()[tokens][None], behaviour.log()[tokens][None], torch.ones(1, len(tokens))
    )
    exact = (behaviour * (behaviour / policy).log()).sum().item()
    assert found["mismatch_kl"] == pytest.approx(exact, rel=0.03)
    assert found["ratio_mean"] == pytest.approx(1.0, abs=0.01)


def test_the_kl_penalty_is_zero_at_the_reference_and_pulls_towards_it():
    reference = torch.tensor([[-1.0]])
    assert kl_penalty(reference, reference, torch.ones(1, 1)).item() == 0
    logp = torch.tensor([[-0.5]], requires_grad=True)
    assert torch.autograd.grad(kl_penalty(logp, reference, torch.ones(1, 1)), logp)[0].item() > 0


def test_on_fresh_data_the_gradient_of_the_kl_penalty_is_that_of_kl_from_policy_to_reference():
    """In expectation over what a policy of 16 tokens may draw, which is enumerated."""
    generator = torch.Generator().manual_seed(0)
    scores, others = torch.randn(2, 16, generator=generator, dtype=torch.float64)
    scores.requires_grad_()
    logp, reference = scores.log_softmax(-1), others.log_softmax(-1)
    chances = logp.exp().detach()
    expected = kl_penalty(logp[:, None], reference[:, None], chances[:, None], tokens=1)
    exact = (logp.exp() * (logp - reference)).sum()
    assert expected.item() == pytest.approx(exact.item(), rel=1e-12)
    found, right = (
        torch.autograd.grad(each, scores, retain_graph=True)[0] for each in (expected, exact)
    )
    torch.testing.assert_close(found, right)


def test_group_relative_advantages_compare_within_a_group_only():
    first, second = group_relative([[1.0, 0.0, 0.0, 0.0], [5.0, 4.0, 4.0, 4.0]])
    assert first == pytest.approx(second)
    assert sum(first) == pytest.approx(0.0, abs=1e-9)
    assert group_relative([[0.2, 0.2, 0.2]]) == [[0.0, 0.0, 0.0]]
    # Failures in a batch teach nothing unless a group has both; to REINFORCE they do.
    assert group_relative([[0.0, 0.0], [1.0, 1.0]]) == [[0.0, 0.0], [0.0, 0.0]]
    assert batch_baseline([[0.0, 0.0], [1.0, 1.0]]) == [[-0.5, -0.5], [0.5, 0.5]]
    assert zero_variance_share([[1.0, 1.0], [1.0, 0.0]]) == 0.5


def test_advantages_relative_to_the_mean_are_the_gradient_of_the_log_of_the_success_rate():
    """MaxRL's estimate of it: r/K − 1/N for each of N samples, K of them right; nothing for K = 0."""
    for right in range(9):
        rewards = [1.0] * right + [0.0] * (8 - right)
        expected = [reward / right - 1 / 8 if right else 0.0 for reward in rewards]
        assert [a / 8 for a in mean_relative([rewards])[0]] == pytest.approx(expected)
        # With a penalty for all, the same sample is as much better than the others.
        assert mean_relative([[reward - 0.3 for reward in rewards]])[0] == pytest.approx(
            [8 * a for a in expected]
        )
