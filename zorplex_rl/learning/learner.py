"""The learner: each step trains the model on a batch of episodes and makes a new version of it.

    episodes ──collate──► micro-batches ──forward──► logp ──loss──► gradients, added up ──clip──► AdamW ──► version + 1

``token_budget`` bounds the memory, however large the batch is: the gradients of micro-batches add
up to that of the batch. In float32 the sums differ only by rounding: by 6e-7 of the gradient's norm
between 6 micro-batches and 64 (measured on the embedded policy, 64 episodes).

A bfloat16 model has float32 master weights, and its gradients are added up in float32. With eight
bits of mantissa, bfloat16 weights would lose a small step, and a sum would lose whatever is below a
256th of it. For the same reason the logits are computed in float32. Between 6 micro-batches and 64
the gradient then changes by 0.25 to 0.43 % of its norm (four batches; 0.59 % on another processor);
added up in bfloat16 it changed by 1.1 to 1.4 %. Computing the rest of the forward and backward pass
in bfloat16 changes it more: by 2 to 7 % of the float32 gradient, however the batch is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from zorplex_rl.config import LOSS_KNOBS, Config, LearnerConfig
from zorplex_rl.errors import CheckpointError, ConfigError, TrainingDiverged
from zorplex_rl.learning.adamw import AdamW
from zorplex_rl.learning.advantages import by_prefix
from zorplex_rl.learning.batches import Advantages, MicroBatch, collate
from zorplex_rl.learning.losses import LOSSES, kl_penalty
from zorplex_rl.learning.masks import SECOND_MOMENT, onward, second_moment_bound
from zorplex_rl.learning.ratios import (
    Diagnostics,
    effective_sample_size,
    episode_log_ratios,
    learning_rate_factor,
    mismatch,
)
from zorplex_rl.learning.schedule import schedule
from zorplex_rl.policy.decoder import project
from zorplex_rl.policy.kv_cache import fills, new_cache
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.model import Qwen2
from zorplex_rl.task.episode import Episode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")
SHARPEN_FROM = 0.8
"""After this share of the steps ``--scale-rate`` begins."""


class Learner:
    """Trains ``policy``'s model in place. ``version`` counts the steps. After the warm-up the
    learning rate falls linearly to a tenth at step ``decay_steps``; 0 is never."""

    def __init__(
        self, policy: Policy, config: LearnerConfig = Config.learner, decay_steps: int = 0, temperature: float = 1.0
    ) -> None:
        self.policy, self.config, self.version = policy, config, 0
        self.decay_steps, self._temperature = decay_steps, temperature
        knobs = {name: value for name in LOSS_KNOBS if (value := getattr(config, name)) is not None}
        self._loss = partial(LOSSES[config.loss], **knobs)
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._masters = [
            p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float().clone()) for p in self._parameters
        ]
        self.optimizer = AdamW(self._masters, config.weight_decay)
        self._gain = self._gain_of_last_norm() if config.scale_rate else None
        self._slope = torch.zeros(2)

    def step(
        self,
        episodes: Sequence[Episode],
        advantages: Sequence[float],
        reference_logprobs: Sequence[Sequence[float]] | None = None,
        proximal_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> Diagnostics:
        """Train on ``episodes``, each with its advantage; with ``--credit prefix`` whole groups.
        Returns the step's diagnostics.

        ``proximal_logprobs`` are log π₀ of ``decoupled_ppo``; None: of the start of this step. With
        those of the weights that sampled, it corrects numerics and staleness each by itself
        (``microscope.py``).

        Raises ValueError without a sampled token, and TrainingDiverged if loss, gradient, new
        weights or their logits are not finite: the caller must neither publish nor save them.
        """
        if not any(any(episode.sampled) for episode in episodes):
            raise ValueError("the batch has no sampled token to learn from")
        credit: Advantages = by_prefix(episodes, advantages) if self.config.credit == "prefix" else advantages
        batches = self._collate(episodes, credit, reference_logprobs)
        tokens = float(sum(map(sum, (episode.sampled for episode in episodes))))
        proximal: list[Tensor] = []
        if proximal_logprobs is not None:
            if self.config.loss != "decoupled_ppo":
                raise ValueError(f"proximal_logprobs are for decoupled_ppo, and the loss is {self.config.loss}")
            proximal = [b.reference_logp for b in self._collate(episodes, credit, proximal_logprobs)]
        metrics: Diagnostics = {}
        for update in range(self.config.updates_per_batch):
            found, logps = self._update(batches, tokens, proximal)
            if update == 0:
                metrics = found
                proximal = proximal or logps
        self._expect_finite("largest weight", self._largest(self._parameters))
        self._expect_finite("largest logit", self._largest([self._run(last_logits, batches[0])]))
        self.version += 1
        return metrics | describe(episodes, self.version - 1)

    def _update(
        self, batches: list[MicroBatch], tokens: float, proximal: list[Tensor]
    ) -> tuple[Diagnostics, list[Tensor]]:
        """Do one optimizer update. Returns diagnostics and each micro-batch's log-probs before it.

        ``proximal`` holds the proximal log-probs; empty: those of this update.
        """
        totals: Diagnostics = {"loss": 0.0, "entropy": 0.0}
        logps = []
        bound = self._second_moment_bound(batches) if self.config.loss == "m2po" else None
        for index, batch in enumerate(batches):
            # If all advantages are 0 and no KL penalty is set, only diagnostics are needed.
            with torch.set_grad_enabled(self.config.kl_coefficient > 0 or bool(batch.advantage.any())):
                logp, entropy = self._run(token_logprobs, batch, self._temperature)
            extra: dict[str, Any] = {} if bound is None else {"bound": bound}
            if proximal and self.config.loss == "decoupled_ppo":
                extra["proximal_logp"] = proximal[index]
            loss, found = self._loss(logp, batch.behaviour_logp, batch.advantage, batch.mask, tokens=tokens, **extra)
            if self.config.kl_coefficient > 0:
                penalty = kl_penalty(logp, batch.reference_logp, batch.mask, tokens)
                found = found | {"reference_kl": penalty.item()}
                loss = loss + self.config.kl_coefficient * penalty
            if loss.requires_grad:
                loss.backward()
                self._collect_gradients()
            logps.append(logp.detach())
            found = found | {"loss": loss.item(), "entropy": (entropy * batch.mask).sum().item() / tokens}
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        flat = [
            torch.cat([t.flatten() for t in tensors])
            for tensors in (logps, [b.behaviour_logp for b in batches], [b.mask for b in batches])
        ]
        apart = [
            episode_log_ratios(logp, b.behaviour_logp, b.mask)[: len(b.episodes)]
            for logp, b in zip(logps, batches, strict=True)
        ]
        totals, (*flat, between) = self._of_all(totals, [*flat, torch.cat(apart)])
        self._expect_finite("loss", totals["loss"])
        # Relative to the largest one: far from μ, the ratios of all episodes would be rounded to 0.
        totals["episode_sample_size"] = effective_sample_size((between - between.max()).exp())
        if self.config.ess_control:
            totals["learning_rate_factor"] = learning_rate_factor(totals["episode_sample_size"])
        totals["grad_norm"] = self._apply_gradients(totals.get("learning_rate_factor", 1.0))
        return totals | mismatch(*flat), logps

    @torch.no_grad()
    def _second_moment_bound(self, batches: list[MicroBatch]) -> float:
        """Return what ``m2po`` needs to know of the whole batch, all processes' parts of it. Runs
        the model once more."""
        squares = [
            onward(self._run(token_logprobs, b, self._temperature)[0] - b.behaviour_logp, b.advantage, b.mask)
            for b in batches
            if b.advantage.any()
        ]
        _, (whole,) = self._of_all({}, [torch.cat([batches[0].mask.new_zeros(0), *squares])])
        return second_moment_bound(whole, self._loss.keywords.get("second_moment", SECOND_MOMENT))

    # What a learner sharded over processes does in its own way (``sharded_learner.py``).

    def _collate(
        self,
        episodes: Sequence[Episode],
        advantages: Advantages,
        reference_logprobs: Sequence[Sequence[float]] | None,
    ) -> list[MicroBatch]:
        """Return this process's micro-batches."""
        return collate(episodes, advantages, self.config.token_budget, reference_logprobs, self.policy.model.device)

    def _run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Return ``function(policy, *args)``, which runs the model."""
        return function(self.policy, *args)

    def _of_all(self, totals: Diagnostics, tensors: list[Tensor]) -> tuple[Diagnostics, list[Tensor]]:
        """Return the sums of all processes' ``totals``, and all their ``tensors`` in a row."""
        return totals, tensors

    def _largest(self, tensors: Sequence[Tensor]) -> float:
        """Return the largest absolute value in any process's ``tensors``."""
        return largest_magnitude(tensors)

    def whole_state(self) -> dict[str, Tensor] | None:
        """Return the ``state_dict`` to save, or None where another process saves it."""
        return self.state_dict()

    def _own_part(self, whole: Tensor, own: Tensor) -> Tensor:
        """Return what this process holds of ``whole``: as much of it as ``own``."""
        return whole

    def _collect_gradients(self) -> None:
        """Add one micro-batch's gradients to the masters', which in float32 are the parameters'."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is parameter or parameter.grad is None:
                continue
            # A sum in bfloat16 would lose whatever is below a 256th of it.
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

    def _apply_gradients(self, factor: float) -> float:
        """Clip the gradients and take an optimizer step, at ``factor`` times the learning rate.
        Returns their norm before clipping."""
        for master in self._masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self.config.max_grad_norm).item()
        # Checked before the update, so gradients that are not finite never reach the weights.
        self._expect_finite("norm of the gradient", norm)
        share = factor * schedule(self.version, self.config.warmup_steps, self.decay_steps)
        scale = self._next_scale(factor)
        self.optimizer.step(share * self.config.learning_rate)
        if self._gain is not None:
            self._gain.data.mul_(scale)
        self.optimizer.forget_gradients()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        return norm

    def _gain_of_last_norm(self) -> Tensor:
        """Return the master of the gain that the logits are linear in."""
        model = self.policy.model
        if model.config.model_type not in ("llama", "qwen2"):
            raise ConfigError(
                f"--scale-rate works with Llama and Qwen2 models, not with {model.config.model_type!r}; leave it out"
            )
        pairs = zip(self._parameters, self._masters, strict=True)
        return next(master for parameter, master in pairs if parameter is model.base_model.norm.weight)

    def _next_scale(self, share: float) -> float:
        """Return the factor for the logits' scale, from the gradients: a step of Adam (Kingma, Ba
        2015, algorithm 1) on its logarithm, whose gradient is Σ gain · gradient of the gain. Before
        the last fifth of the steps it is 1: a policy that is sure explores no longer."""
        if self._gain is None or self._gain.grad is None:
            return 1.0
        slope = (self._gain.detach() * self._gain.grad).sum().item()
        kept = torch.tensor([0.9, 0.95])
        self._slope.copy_(kept * self._slope + (1 - kept) * torch.tensor([slope, slope**2]))
        mean, square = (self._slope / (1 - kept ** (self.optimizer.state[self._gain]["step"].cpu() + 1))).tolist()
        if self.version < SHARPEN_FROM * self.decay_steps:
            return 1.0
        return math.exp(-self.config.scale_rate * share * mean / (math.sqrt(square) + 1e-12))

    def _expect_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise TrainingDiverged(f"the {what} of step {self.version + 1} is {value}")

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the next step depends on, by name: masters, optimizer and version. The
        first two are the learner's own tensors, not copies. The rest of the optimizer is
        configuration; its learning rate follows from the version."""
        state = {"version": torch.tensor(self.version)} | ({} if self._gain is None else {"slope": self._slope})
        for i, master in enumerate(self._masters):
            state[f"masters.{i}"] = master.detach()
            of_optimizer = self.optimizer.state[master].items()
            state |= {f"optimizer.state.{i}.{name}": value for name, value in of_optimizer}
        return state

    @torch.no_grad()
    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``; ``read`` returns its tensor of a name, unsharded. Raises
        CheckpointError for another model's learner, or numbers that are not finite."""
        for name, own in self.state_dict().items():
            whole = read(name)
            if (whole.shape, whole.dtype) != (own.shape, own.dtype):
                found, expected = (f"{list(t.shape)} of {t.dtype}" for t in (whole, own))
                raise CheckpointError(f"it is of another policy: {name} is {found}, expected {expected}")
            if not math.isfinite(largest_magnitude([whole])):
                raise CheckpointError(f"{name} has numbers that are not finite")
            own.copy_(self._own_part(whole, own))
            if name == "version":
                self.version = int(whole)
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            parameter.copy_(master)


