"""Policy-gradient losses. Each differs from the one before in one idea: compare two neighbours to
see it.

All take the same four tensors and return (loss, diagnostics):

    logp            [B, T]  log π(token) of the policy being trained; has the gradient
    behaviour_logp  [B, T]  log μ(token), recorded when the token was sampled
    advantage       [B]     how much better than expected the episode was
    mask            [B, T]  1.0 where the token was sampled, 0.0 where it was injected or is padding

and ``tokens``, the number of sampled tokens in the *whole* batch (None: in this call). Every loss
is a sum over this call's tokens divided by ``tokens``. So losses and diagnostics of micro-batches
add up to those of the batch, and every token has the same weight, however long its episode is
(token-level normalisation, DAPO, Yu et al. 2025, eq. 12).

    reinforce       −A log π                               ignores that the data may be stale
    grpo            −min(r A, clip(r, 1−ε, 1+ε) A)         r = π/μ; no gradient for moving further than ε
    dapo            the same with ε_low < ε_high           rare good tokens may grow more than common ones shrink
    tis             −min(r, C)·A log π                     r is a constant weight, truncated at C
    decoupled_ppo   −min(π₀/μ, C)·min(s A, clip(s) A)      s = π/π₀: clip against recent weights, correct for stale ones
"""

from collections.abc import Callable

import torch
from torch import Tensor

Diagnostics = dict[str, float]
Loss = Callable[..., tuple[Tensor, Diagnostics]]


def reinforce(
    logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, mask: Tensor, tokens: float | None = None
) -> tuple[Tensor, Diagnostics]:
    """Return −A log π (Williams 1992, eq. 4)."""
    return _total(-advantage[:, None] * logp, mask, tokens), {}


def grpo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, Diagnostics]:
    """Return PPO's clipped objective (Schulman et al. 2017, eq. 7), for group-relative advantages
    (GRPO, Shao et al. 2024, eq. 3)."""
    ratio = (logp - behaviour_logp).exp()
    return _clipped(ratio, advantage[:, None], mask, tokens, clip_low, clip_high)


def dapo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> tuple[Tensor, Diagnostics]:
    """Return ``grpo`` with a higher upper bound, "clip-higher" (DAPO, Yu et al. 2025, eq. 10)."""
    ratio = (logp - behaviour_logp).exp()
    return _clipped(ratio, advantage[:, None], mask, tokens, clip_low, clip_high)


def tis(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    truncation: float = 2.0,
) -> tuple[Tensor, Diagnostics]:
    """Return REINFORCE with importance weights truncated at C (Ionides 2008; IMPALA, Espeholt et
    al. 2018, section 4.1)."""
    weight = (logp.detach() - behaviour_logp).exp().clamp(max=truncation)
    return _total(-weight * advantage[:, None] * logp, mask, tokens), {}


def decoupled_ppo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    truncation: float = 2.0,
    proximal_logp: Tensor | None = None,
) -> tuple[Tensor, Diagnostics]:
    """Return PPO clipped around recent weights π₀ and corrected for the stale μ (Hilton et al.
    2022, eq. 2; AReaL, Fu et al. 2025, eq. 5).

    ``proximal_logp`` [B, T] is log π₀, the policy at the start of this training step. None means
    the current policy, which is the same in the first update of a step.
    """
    proximal = logp.detach() if proximal_logp is None else proximal_logp
    weight = (proximal - behaviour_logp).exp().clamp(max=truncation)
    return _clipped((logp - proximal).exp(), weight * advantage[:, None], mask, tokens, clip_low, clip_high)


LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in (reinforce, grpo, dapo, tis, decoupled_ppo)}
"""What ``--loss`` can be. A new one also needs its advantage (``advantages.py``), and its name and
settings in ``config.py``."""


def kl_penalty(logp: Tensor, reference_logp: Tensor, mask: Tensor, tokens: float | None = None) -> Tensor:
    """Return the k3 estimate of KL(π ‖ reference): e^{−δ} − 1 + δ, δ = log π − log reference
    (Schulman 2020, "Approximating KL divergence")."""
    delta = logp - reference_logp
    return _total((-delta).exp() - 1 + delta, mask, tokens)


@torch.no_grad()
def mismatch(logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Diagnostics:
    """Measure how far the policy being trained is from the one that sampled. Returns 0, 0, 1, 1, 1
    for data that are exactly on-policy.

    ``mismatch_kl`` is the k3 estimate of KL(μ ‖ π). All values are over tokens, without regard to
    episodes.
    """
    chosen = mask.bool()
    delta = (logp - behaviour_logp)[chosen].double()
    ratio = delta.exp()
    return {
        "mismatch_kl": (ratio - 1 - delta).mean().item(),
        "max_logp_difference": delta.abs().max().item(),
        "ratio_mean": ratio.mean().item(),
        "ratio_max": ratio.max().item(),
        "effective_sample_size": effective_sample_size(ratio),
    }


def effective_sample_size(ratios: Tensor) -> float:
    """Return the effective sample size of ``ratios`` π/μ [n] as a share of n: (Σr)² / (n Σr²), from
    1/n to 1 (Kong 1992).

    0.6 means that 1,000 reweighted samples tell only as much as 600 fresh ones. The samples may be
    tokens or episodes; the ratio of an episode is the product of its tokens' ratios and varies
    more.

    >>> effective_sample_size(torch.tensor([1.0, 1.0, 1.0, 1.0])), effective_sample_size(torch.tensor([3.0, 0.0, 0.0, 0.0]))
    (1.0, 0.25)
    """
    return (ratios.sum().square() / (len(ratios) * ratios.square().sum())).item()


def episode_ratios(logp: Tensor, behaviour_logp: Tensor, mask: Tensor) -> Tensor:
    """Return π/μ of whole episodes [B]: the product over each row's sampled tokens. ``mask`` [B, T]
    is 1.0 where a token was sampled.

    >>> logp, mask = torch.tensor([[0.5, 2.0, 9.0], [0.5, 0.5, 0.5]]).log(), torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    >>> [round(ratio, 3) for ratio in episode_ratios(logp, torch.zeros(2, 3), mask).tolist()]
    [1.0, 0.125]
    """
    return ((logp - behaviour_logp).double() * mask).sum(1).exp()


def _clipped(
    ratio: Tensor, advantage: Tensor, mask: Tensor, tokens: float | None, clip_low: float, clip_high: float
) -> tuple[Tensor, Diagnostics]:
    low, high = 1 - clip_low, 1 + clip_high
    loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    with torch.no_grad():
        below = _total(((ratio < low) & (advantage < 0)).float(), mask, tokens).item()
        above = _total(((ratio > high) & (advantage > 0)).float(), mask, tokens).item()
    return _total(loss, mask, tokens), {"clip_fraction_low": below, "clip_fraction_high": above}


def _total(per_token: Tensor, mask: Tensor, tokens: float | None) -> Tensor:
    return (per_token * mask).sum() / (mask.sum() if tokens is None else tokens)
