"""The learner: each step trains the model on a batch of episodes and makes a new version of it.

    episodes ──collate──► micro-batches ──forward──► logp ──loss──► gradients, added up ──clip──► AdamW ──► version + 1

``token_budget`` bounds the memory, however large the batch is: the gradients of micro-batches add
up to that of the batch, except for rounding. A bfloat16 model has logits and log-probs in float32, and
the gradients of embeddings and micro-batches are added up in float32 (``adamw.py``). Its layers still
compute in bfloat16, so its gradient is not that of the float32 model.

``sharded_learner.py`` does the same on several processes: ``ShardedLearner`` is a ``Learner``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from zorplex_rl.config import Config, LearnerConfig, flag
from zorplex_rl.errors import ConfigError, TrainingDiverged
from zorplex_rl.learning.adamw import AdamW
from zorplex_rl.learning.advantages import by_prefix
from zorplex_rl.learning.batches import Advantages, MicroBatch, collate
from zorplex_rl.learning.losses import (
    LOSSES,
    Loss,
    LossInputs,
    kl_penalty,
    policy_loss,
)
from zorplex_rl.learning.ratios import (
    Diagnostics,
    effective_sample_size,
    episode_log_ratios,
    mismatch,
)
from zorplex_rl.policy.decoder import project, states_of
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.lora import adapted_layers, as_it_began
from zorplex_rl.task.episode import Episode

LOSS_SETTINGS = ("clip_low", "clip_high", "truncation")
"""Settings that some losses have."""
MAX_GRAD_NORM = 1.0
"""Gradients of a larger norm are scaled down to it."""


class Learner:
    """Trains ``policy``'s model in place, in this process. ``version`` counts the steps. After the
    warm-up the learning rate falls linearly to a tenth at step ``decay_steps``; with 0 it stays."""

    part = (0, 1)
    """This process's rank, and the number of ranks that share a batch."""

    def __init__(
        self,
        policy: Policy,
        config: LearnerConfig = Config.learner,
        decay_steps: int = 0,
        temperature: float = 1.0,
    ) -> None:
        self.policy = policy
        self.config = config
        self.version = 0
        self.decay_steps = decay_steps
        self.temperature = temperature
        self.optimizer = AdamW([p for p in policy.model.parameters() if p.requires_grad])

    def step(
        self,
        episodes: Sequence[Episode],
        advantages: Sequence[float],
        reference_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> Diagnostics:
        """Train on ``episodes``, each with its advantage; ``--credit prefix`` needs whole groups.
        Returns the step's diagnostics. Those of the loss are from before its first update.

        Raises TrainingDiverged if loss or gradient are not finite. Then the weights must be neither
        published nor saved.
        """
        config = self.config
        credit: Advantages = advantages
        if config.credit == "prefix":
            credit = by_prefix(episodes, advantages)
        batches = collate(
            episodes,
            credit,
            config.token_budget,
            reference_logprobs,
            self.policy.model.device,
            self.part,
        )
        tokens = float(sum(sum(episode.sampled) for episode in episodes))
        metrics: Diagnostics = {}
        proximal: list[Tensor] | None = None
        for _ in range(config.updates_per_batch):
            sums, logps = add_gradients(self, batches, tokens, proximal)
            of_tokens = divergence_inputs(batches, logps)
            totals, of_tokens = self.of_all_ranks(sums, of_tokens)
            norm = update(self, totals["loss"])
            if proximal is None:
                proximal = logps
                metrics = totals | {"grad_norm": norm} | divergence(*of_tokens)
        self.version += 1
        return metrics | describe(episodes, self.version - 1)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``, which uses the model."""
        return function(*args)

    def of_all_ranks(
        self, totals: Diagnostics, tensors: list[Tensor]
    ) -> tuple[Diagnostics, list[Tensor]]:
        """Return the sums of all ranks' ``totals``, and their ``tensors``, each joined to one."""
        return totals, tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the next step depends on, by name: version, masters and moments. The rest is
        configuration; the learning rate follows from the version."""
        return {"version": torch.tensor(self.version)} | self.optimizer.state_dict()

    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``: ``read`` returns its tensor of a given name."""
        self.version = int(read("version"))
        self.optimizer.restore(read)


def update(learner: Learner, loss: float) -> float:
    """Change the weights by the gradients of ``loss``. Returns the norm of the gradients. Raises
    TrainingDiverged before a number that is not finite reaches the weights."""
    step = learner.version + 1
    expect_finite("loss", loss, step)
    norm = learner.optimizer.clip_gradients(MAX_GRAD_NORM)
    expect_finite("norm of the gradient", norm, step)
    share = schedule(learner.version, learner.config.warmup_steps, learner.decay_steps)
    learner.optimizer.step(learner.config.learning_rate * share)
    return norm


def loss_of(config: LearnerConfig) -> Loss:
    """Return the row of ``config.loss``, changed by the settings of ``config``. Raises ConfigError for
    a setting that this loss does not have."""
    row = LOSSES[config.loss]
    for name in LOSS_SETTINGS:
        value = getattr(config, name)
        if value is None:
            continue
        if getattr(row, name) == math.inf:
            raise ConfigError(f"{flag(name)} does nothing in --loss {config.loss}; leave it out")
        row = replace(row, **{name: value})
    return row


def add_gradients(
    learner: Learner,
    batches: Sequence[MicroBatch],
    tokens: float,
    proximal: Sequence[Tensor] | None = None,
) -> tuple[Diagnostics, list[Tensor]]:
    """Add up the gradients of ``batches``, in which ``tokens`` tokens were sampled. ``proximal`` is
    log π in the step's first update; None in that update."""
    loss = loss_of(learner.config)
    kl_coefficient = learner.config.kl_coefficient
    totals: Diagnostics = {"loss": 0.0, "entropy": 0.0}
    logps = []
    for index, batch in enumerate(batches):
        # If all advantages are 0 and no KL penalty is set, only diagnostics are needed.
        with torch.set_grad_enabled(kl_coefficient > 0 or bool(batch.advantage.any())):
            logp, entropy = run_model(learner, batch)
        given = LossInputs(
            logp=logp,
            behaviour_logp=batch.behaviour_logp,
            advantage=batch.advantage,
            mask=batch.mask,
            tokens=tokens,
            proximal_logp=proximal[index] if proximal and loss.weighted == "w r" else None,
        )
        value, shares = policy_loss(loss, given)
        if kl_coefficient > 0:
            penalty = kl_penalty(logp, starting_logp(learner, batch), batch.mask, tokens)
            shares["reference_kl"] = penalty.item()
            value = value + kl_coefficient * penalty
        if value.requires_grad:
            value.backward()
        logps.append(logp.detach())
        shares["loss"] = value.item()
        shares["entropy"] = (entropy * batch.mask).sum().item() / tokens
        for name, share in shares.items():
            totals[name] = totals.get(name, 0.0) + share
    return totals, logps


def run_model(learner: Learner, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return log π and entropy of ``batch`` [B, T]; see ``token_logprobs``."""
    return learner.run(token_logprobs, learner.policy, batch, learner.temperature)


def starting_logp(learner: Learner, batch: MicroBatch) -> Tensor:
    """Return log π of the starting policy [B, T]."""
    model = learner.policy.model
    if not adapted_layers(model):
        return batch.reference_logp
    # An adapted model is still the starting policy, without what was trained.
    with torch.no_grad(), as_it_began(model):
        logp, _ = run_model(learner, batch)
    return logp


def divergence_inputs(batches: Sequence[MicroBatch], logps: Sequence[Tensor]) -> list[Tensor]:
    """Return log π, log μ and mask [n] of all tokens, and log π/μ of all episodes."""
    behaviour_logps = [batch.behaviour_logp for batch in batches]
    masks = [batch.mask for batch in batches]
    of_episodes = []
    for logp, batch in zip(logps, batches, strict=True):
        ratios = episode_log_ratios(logp, batch.behaviour_logp, batch.mask)
        of_episodes.append(ratios[: len(batch.episodes)])
    parts = (logps, behaviour_logps, masks, of_episodes)
    return [torch.cat([tensor.flatten() for tensor in part]) for part in parts]


def divergence(
    logp: Tensor,
    behaviour_logp: Tensor,
    mask: Tensor,
    of_episodes: Tensor,
) -> Diagnostics:
    """Return how far the policy is from the one that sampled. The arguments are ``divergence_inputs``."""
    # Relative to the largest one: far from μ, the ratios of all episodes would be rounded to 0.
    size = effective_sample_size((of_episodes - of_episodes.max()).exp())
    return {"episode_sample_size": size} | mismatch(logp, behaviour_logp, mask)


def schedule(
    version: int,
    warmup_steps: int,
    decay_steps: int,
) -> float:
    """Return which share of the learning rate is used at ``version``: linear warm-up, then a linear
    fall to a tenth.

    >>> [schedule(version, warmup_steps=2, decay_steps=12) for version in (0, 1, 2, 7, 12, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """
    if version < warmup_steps:
        return (version + 1) / warmup_steps
    if not decay_steps:
        return 1.0
    steps = max(1, decay_steps - warmup_steps)
    return max(0.1, 1 - 0.9 * (version - warmup_steps) / steps)


def expect_finite(
    what: str,
    value: float,
    step: int,
) -> None:
    """Raise TrainingDiverged if ``value`` is not finite."""
    if not math.isfinite(value):
        raise TrainingDiverged(f"the {what} of step {step} is {value}")


def token_logprobs(
    policy: Policy,
    batch: MicroBatch,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return log π and entropy (without gradient) of sampled tokens [B, T]; 0 where ``mask`` is 0. The
    logits, the largest tensor of a step, are computed once for each distinct beginning."""
    is_sampled = batch.mask.bool()
    # Several sampled tokens may follow the same one.
    distinct, which = batch.before[is_sampled].unique(return_inverse=True)
    states = states_of(policy.model, batch.tree)[distinct]
    logits = project(policy.model, states)
    if temperature != 1:
        logits = logits / temperature
    all_logp = torch.log_softmax(logits, dim=-1)
    logp = all_logp[which, batch.ids[is_sampled]]
    with torch.no_grad():
        entropies = -torch.einsum("nv,nv->n", all_logp.exp(), all_logp)[which]
    zeros = torch.zeros_like(batch.mask)
    return zeros.masked_scatter(is_sampled, logp), zeros.masked_scatter(is_sampled, entropies)


@torch.no_grad()
def response_logprobs(
    policy: Policy,
    episodes: Sequence[Episode],
    temperature: float = Config.temperature,
    token_budget: int = LearnerConfig.token_budget,
) -> list[list[float]]:
    """Return log π of each response's tokens under ``policy``, a reference; 0.0 where injected."""
    logprobs: list[list[float]] = [[] for _ in episodes]
    no_advantages = [0.0] * len(episodes)
    for batch in collate(episodes, no_advantages, token_budget, device=policy.model.device):
        logp, _ = token_logprobs(policy, batch, temperature)
        for row, index in enumerate(batch.episodes):
            length = len(episodes[index].token_ids)
            logprobs[index] = logp[row, :length].tolist()
    return logprobs


def describe(episodes: Sequence[Episode], version: int) -> Diagnostics:
    """Return statistics of a batch that is trained on at ``version``: rewards, outcomes, lags."""
    scores = [e.score for e in episodes if e.score is not None]
    lags = [version - e.first_version for e in episodes]
    described: Diagnostics = {
        "episodes": len(episodes),
        "lag_mean": fmean(lags),
        "lag_max": max(lags),
        "mixed_version_share": fmean(e.first_version != e.last_version for e in episodes),
        "response_tokens": fmean(len(e.token_ids) for e in episodes),
        "tool_calls": fmean(e.tool_calls for e in episodes),
    }
    if scores:
        described |= {
            "reward": fmean(s.reward for s in scores),
            "accuracy": fmean(s.outcome == "success" for s in scores),
            "format_rate": fmean(s.answer is not None for s in scores),
            "truncation_rate": fmean(s.outcome == "truncated" for s in scores),
        }
    return described
