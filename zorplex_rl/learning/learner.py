"""The learner: each step trains the model on a batch of episodes and makes a new version of it.

    episodes ──collate──► micro-batches ──forward──► logp ──loss──► gradients, added up ──clip──► AdamW ──► version + 1

``token_budget`` bounds the memory, however large the batch is: the gradients of micro-batches add
up to that of the batch, but for rounding. A bfloat16 model has logits and log-probs in float32, and
the gradients of embeddings and micro-batches are added up in it (``adamw.py``). What its layers
compute is rounded all the same, and so its gradient is not that of the float32 model.

``sharded_learner.py`` does the same on several processes with the functions below ``Learner``.
"""

from __future__ import annotations

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
from zorplex_rl.learning.losses import LOSSES, Loss, kl_penalty, onward, policy_loss, second_moment_bound
from zorplex_rl.learning.ratios import Diagnostics, effective_sample_size, episode_log_ratios, mismatch
from zorplex_rl.policy.decoder import project, states_of
from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode

Forward = Callable[[MicroBatch], tuple[Tensor, Tensor]]  # returns log π and entropy [B, T] of its tokens
KNOBS = ("clip_low", "clip_high", "truncation")  # the settings of a loss
MAX_GRAD_NORM = 1.0


class Learner:
    """Trains ``policy``'s model in place. ``version`` counts the steps. After the warm-up the
    learning rate falls linearly to a tenth at step ``decay_steps``; 0 is never."""

    def __init__(
        self, policy: Policy, config: LearnerConfig = Config.learner, decay_steps: int = 0, temperature: float = 1.0
    ) -> None:
        self.policy = policy
        self.config = config
        self.version = 0
        self.decay_steps, self.temperature = decay_steps, temperature
        self.optimizer = AdamW([p for p in policy.model.parameters() if p.requires_grad])

    def step(
        self,
        episodes: Sequence[Episode],
        advantages: Sequence[float],
        reference_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> Diagnostics:
        """Train on ``episodes``, each with its advantage; with ``--credit prefix`` whole groups.
        Returns the step's diagnostics, those of the loss before its first update.

        Raises TrainingDiverged if loss or gradient are not finite: the caller must neither publish nor
        save the weights.
        """
        return take_step(self, episodes, advantages, reference_logprobs)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the next step depends on, by name: version, masters and moments. The rest
        is configuration; the learning rate follows from the version."""
        return {"version": torch.tensor(self.version)} | self.optimizer.state_dict()

    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``, whose tensor of a name ``read`` returns."""
        self.version = int(read("version"))
        self.optimizer.restore(read)


def take_step(
    learner: Any,
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    reference_logprobs: Sequence[Sequence[float]] | None = None,
    part: tuple[int, int] = (0, 1),
    run: Callable[..., Any] = lambda function, *args: function(*args),
    of_all_ranks: Callable[..., tuple[Diagnostics, list[Tensor]]] = lambda totals, tensors: (totals, tensors),
) -> Diagnostics:
    """Take the step of a ``Learner``; of a ``ShardedLearner`` this rank's ``part`` (rank, ranks). ``run``
    calls a function of the model, ``of_all_ranks`` adds up diagnostics and joins tensors."""
    config, model = learner.config, learner.policy.model
    loss, number = loss_of(config), learner.version + 1
    credit: Advantages = by_prefix(episodes, advantages) if config.credit == "prefix" else advantages
    batches = collate(episodes, credit, config.token_budget, reference_logprobs, model.device, part)
    tokens = float(sum(sum(episode.sampled) for episode in episodes))
    metrics: Diagnostics = {}
    proximal: list[Tensor] | None = None

    def forward(batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return run(token_logprobs, learner.policy, batch, learner.temperature)

    for _ in range(config.updates_per_batch):
        bound = None
        if loss.bound == "second moment":
            _, (squares,) = of_all_ranks({}, [squares_of(forward, batches)])
            bound = second_moment_bound(squares, loss.truncation)
        totals, logps = add_gradients(forward, batches, tokens, config, proximal, bound)
        totals, found = of_all_ranks(totals, compared(batches, logps))
        expect_finite("loss", totals["loss"], number)
        norm = learner.optimizer.clip_gradients(MAX_GRAD_NORM)
        # Checked before the update, so gradients that are not finite never reach the weights.
        expect_finite("norm of the gradient", norm, number)
        share = schedule(learner.version, config.warmup_steps, learner.decay_steps)
        learner.optimizer.step(config.learning_rate * share)
        if proximal is None:
            proximal = logps
            metrics = totals | {"grad_norm": norm} | divergence(*found)
    learner.version = number
    return metrics | describe(episodes, number - 1)


def loss_of(config: LearnerConfig) -> Loss:
    """Return the row of ``config.loss``, with the settings that ``config`` gives. Raises ConfigError
    for one that this loss does not have."""
    row, given = LOSSES[config.loss], {name: value for name in KNOBS if (value := getattr(config, name)) is not None}
    for name in given:
        if getattr(row, name) == math.inf:
            raise ConfigError(f"{flag(name)} does nothing in --loss {config.loss}; leave it out")
    return replace(row, **given)


def add_gradients(
    forward: Forward,
    batches: Sequence[MicroBatch],
    tokens: float,
    config: LearnerConfig,
    proximal: Sequence[Tensor] | None,
    largest_square: float | None,
) -> tuple[Diagnostics, list[Tensor]]:
    """Add up the gradients of ``batches``. Returns the sums of their diagnostics, and log π [B, T]
    of each. ``proximal`` is log π in the step's first update; None in that update."""
    loss, kl_coefficient = loss_of(config), config.kl_coefficient
    totals: Diagnostics = {"loss": 0.0, "entropy": 0.0}
    logps = []
    for index, batch in enumerate(batches):
        # If all advantages are 0 and no KL penalty is set, only diagnostics are needed.
        with torch.set_grad_enabled(kl_coefficient > 0 or bool(batch.advantage.any())):
            logp, entropy = forward(batch)
        recent = proximal[index] if proximal and loss.weighted == "w r" else None
        value, found = policy_loss(
            loss, logp, batch.behaviour_logp, batch.advantage, batch.mask, tokens, recent, largest_square
        )
        if kl_coefficient > 0:
            penalty = kl_penalty(logp, batch.reference_logp, batch.mask, tokens)
            found["reference_kl"] = penalty.item()
            value = value + kl_coefficient * penalty
        if value.requires_grad:
            value.backward()
        logps.append(logp.detach())
        found |= {"loss": value.item(), "entropy": (entropy * batch.mask).sum().item() / tokens}
        for name, share in found.items():
            totals[name] = totals.get(name, 0.0) + share
    return totals, logps


@torch.no_grad()
def squares_of(forward: Forward, batches: Sequence[MicroBatch]) -> Tensor:
    """Return (log r)² [n] of what m2po may mask in ``batches``. Runs the model once more."""
    squares = [onward(forward(b)[0] - b.behaviour_logp, b.advantage, b.mask) for b in batches if b.advantage.any()]
    return torch.cat([batches[0].mask.new_zeros(0), *squares])


def compared(batches: Sequence[MicroBatch], logps: Sequence[Tensor]) -> list[Tensor]:
    """Return log π, log μ and mask [n] of all tokens, and log π/μ of all episodes."""
    episodes = [
        episode_log_ratios(logp, b.behaviour_logp, b.mask)[: len(b.episodes)]
        for logp, b in zip(logps, batches, strict=True)
    ]
    parts = (logps, [b.behaviour_logp for b in batches], [b.mask for b in batches], episodes)
    return [torch.cat([tensor.flatten() for tensor in part]) for part in parts]


def divergence(logp: Tensor, behaviour_logp: Tensor, mask: Tensor, of_episodes: Tensor) -> Diagnostics:
    """Return how far the policy is from the one that sampled, from what ``compared`` returned."""
    # Relative to the largest one: far from μ, the ratios of all episodes would be rounded to 0.
    size = effective_sample_size((of_episodes - of_episodes.max()).exp())
    return {"episode_sample_size": size} | mismatch(logp, behaviour_logp, mask)


def schedule(version: int, warmup_steps: int, decay_steps: int) -> float:
    """Return the learning rate's share at ``version``: linear warm-up, linear fall to a tenth.

    >>> [schedule(version, warmup_steps=2, decay_steps=12) for version in (0, 1, 2, 7, 12, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """
    if version < warmup_steps:
        return (version + 1) / warmup_steps
    if not decay_steps:
        return 1.0
    return max(0.1, 1 - 0.9 * (version - warmup_steps) / max(1, decay_steps - warmup_steps))


def expect_finite(what: str, value: float, step: int) -> None:
    """Raise TrainingDiverged if ``value`` is not finite."""
    if not math.isfinite(value):
        raise TrainingDiverged(f"the {what} of step {step} is {value}")


def token_logprobs(policy: Policy, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log π and entropy (no gradient) of sampled tokens [B, T]; 0 where ``mask`` is. The
    logits, the largest tensor of a step, are computed once for each distinct beginning."""
    chosen = batch.mask.bool()
    distinct, which = batch.places[chosen].unique(return_inverse=True)
    logits = project(policy.model, states_of(policy.model, batch.tree)[distinct])
    all_logp = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    picked = all_logp[which, batch.ids[chosen]]
    with torch.no_grad():
        entropies = -torch.einsum("nv,nv->n", all_logp.exp(), all_logp)[which]
    zeros = torch.zeros_like(batch.mask)
    return zeros.masked_scatter(chosen, picked), zeros.masked_scatter(chosen, entropies)


@torch.no_grad()
def response_logprobs(
    policy: Policy,
    episodes: Sequence[Episode],
    temperature: float = Config.temperature,
    token_budget: int = LearnerConfig.token_budget,
) -> list[list[float]]:
    """Return log π of each response's tokens under ``policy``, a reference; 0.0 where injected."""
    found: list[list[float]] = [[] for _ in episodes]
    for batch in collate(episodes, [0.0] * len(episodes), token_budget, device=policy.model.device):
        logp, _ = token_logprobs(policy, batch, temperature)
        for row, index in enumerate(batch.episodes):
            found[index] = logp[row, : len(episodes[index].token_ids)].tolist()
    return found


def describe(episodes: Sequence[Episode], version: int) -> Diagnostics:
    """Return statistics of a batch that is trained on at ``version``: rewards, outcomes, lags."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    ages = [version - episode.first_version for episode in episodes]
    described: Diagnostics = {
        "episodes": len(episodes),
        "lag_mean": fmean(ages),
        "lag_max": max(ages),
        "mixed_version_share": fmean(episode.first_version != episode.last_version for episode in episodes),
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
