"""Look at how far the log-probs of a sampler are from the trainer's, token by token, and why.

    log π/μ  =  numerics             +  staleness
                log π_v − log μ         log π − log π_v
                other arithmetic        other weights

μ is what the sampler recorded with weights v, π_v the trainer's model on the same weights, π the
trainer's model now. Their arithmetic differs by number type, by key-value cache, and by what runs
beside a token. In a run at lag 0 the metrics of a step are numerics alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.learning.learner import response_logprobs
from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode


@dataclass(frozen=True, slots=True)
class Factors:
    """The logarithms of the two factors of π/μ, float64 [n]: one for each sampled token."""

    numerics: Tensor
    staleness: Tensor


def factors(
    episodes: Sequence[Episode],
    then: Policy,
    now: Policy | None = None,
    temperature: float = Config.temperature,
    token_budget: int = LearnerConfig.token_budget,
) -> Factors:
    """Split the ratio of every sampled token of ``episodes``. ``then`` is the trainer's model with
    the weights that sampled them, ``now`` with its present ones; None: they are the same."""
    recorded = _sampled(episodes, [episode.logprobs for episode in episodes])
    at_version = _sampled(episodes, response_logprobs(then, episodes, temperature, token_budget))
    present = at_version
    if now is not None:
        present = _sampled(episodes, response_logprobs(now, episodes, temperature, token_budget))
    return Factors(at_version - recorded, present - at_version)


def _sampled(episodes: Sequence[Episode], logprobs: Sequence[Sequence[float]]) -> Tensor:
    chosen = (zip(row, e.sampled, strict=True) for e, row in zip(episodes, logprobs, strict=True))
    return torch.tensor(
        [value for row in chosen for value, sampled in row if sampled], dtype=torch.float64
    )
