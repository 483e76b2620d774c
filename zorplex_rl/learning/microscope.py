"""Look at how far the log-probs of a sampler are from the trainer's, token by token, and why.

    log π/μ  =  numerics             +  staleness
                log π_v − log μ         log π − log π_v
                other arithmetic        other weights

μ is what the sampler recorded with weights v, π_v the trainer's model on the same weights, π the
trainer's model now. Their arithmetic differs by number type, by key-value cache, and by what runs
beside a token. In a run at lag 0 the metrics of a step are numerics alone. Measured on the embedded
policy in float32 (32 episodes, ``compare``), the mean of (log r)²:

                   64 at once   1 at once   no cache   as the trainer
    float32          1e-13        3e-13       9e-14        0
    float16          1e-6         2e-6        3e-6         1e-6
    bfloat16         7e-5         7e-5        5e-5         2e-5

So the number type matters, the shape hardly. Data that are 8 versions old reach 0.1.

``decoupled_ppo`` with log π_v as ``proximal_logp`` corrects each factor by itself: it truncates the
weight of the numerics, and clips the staleness. ``Learner.step`` takes them as
``proximal_logprobs``. The trainer of a run does not give it any, because it keeps no old weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.learning.learner import response_logprobs
from zorplex_rl.learning.ratios import Diagnostics, mismatch
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.rollout_simple import rollout_simple
from zorplex_rl.policy.tool_loop import Tool
from zorplex_rl.task.episode import Episode

NO_CACHE = 0


@dataclass(frozen=True, slots=True)
class Factors:
    """The logarithms of the two factors of π/μ, float64 [n]: one for each sampled token."""

    numerics: Tensor
    staleness: Tensor

    @property
    def whole(self) -> Tensor:
        """log π/μ [n]."""
        return self.numerics + self.staleness

    def describe(self) -> dict[str, Diagnostics]:
        """Return the ``mismatch`` of each factor and of the whole."""
        parts = {"numerics": self.numerics, "staleness": self.staleness, "whole": self.whole}
        return {name: mismatch(log, torch.zeros_like(log), torch.ones_like(log)) for name, log in parts.items()}


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
    return torch.tensor([value for row in chosen for value, sampled in row if sampled], dtype=torch.float64)


def in_type(policy: Policy, dtype: str) -> Policy:
    """Return another copy of ``policy`` in the number type ``dtype``, as a generator with
    ``--generator-dtype`` has it."""
    other = load_policy(policy.name, policy.model.device, dtype)
    other.model.load_state_dict(policy.model.state_dict())
    return other


def sample_as(
    policy: Policy, requests: Sequence[RolloutRequest], execute: Tool, slots: int = Config.slots
) -> list[Episode]:
    """Sample ``requests``, ``slots`` at once with a key-value cache, or with ``NO_CACHE`` one by
    one, the whole text again for each token."""
    if slots == NO_CACHE:
        return [rollout_simple(policy, r.task, execute, Sampling(), r.seed) for r in requests]
    return rollout(policy, requests, execute, Sampling(slots=slots))


def score_as(
    policy: Policy, episodes: Sequence[Episode], token_budget: int = LearnerConfig.token_budget
) -> list[Episode]:
    """Return copies of ``episodes`` as if a sampler with the trainer's own arithmetic had recorded
    their log-probs under ``policy``. In its number type and with its ``token_budget`` the numerics
    are 0, bit for bit."""
    scored = []
    for episode, logprobs in zip(episodes, response_logprobs(policy, episodes, token_budget=token_budget), strict=True):
        scored.append(copy.copy(episode))
        scored[-1].logprobs = logprobs
    return scored


@dataclass(frozen=True, slots=True)
class Look:
    """The numerics of one kind of sampler."""

    dtype: str
    path: str
    found: Diagnostics


def compare(
    policy: Policy,
    requests: Sequence[RolloutRequest],
    execute: Tool,
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    slots: Sequence[int] = (Config.slots, 1, NO_CACHE),
) -> list[Look]:
    """Measure the numerics of every kind of sampler against ``policy``, the trainer's: by number
    type, with the trainer's own forward pass, and for each of ``slots``."""
    looks = []
    for dtype in dtypes:
        sampler = in_type(policy, dtype)
        for at_once in slots:
            episodes = sample_as(sampler, requests, execute, at_once)
            path = f"cache, {at_once} at once" if at_once != NO_CACHE else "no cache"
            looks.append(Look(dtype, path, factors(episodes, policy).describe()["numerics"]))
        same = score_as(sampler, episodes)
        looks.append(Look(dtype, "as the trainer", factors(same, policy).describe()["numerics"]))
    return looks
