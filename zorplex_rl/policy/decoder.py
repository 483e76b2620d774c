"""Run a model: ``prefill`` the prompts, then feed each row's new tokens, step by step.

A step for 64 rows of a small model is about two hundred small tensor operations, and much of its
time goes into calling them. ``LeanDecoder`` writes the step out for Llama and Qwen2 models,
directly on their parameters: the same mathematics with a third of the calls, and a tool's result is
fed in one step together with the other rows' single tokens. Every other causal model decodes
through its own ``forward``, one token for each row at a time.

    x = embed(ids)
    each layer:   q, k, v = project(norm(x));  rotate q, k;  k, v → cache
                  x += project(attend(q, cache))
                  x += down(silu(gate(norm(x))) · up(norm(x)))
    logits = head(norm(x))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from zorplex_rl.policy.kv_cache import DecodeStep, SlotCache, Snapshot, as_transformers_cache, fills, new_cache
from zorplex_rl.policy.model import Body, Qwen2

# Transformers takes seconds to load: it is imported where one of its models is already there.
if TYPE_CHECKING:
    from transformers import PreTrainedModel


def prefill(model: PreTrainedModel | Qwen2, prompts: Sequence[Sequence[int]]) -> list[tuple[Snapshot, torch.Tensor]]:
    """Run ``prompts`` at once. Returns for each its snapshot and the next token's logits [V]. The
    tokens that all prompts start with (usually the system prompt) run once."""
    shared = _shared_length(prompts)
    lengths = torch.tensor([len(prompt) - shared for prompt in prompts])
    ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt) - shared] = torch.tensor(prompt[shared:])
    cache = new_cache(model, config=model.config)
    if shared:
        start = torch.tensor([prompts[0][:shared]], device=model.device)
        model.base_model(input_ids=start, **fills(model.base_model, cache))
        cache.batch_repeat_interleave(len(prompts))
    # Padding is on the right: with causal attention no real token sees it, so no mask is needed.
    ids, last = ids.to(model.device), (lengths - 1).to(model.device)
    hidden = model.base_model(input_ids=ids, **fills(model.base_model, cache)).last_hidden_state
    logits = project(model, hidden[torch.arange(len(prompts), device=hidden.device), last])
    kv = torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])
    return [(kv[:, :, row, :, : len(prompt)].clone(), logits[row]) for row, prompt in enumerate(prompts)]


def _shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many leading tokens ``prompts`` share, fewer than any has; 0 for one prompt."""
    shortest = min(map(len, prompts))
    differing = (i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    return min(next(differing, shortest), shortest - 1) if len(prompts) > 1 else 0


def project(model: PreTrainedModel | Qwen2, states: torch.Tensor) -> torch.Tensor:
    """Return the logits [..., V] of hidden states [..., hidden_size], as ``forward`` computes them.
    Float32 states give float32 logits and sums of gradients, also in a bfloat16 model."""
    layer, config = model.get_output_embeddings(), model.config
    bias = None if layer.bias is None else layer.bias.to(states.dtype)
    logits = F.linear(states, layer.weight.to(states.dtype), bias)
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


def decoder_of(model: PreTrainedModel | Qwen2) -> LeanDecoder | OwnForward:
    """Return the fastest decoder for ``model``. ``tokens_at_once`` is how many it takes of a row.
    ``LeanDecoder`` is not for subclasses, wrapped layers, hooks or long-context variants."""
    known = [(Qwen2, Body)]
    if not isinstance(model, Qwen2):
        from transformers import LlamaForCausalLM, LlamaModel, Qwen2ForCausalLM, Qwen2Model

        known = [(LlamaForCausalLM, LlamaModel), (Qwen2ForCausalLM, Qwen2Model)]
    config = model.config
    lean = (
        (type(model), type(model.base_model)) in known
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        in ("default", "linear", "llama3")
        and all(type(layer.get_submodule("self_attn.q_proj")) is torch.nn.Linear for layer in model.model.layers)
    )
    return LeanDecoder(model) if lean else OwnForward(model)


class OwnForward:
    """Decodes through the model's own ``forward``. Works for every architecture."""

    tokens_at_once: int | None = 1

    def __init__(self, model: PreTrainedModel | Qwen2) -> None:
        self._model = model
        self._slots: SlotCache | None = None

    def __call__(self, step: DecodeStep, cache: SlotCache) -> torch.Tensor:
        """Return the logits [B, V] after every row's last token. Writes to ``cache``."""
        if self._slots is not cache:
            self._slots, self._view = cache, as_transformers_cache(cache)
        ids, positions = step.ids[:, None], step.positions[:, None]
        fill = fills(self._model, self._view)
        return self._model(input_ids=ids, attention_mask=step.mask, position_ids=positions, **fill).logits[:, -1]


class LeanDecoder:
    """Decodes on the model's parameters, read in each step, so that new weights apply at once."""

    tokens_at_once: int | None = None  # Any number.

    def __init__(self, model: PreTrainedModel | Qwen2) -> None:
        config = model.config
        self._model = model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._cos = self._sin = torch.empty(0)

    def __call__(self, step: DecodeStep, cache: SlotCache) -> torch.Tensor:
        """Do the same as ``OwnForward``, with any number of tokens for each row."""
        body, tokens = self._model.model, len(step.ids)
        heads, kv_heads, dim = self._heads, self._kv_heads, self._head_dim
        if len(self._cos) < cache.length:
            self._tabulate_rotation(cache.length)
        cos, sin = self._cos[step.positions], self._sin[step.positions]
        x = F.embedding(step.ids, body.embed_tokens.weight)
        for layer, kv in zip(body.layers, cache.kv, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            h = _norm(x, layer.input_layernorm)
            qk = torch.cat((_linear(h, attention.q_proj), _linear(h, attention.k_proj)), -1)
            qk = qk.view(tokens, heads + kv_heads, dim)
            # (x₁, x₂) → (x₁ cos − x₂ sin, x₂ cos + x₁ sin): rolling swaps, the sine has the sign.
            qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
            q, k = qk.split((heads, kv_heads), 1)
            v = _linear(h, attention.v_proj).view(tokens, kv_heads, dim)
            kv[0, step.rows, :, step.positions] = k
            kv[1, step.rows, :, step.positions] = v
            x = x + _linear(_attend(q, kv, step), attention.o_proj)
            h = _norm(x, layer.post_attention_layernorm)
            x = x + _linear(F.silu(_linear(h, mlp.gate_proj)) * _linear(h, mlp.up_proj), mlp.down_proj)
        if step.results:
            x = x[step.last]
        return _linear(_norm(x, body.norm), self._model.lm_head)

    def _tabulate_rotation(self, length: int) -> None:
        """Store the model's cosines and sines [length, 1, head_dim], half of the sines negated."""
        positions = torch.arange(length, device=self._model.device)
        cos, sin = self._model.model.rotary_emb(self._model.lm_head.weight, positions[None])
        sign = torch.ones(self._head_dim, device=sin.device, dtype=sin.dtype)
        sign[: self._head_dim // 2] = -1
        self._cos, self._sin = cos[0, :, None], (sin * sign)[0, :, None]


def _attend(q: torch.Tensor, kv: torch.Tensor, step: DecodeStep) -> torch.Tensor:
    """Return [N, heads · dim] for q [N, heads, dim] over kv [2, slots, kv_heads, length, dim]."""
    batch, width = len(step.mask), step.mask.shape[-1]
    keys, values = kv[:, :batch, :, :width].unbind(0)
    # Query heads that share a key-value head become query positions, so no key is copied for them.
    q = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])
    mixed = [F.scaled_dot_product_attention(q[:batch], keys, values, attn_mask=step.mask).reshape(batch, -1)]
    for part, rows, mask in step.results:
        n, _, length, _ = mask.shape
        own, mask = q[part].view(n, length, *q.shape[1:]).transpose(1, 2), mask.repeat_interleave(q.shape[2], 2)
        output = F.scaled_dot_product_attention(own.flatten(2, 3), keys[rows], values[rows], attn_mask=mask)
        mixed.append(output.view(own.shape).transpose(1, 2).reshape(n * length, -1))
    return torch.cat(mixed) if step.results else mixed[0]


def _linear(x: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    return F.linear(x, layer.weight, layer.bias)


def _norm(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return F.rms_norm(x, layer.weight.shape, layer.weight, layer.variance_epsilon)
