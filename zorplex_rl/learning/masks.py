"""Losses that leave tokens or whole episodes out. Each says in its own way which are too far from
the policy that sampled them.

Arguments and returns are those of ``losses.py``. What is left out has no gradient, but still counts
in ``tokens``: a batch of which half is left out takes half the step before the gradient is clipped.

    icepop                 −M r A                M: α ≤ r ≤ β                         r = π/μ of the token
    dppo                   −M min(r, C) A log π  M: not yet δ further in probability  in the direction that A wants
    m2po                   −M r A                M: not among the largest (log r)²    in the direction that A wants
    sequence_rejection     −M A log π            M: the episode's Π r is near 1
    geometric_rejection    −M A log π            M: the episode's (Π r)^(1/tokens) is near 1
"""

import math

import torch
from torch import Tensor

from zorplex_rl.learning.ratios import Diagnostics, episode_log_ratios, to_tokens, token_mean

SECOND_MOMENT = 0.04
"""The paper's bound, in all its experiments."""


def icepop(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.5,
    clip_high: float = 4.0,
) -> tuple[Tensor, Diagnostics]:
    """Return −M r A, where M leaves out a token whose r is outside [α, β] = [1 − clip_low, 1 +
    clip_high], whatever its advantage (IcePop, Ling team 2025; α = 0.5, β = 5).

    The formula is INTELLECT-3's, as prime-rl gives it: one ratio, from the sampler to the present
    policy. In IcePop's own report the masked ratio is that of trainer and sampler on the same
    weights, and PPO's clip stands beside it.
    """
    ratio = (logp - behaviour_logp).exp()
    below, above = ratio < 1 - clip_low, ratio > 1 + clip_high
    return _without(-ratio * to_tokens(advantage), below, above, mask, tokens)


def dppo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.15,
    clip_high: float = 0.15,
    truncation: float = 20.0,
) -> tuple[Tensor, Diagnostics]:
    """Return −M min(r, C) A log π, where M leaves out a token whose *probability* has already moved
    by more than δ the way its advantage wants: π − μ > clip_high with A > 0, or μ − π > clip_low
    with A < 0 (DPPO with binary total variation, Qi et al. 2026, as verl implements it).

    A rare token may grow tenfold, where PPO's ratio stops it at 1.2; a frequent one may not fall
    from 0.99 to 0.8, where PPO's ratio lets it. min(r, C) is a constant, as in ``tis``.
    """
    ratio = (logp.detach() - behaviour_logp).exp()
    moved, wants = logp.detach().exp() - behaviour_logp.exp(), to_tokens(advantage)
    below, above = (moved < -clip_low) & (wants < 0), (moved > clip_high) & (wants > 0)
    loss, found = _without(-ratio.clamp(max=truncation) * wants * logp, below, above, mask, tokens)
    kept = (ratio > truncation) & ~below & ~above
    return loss, found | {"truncated_fraction": token_mean(kept.float(), mask, tokens).item()}


def m2po(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    second_moment: float = SECOND_MOMENT,
    bound: float | None = None,
) -> tuple[Tensor, Diagnostics]:
    """Return −M r A, where M leaves out as few tokens as possible, those with the largest (log r)²
    first, until the mean (log r)² of the rest is at most ``second_moment`` (M2PO, Zheng et al.
    2025, algorithm 1, as Trinity-RFT describes it).

    Only tokens that PPO's clip could stop are counted and left out: A > 0 and r > 1, or A < 0 and
    r < 1. ``bound``, the largest (log r)² that stays, is a number of the whole batch, from
    ``second_moment_bound``; None takes it from this call's tokens.
    """
    delta, wants = logp - behaviour_logp, to_tokens(advantage)
    if bound is None:
        bound = second_moment_bound(onward(delta, advantage, mask), second_moment)
    far = delta.detach().square() > bound
    below, above = far & (delta < 0) & (wants < 0), far & (delta > 0) & (wants > 0)
    return _without(-delta.exp() * wants, below, above, mask, tokens)


def onward(delta: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Return (log r)² [n] of the sampled tokens that have moved the way their advantage wants.
    ``delta`` [B, T] is log r."""
    delta = delta.detach()
    return delta[(delta * to_tokens(advantage) > 0) & mask.bool()].square()


def second_moment_bound(squares: Tensor, second_moment: float) -> float:
    """Return the bound up to which ``squares`` [n] have a mean of at most ``second_moment``: with
    as many of the smallest as possible, halfway between the last that stays and the first that goes.

    >>> second_moment_bound(torch.tensor([0.25, 4.0, 0.75]), second_moment=0.5)
    2.375
    """
    ordered = squares.double().sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    kept = int((means <= second_moment).sum())
    if kept == len(ordered):
        return math.inf
    # Halfway: rounding moves no token across.
    return ((ordered[kept - 1] if kept else 0.0) + ordered[kept]).item() / 2


def sequence_rejection(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.5,
    clip_high: float = 1.0,
) -> tuple[Tensor, Diagnostics]:
    """Return −A log π of the episodes whose ratio, the product of their tokens' ratios, is within
    [1 − clip_low, 1 + clip_high], and nothing of the others (verl's rollout correction, sequence
    rejection, section 3.4; its usual bounds are 0.5 and 2)."""
    apart = episode_log_ratios(logp.detach(), behaviour_logp, mask)
    return _of_near_episodes(apart, logp, advantage, mask, tokens, clip_low, clip_high)


def geometric_rejection(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.03,
    clip_high: float = 0.03,
) -> tuple[Tensor, Diagnostics]:
    """Return ``sequence_rejection`` by the geometric mean of the tokens' ratios, (Π r)^(1/tokens),
    which does not grow with the length (verl's rollout correction, section 3.3.3; its bounds, for
    responses of thousands of tokens, are 0.001 and tighter)."""
    apart = episode_log_ratios(logp.detach(), behaviour_logp, mask) / mask.sum(1).clamp(min=1)
    return _of_near_episodes(apart, logp, advantage, mask, tokens, clip_low, clip_high)


def _of_near_episodes(
    apart: Tensor,
    logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Diagnostics]:
    below, above = apart.exp() < 1 - clip_low, apart.exp() > 1 + clip_high
    below, above = (rows[:, None].expand_as(mask) for rows in (below, above))
    return _without(-to_tokens(advantage) * logp, below, above, mask, tokens)


def _without(
    per_token: Tensor, below: Tensor, above: Tensor, mask: Tensor, tokens: float | None
) -> tuple[Tensor, Diagnostics]:
    """Return the loss without the tokens ``below`` and ``above`` the bounds [B, T], and which share
    of the tokens these are."""
    found = {"masked_fraction_low": below, "masked_fraction_high": above}
    shares = {name: token_mean(where.float(), mask, tokens).item() for name, where in found.items()}
    return token_mean(per_token * ~(below | above), mask, tokens), shares
