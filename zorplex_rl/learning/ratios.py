"""Measure how far the policy being trained is from the one that sampled, by the ratios π/μ of the
sampled tokens and of whole episodes.

    token      r = π(token)/μ(token)
    episode    Π r over its sampled tokens; its logarithm is Σ log r

``token_mean`` is the one sum that all losses and their diagnostics use.
"""

import torch
from torch import Tensor

Diagnostics = dict[str, float]


def token_mean(
    per_token: Tensor,
    mask: Tensor,
    tokens: float | None,
) -> Tensor:
    """Return the sum of ``per_token`` [B, T] over sampled tokens, divided by ``tokens`` (None: by
    their number). Parts of a batch that are divided by the same ``tokens`` add up."""
    total = (per_token * mask).sum()
    return total / (mask.sum() if tokens is None else tokens)


def episode_log_ratios(
    logp: Tensor,
    behaviour_logp: Tensor,
    mask: Tensor,
) -> Tensor:
    """Return log π/μ of whole episodes [B], in float64: the sum over each row's sampled tokens.
    ``mask`` [B, T] is 1.0 where a token was sampled.

    >>> logp = torch.tensor([[0.5, 2.0, 9.0], [0.5, 0.5, 0.5]]).log()
    >>> mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    >>> ratios = episode_log_ratios(logp, torch.zeros(2, 3), mask).exp()
    >>> [round(ratio, 3) for ratio in ratios.tolist()]
    [1.0, 0.125]
    """
    return ((logp - behaviour_logp).double() * mask).sum(1)


def effective_sample_size(ratios: Tensor) -> float:
    """Return the self-normalised effective sample size of ``ratios`` π/μ [n] as a share of n:
    (Σr)² / (n Σr²), from 1/n to 1 (Kong 1992).

    0.6 means that 1,000 reweighted samples tell only as much as 600 fresh ones. A sample is a token
    or an episode, whose ratio is the product of its tokens' ratios and varies more. A common factor
    of all ratios changes nothing.

    >>> effective_sample_size(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    1.0
    >>> effective_sample_size(torch.tensor([3.0, 0.0, 0.0, 0.0]))
    0.25
    """
    share = ratios.sum().square() / (len(ratios) * ratios.square().sum())
    return share.item()


@torch.no_grad()
def mismatch(
    logp: Tensor,
    behaviour_logp: Tensor,
    mask: Tensor,
) -> Diagnostics:
    """Measure over all tokens how far the policy being trained is from the one that sampled.

    ``mismatch_kl`` is the k3 estimate of KL(μ ‖ π), ``second_moment`` the mean of (log r)².
    """
    chosen = mask.bool()
    delta = (logp - behaviour_logp)[chosen].double()
    ratio = delta.exp()
    return {
        "mismatch_kl": (ratio - 1 - delta).mean().item(),
        "second_moment": delta.square().mean().item(),
        "max_logp_difference": delta.abs().max().item(),
        "ratio_mean": ratio.mean().item(),
        "ratio_max": ratio.max().item(),
        "effective_sample_size": effective_sample_size(ratio),
    }
