"""Policy-gradient losses: one table. A row says what is weighted, what bounds it, and at which level.

    logp            [B, T]  log π(token) of the policy being trained; has the gradient
    behaviour_logp  [B, T]  log μ(token), recorded when the token was sampled
    advantage       [B]     A: how much better than expected the episode was; or [B, T], each of its tokens
    mask            [B, T]  1.0 where the token was sampled, 0.0 where it was injected or is padding

r is π/μ, and π₀ the policy at the start of the training step. Training makes a token's *objective*
larger:

    weighted    log π           A log π
                w log π         A w log π       w = min(π/μ, truncation): a constant, without gradient
                r               A r
                w r             A w r           r = π/π₀ and w = min(π₀/μ, truncation)

    bound       weight          w is kept between 1 − clip_low and 1 + clip_high
                clip            min(A r, A clip(r)): r gets no gradient for moving further beyond these bounds
                mask            a token counts nothing if its r is beyond them
                probability     nor if π − μ > clip_high and A > 0, or if μ − π > clip_low and A < 0
                second moment   nor if its (log r)² is among the largest, as few as are needed to bring the mean of the
                                others down to truncation; only of tokens that have moved the way A wants

    level       token           r is of the token
                episode product r is the product over the episode's tokens; episode mean: their geometric mean

The loss is −Σ objective over the call's sampled tokens, divided by ``tokens``, their number in the
*whole* batch. So losses and diagnostics of micro-batches add up to those of the batch, and every
token has the same weight, however long its episode is (token-level normalisation, DAPO, Yu et al.
2025, eq. 12). What is masked still counts in ``tokens``. On fresh data (π = μ) the gradient of each
loss is that of ``reinforce``.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from zorplex_rl.learning.ratios import Diagnostics, to_tokens, token_mean

MASKS = ("mask", "probability", "second moment")  # bounds beyond which a token counts nothing


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of the table. What it does not set is no bound."""

    weighted: Literal["log π", "w log π", "r", "w r"]
    bound: Literal["weight", "clip", "mask", "probability", "second moment"] | None = None
    level: Literal["token", "episode product", "episode mean"] = "token"
    clip_low: float = math.inf
    clip_high: float = math.inf
    truncation: float = math.inf


LOSSES = {
    # −A log π: takes old data for fresh (Williams 1992, eq. 4).
    "reinforce": Loss("log π"),
    # −min(A r, A clip(r)): PPO (Schulman et al. 2017, eq. 7), with group-relative advantages (Shao et al. 2024, eq. 3).
    "grpo": Loss("r", "clip", clip_low=0.2, clip_high=0.2),
    # grpo; its advantage is not divided by the deviation of the group (Dr. GRPO, Liu et al. 2025, section 3.2).
    "dr_grpo": Loss("r", "clip", clip_low=0.2, clip_high=0.2),
    # "Clip-higher": rare good tokens may grow more than common ones shrink (DAPO, Yu et al. 2025, eq. 10).
    "dapo": Loss("r", "clip", clip_low=0.2, clip_high=0.28),
    # Clips an episode as a whole (GSPO, Zheng et al. 2025). The paper averages over episodes; its bounds, for responses
    # of thousands of tokens, are a hundred times tighter.
    "gspo": Loss("r", "clip", "episode mean", clip_low=0.03, clip_high=0.04),
    # grpo; its advantage is another, in which hard prompts count more (MaxRL, Tajwar et al. 2026, algorithm 1).
    "maxrl": Loss("r", "clip", clip_low=0.2, clip_high=0.2),
    # −A min(r, 2) log π (truncated importance sampling, Ionides 2008; IMPALA, Espeholt et al. 2018, section 4.1).
    "tis": Loss("w log π", truncation=2.0),
    # −A clip(r) log π: no token loses its gradient. As in the paper, 1 is no lower bound (CISPO, MiniMax-M1 2025,
    # eq. 4 and 5).
    "cispo": Loss("w log π", "weight", clip_low=1.0, clip_high=3.0),
    # −min(π₀/μ, 2) min(A r, A clip(r)): clips around recent weights and corrects for old ones (Hilton et al. 2022,
    # eq. 2; AReaL, Fu et al. 2025, eq. 5).
    "decoupled_ppo": Loss("w r", "clip", clip_low=0.2, clip_high=0.2, truncation=2.0),
    # −A r, or 0, whatever A is (IcePop, Ling team 2025, in the form of INTELLECT-3, with one ratio).
    "icepop": Loss("r", "mask", clip_low=0.5, clip_high=4.0),
    # −A min(r, 20) log π, or 0: a rare token may grow tenfold, a frequent one may not fall from 0.99 to 0.8 (DPPO with
    # binary total variation, Qi et al. 2026, as verl implements it).
    "dppo": Loss("w log π", "probability", clip_low=0.15, clip_high=0.15, truncation=20.0),
    # −A r, or 0 (M2PO, Zheng et al. 2025, algorithm 1, as Trinity-RFT describes it).
    "m2po": Loss("r", "second moment", truncation=0.04),
    # −A log π, or 0 for a whole episode (verl's rollout correction, sequence rejection, section 3.4).
    "sequence_rejection": Loss("log π", "mask", "episode product", clip_low=0.5, clip_high=1.0),
    # The same by a ratio that does not grow with the length (section 3.3.3; 0.001 for thousands of tokens).
    "geometric_rejection": Loss("log π", "mask", "episode mean", clip_low=0.03, clip_high=0.03),
}
"""What ``--loss`` can be. CONTRIBUTING.md says what else a new one needs."""