@torch.no_grad()
def last_logits(policy: Policy, batch: MicroBatch) -> Tensor:
    """Return the logits [1, V] after ``batch``'s first prompt: finite weights can overflow."""
    prompt = batch.prompts[:1, : int(batch.prompt_lengths[0])]
    return project(policy.model, policy.model.base_model(input_ids=prompt).last_hidden_state[:, -1])


def token_logprobs(policy: Policy, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log π and entropy (no gradient) of sampled tokens [B, T]; 0 where ``mask`` is. The
    logits, the largest tensor of a step, are computed for sampled positions only."""
    chosen = batch.mask.bool()
    states = response_states(policy.model, batch)[chosen]
    # In bfloat16 the output layer's gradient, a sum over all tokens, would lose small terms.
    logits = project(policy.model, states.float()) / temperature
    all_logp = torch.log_softmax(logits, dim=-1)
    picked = all_logp.gather(1, batch.ids[chosen][:, None])[:, 0]
    with torch.no_grad():
        entropies = -(all_logp.exp() * all_logp).sum(-1)
    zeros = torch.zeros_like(batch.mask)
    return zeros.masked_scatter(chosen, picked), zeros.masked_scatter(chosen, entropies)


def response_states(model: PreTrainedModel | Qwen2, batch: MicroBatch) -> Tensor:
    """Return the last hidden states [B, T, hidden_size] that predict each token of the responses.
    Each prompt runs once; the gradients of all its responses add up in its keys and values."""
    follows, lengths = batch.follows, batch.prompt_lengths[batch.follows]
    shared = new_cache(model)
    # Padding is on the right, where causal attention hides it from every real token of its row.
    prompts = embed(model, batch.prompts)
    states = model.base_model(inputs_embeds=prompts, **fills(model.base_model, shared)).last_hidden_state
    first = _rows(states, follows, lengths - 1)[:, None]
    if batch.ids.shape[1] == 1:
        return first
    cache = new_cache(model)
    for index, layer in enumerate(shared.layers):
        cache.update(_rows(layer.keys, follows), _rows(layer.values, follows), index)
    steps = torch.arange(batch.ids.shape[1] - 1, device=follows.device)
    real = torch.arange(batch.prompts.shape[1], device=follows.device) < lengths[:, None]
    states = model.base_model(
        inputs_embeds=embed(model, batch.ids[:, :-1]),
        attention_mask=torch.cat((real, torch.ones_like(batch.ids[:, :-1], dtype=torch.bool)), 1),
        position_ids=lengths[:, None] + steps,
        **fills(model.base_model, cache),
    ).last_hidden_state
    return torch.cat((first, states), 1)


def embed(model: PreTrainedModel | Qwen2, ids: Tensor) -> Tensor:
    """Return the embeddings [B, T, hidden_size] of ``ids`` [B, T]; gradients add up in float32."""
    table = model.get_input_embeddings()
    return torch.nn.functional.embedding(ids, table.weight.float(), table.padding_idx).to(table.weight.dtype)


def _rows(tensor: Tensor, *index: Tensor) -> Tensor:
    """Return ``tensor[index]``. A row's gradients, chosen several times, add up in float32."""
    return tensor.float()[index].to(tensor.dtype)


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
    ages = [version - episode.policy_version for episode in episodes]
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


@torch.no_grad()
def largest_magnitude(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest |value| in ``tensors``: NaN if there is one, 0.0 if empty. Reads once."""
    # Torch cannot compare floating-point numbers of eight bits.
    comparable = (t.float() if t.is_floating_point() and t.itemsize == 1 else t.detach() for t in tensors if t.numel())
    found = [bound.float() for values in comparable for bound in torch.aminmax(values)]
    # Python's max loses a NaN that is not the first value; torch's does not.
    return torch.stack(found).abs().max().item() if found else 0.0
