"""Policy-gradient losses. Each differs from the one before in one idea: compare two neighbours to
see it.

All take the same four tensors and return (loss, diagnostics):

    logp            [B, T]  log π(token) of the policy being trained; has the gradient
    behaviour_logp  [B, T]  log μ(token), recorded when the token was sampled
    advantage       [B]     how much better than expected the episode was; or [B, T], each of its tokens
    mask            [B, T]  1.0 where the token was sampled, 0.0 where it was injected or is padding

and ``tokens``, the number of sampled tokens in the *whole* batch (None: in this call). Every loss
is a sum over this call's tokens divided by ``tokens``. So losses and diagnostics of micro-batches
add up to those of the batch, and every token has the same weight, however long its episode is
(token-level normalisation, DAPO, Yu et al. 2025, eq. 12).

    reinforce       −A log π                               ignores that the data may be stale
    grpo            −min(r A, clip(r, 1−ε, 1+ε) A)         r = π/μ; no gradient for moving further than ε
    dapo            the same with ε_low < ε_high           rare good tokens may grow more than common ones shrink
    gspo            the same with one r for an episode     r = the geometric mean of its tokens' ratios
    maxrl           grpo                                   with another advantage: hard prompts count more
    tis             −min(r, C)·A log π                     r is a constant weight, truncated at C
    cispo           −clip(r, 1−ε, 1+ε)·A log π             tis, if there is no lower bound (ε_low = 1) and C = 1 + ε_high
    decoupled_ppo   −min(π₀/μ, C)·min(s A, clip(s) A)      s = π/π₀: clip against recent weights, correct for stale ones

Those that leave tokens or episodes out are in ``masks.py``, what measures ratios in ``ratios.py``.
On fresh data (π = μ) the gradient of each is that of ``reinforce``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from zorplex_rl.learning.masks import dppo, geometric_rejection, icepop, m2po, sequence_rejection
from zorplex_rl.learning.ratios import Diagnostics, to_tokens, token_mean

Loss = Callable[..., tuple[Tensor, Diagnostics]]


def reinforce(
    logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, mask: Tensor, tokens: float | None = None
) -> tuple[Tensor, Diagnostics]:
    """Return −A log π (Williams 1992, eq. 4)."""
    return token_mean(-to_tokens(advantage) * logp, mask, tokens), {}


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
    return _clipped(ratio, to_tokens(advantage), mask, tokens, clip_low, clip_high)


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
    return _clipped(ratio, to_tokens(advantage), mask, tokens, clip_low, clip_high)


def gspo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 0.03,
    clip_high: float = 0.04,
) -> tuple[Tensor, Diagnostics]:
    """Return ``grpo`` with one ratio for each episode: the geometric mean of its tokens' ratios,
    exp(Σ log r / tokens), so that an episode is clipped as a whole (GSPO, Zheng et al. 2025).

    The paper averages over episodes; here, as in all these losses, an episode weighs as much as it
    has tokens. Its bounds, for responses of thousands of tokens, are a hundred times tighter.
    """
    apart = (logp - behaviour_logp) * mask
    ratio = (apart.sum(1) / mask.sum(1).clamp(min=1)).exp()
    return _clipped(ratio[:, None].expand_as(mask), to_tokens(advantage), mask, tokens, clip_low, clip_high)


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
    ratio = (logp.detach() - behaviour_logp).exp()
    weight = ratio.clamp(max=truncation)
    found = {"truncated_fraction": token_mean((weight != ratio).float(), mask, tokens).item()}
    return token_mean(-weight * to_tokens(advantage) * logp, mask, tokens), found


def cispo(
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    clip_low: float = 1.0,
    clip_high: float = 3.0,
) -> tuple[Tensor, Diagnostics]:
    """Return REINFORCE with importance weights clipped to [1 − clip_low, 1 + clip_high] (CISPO,
    MiniMax-M1 2025, eq. 4 and 5).

    No token loses its gradient, where ``grpo``'s clip takes it. MiniMax-M1 sets no lower bound,
    which is clip_low = 1; then this is ``tis`` with C = 1 + clip_high. 4 is Tinker's C; ScaleRL
    (Khatri et al. 2025) chose this loss, and DPPO's authors report that it collapses.
    """
    ratio = (logp.detach() - behaviour_logp).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    found = {"truncated_fraction": token_mean((weight != ratio).float(), mask, tokens).item()}
    return token_mean(-weight * to_tokens(advantage) * logp, mask, tokens), found


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
    ratio = (proximal - behaviour_logp).exp()
    weight = ratio.clamp(max=truncation)
    truncated = {"truncated_fraction": token_mean((weight != ratio).float(), mask, tokens).item()}
    loss, found = _clipped((logp - proximal).exp(), weight * to_tokens(advantage), mask, tokens, clip_low, clip_high)
    return loss, found | truncated


LOSSES: dict[str, Loss] = {
    "reinforce": reinforce,
    "grpo": grpo,
    "dapo": dapo,
    "gspo": gspo,
    "maxrl": grpo,
    "tis": tis,
    "cispo": cispo,
    "decoupled_ppo": decoupled_ppo,
    "icepop": icepop,
    "dppo": dppo,
    "m2po": m2po,
    "sequence_rejection": sequence_rejection,
    "geometric_rejection": geometric_rejection,
}
"""What ``--loss`` can be. A new one also needs its name and settings in ``config.py``, and if its
advantage is another than GRPO's, that in ``advantages.py``."""


def kl_penalty(logp: Tensor, reference_logp: Tensor, mask: Tensor, tokens: float | None = None) -> Tensor:
    """Return the k3 estimate of KL(π ‖ reference): e^{−δ} − 1 + δ, δ = log π − log reference
    (Schulman 2020, "Approximating KL divergence")."""
    delta = logp - reference_logp
    return token_mean((-delta).exp() - 1 + delta, mask, tokens)


def _clipped(
    ratio: Tensor, advantage: Tensor, mask: Tensor, tokens: float | None, clip_low: float, clip_high: float
) -> tuple[Tensor, Diagnostics]:
    low, high = 1 - clip_low, 1 + clip_high
    loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    with torch.no_grad():
        below = token_mean(((ratio < low) & (advantage < 0)).float(), mask, tokens).item()
        above = token_mean(((ratio > high) & (advantage > 0)).float(), mask, tokens).item()
    return token_mean(loss, mask, tokens), {"clip_fraction_low": below, "clip_fraction_high": above}