def policy_loss(
    row: Loss,
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    tokens: float | None = None,
    proximal_logp: Tensor | None = None,
    largest_square: float | None = None,
) -> tuple[Tensor, Diagnostics]:
    """Return the loss of ``row``, and which shares of the tokens were clipped, masked or truncated.

    ``tokens`` None: those of this call. ``proximal_logp`` [B, T] is log π₀; None is the present
    policy, which is the same in the first update of a step. ``largest_square`` is m2po's bound on
    (log r)², from ``second_moment_bound`` of the whole batch; None: of this call.
    """
    advantage = to_tokens(advantage)
    low, high = 1 - row.clip_low, 1 + row.clip_high
    recent = logp.detach() if proximal_logp is None else proximal_logp
    log_ratio = logp - (recent if row.weighted == "w r" else behaviour_logp)
    of_level = log_ratio
    if row.level != "token":
        of_level = (log_ratio * mask).sum(1, keepdim=True)
    if row.level == "episode mean":
        of_level = of_level / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = of_level.exp().expand_as(mask)

    match row.bound:
        case "clip" | "mask":
            below, above = ratio < low, ratio > high
        case "probability":
            moved = recent.exp() - behaviour_logp.exp()
            below, above = moved < -row.clip_low, moved > row.clip_high
        case "second moment":
            if largest_square is None:
                largest_square = second_moment_bound(onward(log_ratio, advantage, mask), row.truncation)
            is_far = log_ratio.detach().square() > largest_square
            below, above = is_far & (log_ratio < 0), is_far & (log_ratio > 0)
        case _:
            below = above = torch.zeros_like(mask, dtype=torch.bool)
    if row.bound != "mask":
        # Only what moves on the way that its advantage wants is stopped.
        below, above = below & (advantage < 0), above & (advantage > 0)
    is_masked = below | above if row.bound in MASKS else torch.zeros_like(below)

    shares: dict[str, Tensor] = {}
    if row.bound == "clip":
        shares |= {"clip_fraction_low": below, "clip_fraction_high": above}
    elif row.bound in MASKS:
        shares |= {"masked_fraction_low": below, "masked_fraction_high": above}
    if row.weighted in ("w log π", "w r"):
        weight = (recent - behaviour_logp).exp()
        bounded = weight.clamp(low, high) if row.bound == "weight" else weight.clamp(max=row.truncation)
        shares["truncated_fraction"] = (bounded != weight) & ~is_masked
        advantage = bounded * advantage

    weighted = ratio if row.weighted in ("r", "w r") else logp
    objective = weighted * advantage
    if row.bound == "clip":
        objective = torch.minimum(objective, weighted.clamp(low, high) * advantage)
    loss = token_mean(-objective * ~is_masked, mask, tokens)
    return loss, {name: token_mean(where.float(), mask, tokens).item() for name, where in shares.items()}


def onward(log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Return (log r)² [n] of the sampled tokens that have moved the way their advantage wants."""
    log_ratio = log_ratio.detach()
    return log_ratio[(log_ratio * to_tokens(advantage) > 0) & mask.bool()].square()


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


def kl_penalty(logp: Tensor, reference_logp: Tensor, mask: Tensor, tokens: float | None = None) -> Tensor:
    """Return the k3 estimate of KL(π ‖ reference): e^{−δ} − 1 + δ, δ = log π − log reference
    (Schulman 2020, "Approximating KL divergence")."""
    delta = logp - reference_logp
    return token_mean((-delta).exp() - 1 + delta, mask, tokens)
