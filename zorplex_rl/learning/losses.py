"""Policy-gradient losses: one table. A row says what is weighted, what bounds it, and at which level.

    ratio_of, weight_of, outside ──► objective_of ──► policy_loss      a function for each part of the table

r is π/μ, and π₀ is the policy at the start of the training step (of every row but "w r" the present π).
Training makes a token's *objective* larger:

    weighted    log π           A log π
                w log π         A w log π       w = min(π/μ, truncation): a constant, without gradient
                r               A r
                w r             A w r           r = π/π₀ and w = min(π₀/μ, truncation)

    bound       weight          w is kept between 1 − clip_low and 1 + clip_high
                clip            min(A r, A clip(r)): r gets no gradient for moving further beyond these bounds
                mask            a token whose r is outside these bounds contributes nothing
                probability     likewise, but outside means π − μ > clip_high and A > 0, or μ − π > clip_low and A < 0

    level       token           r is of the token
                episode mean    r is the geometric mean of the ratios of the episode's tokens

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

from zorplex_rl.learning.ratios import Diagnostics, token_mean


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of the table. A bound that it does not set is infinite."""

    weighted: Literal["log π", "w log π", "r", "w r"]
    """What the advantage is multiplied by."""
    bound: Literal["weight", "clip", "mask", "probability"] | None = None
    """What is bounded, and what happens outside the bounds."""
    level: Literal["token", "episode mean"] = "token"
    """What r is a ratio of."""
    clip_low: float = math.inf
    """How far r may fall below 1."""
    clip_high: float = math.inf
    """How far r may rise above 1."""
    truncation: float = math.inf
    """The largest weight."""

    @property
    def low(self) -> float:
        """The lower bound of r."""
        return 1 - self.clip_low

    @property
    def high(self) -> float:
        """The upper bound of r."""
        return 1 + self.clip_high


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss is computed from: B episodes of up to T tokens, or a part of a batch."""

    logp: Tensor
    """log π of the policy being trained [B, T]; has the gradient."""
    behaviour_logp: Tensor
    """log μ of the policy that sampled [B, T], as recorded."""
    advantage: Tensor
    """A of each episode [B], or of each token [B, T]."""
    mask: Tensor
    """1.0 where the token was sampled, 0.0 where it was injected or is padding [B, T]."""
    tokens: float | None = None
    """Number of sampled tokens in the whole batch; None: in this part."""
    proximal_logp: Tensor | None = None
    """log π₀ [B, T], for rows with "w r" from a step's second update on; else None: π₀ is π then."""

    @property
    def recent_logp(self) -> Tensor:
        """log π₀ [B, T], without a gradient."""
        return self.logp.detach() if self.proximal_logp is None else self.proximal_logp

    @property
    def token_advantage(self) -> Tensor:
        """A [B, T], or [B, 1]: that of an episode applies to all its tokens."""
        return self.advantage[:, None] if self.advantage.dim() == 1 else self.advantage


LOSSES = {
    # −A log π: treats old data as if it were fresh (Williams 1992, eq. 4).
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
    # −A clip(r) log π: no token loses its gradient. As in the paper, 1 is not a lower bound (CISPO, MiniMax-M1 2025,
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
}
"""What ``--loss`` can be. CONTRIBUTING.md says what else a new one needs."""


def policy_loss(row: Loss, given: LossInputs) -> tuple[Tensor, Diagnostics]:
    """Return the loss of ``row``, and the shares of the tokens that it clips, masks or truncates."""
    ratio = ratio_of(row, given)
    below, above = outside(row, given, ratio)
    weight, is_truncated = weight_of(row, given)
    objective = objective_of(row, given, ratio, weight)
    shares: dict[str, Tensor] = {}
    if row.bound == "clip":
        shares = {"clip_fraction_low": below, "clip_fraction_high": above}
    elif row.bound in ("mask", "probability"):
        shares = {"masked_fraction_low": below, "masked_fraction_high": above}
        is_masked = below | above
        objective = objective * ~is_masked
        is_truncated = is_truncated & ~is_masked
    if row.weighted in ("w log π", "w r"):
        shares["truncated_fraction"] = is_truncated
    loss = token_mean(-objective, given.mask, given.tokens)
    diagnostics = {}
    for name, where in shares.items():
        share = token_mean(where.float(), given.mask, given.tokens)
        diagnostics[name] = share.item()
    return loss, diagnostics


def ratio_of(row: Loss, given: LossInputs) -> Tensor:
    """Return r [B, T], with its gradient: π/π₀ if it is weighted by π₀/μ, else π/μ."""
    base = given.recent_logp if row.weighted == "w r" else given.behaviour_logp
    log_ratio = given.logp - base
    if row.level == "token":
        return log_ratio.exp()
    of_episode = (log_ratio * given.mask).sum(1, keepdim=True)
    tokens = given.mask.sum(1, keepdim=True).clamp(min=1)
    return (of_episode / tokens).exp().expand_as(given.mask)


def outside(
    row: Loss,
    given: LossInputs,
    ratio: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return which tokens are below the bound of ``row``, and which are above it [B, T]."""
    below = ratio < row.low
    above = ratio > row.high
    if row.bound == "mask":
        # Whatever the advantage is.
        return below, above
    if row.bound == "probability":
        moved = given.recent_logp.exp() - given.behaviour_logp.exp()
        below = moved < -row.clip_low
        above = moved > row.clip_high
    # Only a token that has moved the way its advantage wants is stopped: the others may come back.
    advantage = given.token_advantage
    return below & (advantage < 0), above & (advantage > 0)


def weight_of(row: Loss, given: LossInputs) -> tuple[Tensor, Tensor]:
    """Return the constant w = π₀/μ [B, T] within its bound, and where the bound has changed it. Without
    ``proximal_logp`` it is π/μ."""
    weight = (given.recent_logp - given.behaviour_logp).exp()
    bounded = weight.clamp(max=row.truncation)
    if row.bound == "weight":
        bounded = weight.clamp(row.low, row.high)
    return bounded, bounded != weight


def objective_of(
    row: Loss,
    given: LossInputs,
    ratio: Tensor,
    weight: Tensor,
) -> Tensor:
    """Return each token's objective [B, T], which training makes larger."""
    advantage = given.token_advantage
    if row.weighted in ("w log π", "w r"):
        advantage = weight * advantage
    if row.weighted in ("log π", "w log π"):
        return given.logp * advantage
    objective = ratio * advantage
    if row.bound == "clip":
        objective = torch.minimum(objective, ratio.clamp(row.low, row.high) * advantage)
    return objective


def kl_penalty(
    logp: Tensor,
    reference_logp: Tensor,
    mask: Tensor,
    tokens: float | None = None,
) -> Tensor:
    """Return the k3 estimate of KL(π ‖ reference): e^{−δ} − 1 + δ, δ = log π − log reference
    (Schulman 2020, "Approximating KL divergence"). On fresh data its gradient is that of this KL.

    ``drawn`` is 1; its gradient says how much more often the token is drawn. Without it the gradient
    would be that of KL(reference ‖ π) (Shah et al. 2025, arXiv:2512.21852).
    """
    delta = logp - reference_logp
    drawn = (logp - logp.detach()).exp()
    estimate = (-delta).exp() - 1 + delta
    return token_mean(drawn * estimate, mask, tokens)
