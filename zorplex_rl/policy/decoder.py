"""Run a model: ``prefill`` the prompts, then feed each row's new tokens, step by step.

    x = embed(ids)
    each layer:   q, k, v = project(norm(x));  rotate q, k;  k, v → cache
                  x += project(attend(q, cache))
                  x += down(silu(gate(norm(x))) · up(norm(x)))
    logits = head(norm(x))

A step for 64 rows of a small model is about two hundred small tensor operations, and much of its
time goes into calling them. ``LeanDecoder`` writes the step out for Llama and Qwen2 models,
directly on their parameters: the same mathematics with a third of the calls. Every other causal
model decodes through its own ``forward``, one token for each row at a time.

The cache has a fixed number of slots, one for each row of the batch:

    kv   [layers, 2, slots, kv_heads, length, head_dim]      keys and values of every layer

Active rows always use the first slots, so a step works on *views* of the first slots, as wide as
the longest row: nothing is concatenated, gathered or copied between steps. A row can be taken out,
put back, or moved to close a gap. What a slot holds behind its row's end is never seen: every token
attends to the positions up to its own, and its own has been written by then.

A step feeds one token to most rows, and a tool's whole result to the few that have just got one:

    slot 0   17                     The first tokens of all rows attend together, in place. Other
    slot 1   ]   ␣-> ␣ 4 2 ⏎        tokens attend to a copy of their rows, results of equal length
    slot 2   ]   ␣-> ␣ 1 7 ⏎        together.
"""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from zorplex_rl.policy.model import Body, Qwen2

# Transformers takes seconds to load: it is imported where one of its models is already there.
if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

Snapshot = torch.Tensor
"""One row's part of the cache, [layers, 2, kv_heads, length, head_dim], outside of it."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step for B rows: N tokens ``ids``, their ``rows`` (slots) and ``positions``.

    The first token of each row comes first; ``mask`` [B, 1, 1, width] is their additive mask.
    ``results`` has the others, those of equal length Q together: which tokens of the step they are,
    row after row, their rows [n], and mask [n, 1, Q, width]. ``last`` is each row's last token.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    mask: torch.Tensor
    results: list[tuple[slice, torch.Tensor, torch.Tensor]]


class SlotCache:
    """The cache of up to ``slots`` rows of up to ``length`` tokens for ``model``."""

    def __init__(self, model: PreTrainedModel | Qwen2, slots: int, length: int = 0) -> None:
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = config.num_hidden_layers
        self.kv = torch.empty(layers, 2, slots, heads, 0, head_dim, dtype=model.dtype, device=model.device)
        self.rows = self.positions = torch.arange(slots, device=model.device)
        self.width = 0
        self.reserve(length)

    @property
    def length(self) -> int:
        """Number of tokens that a row can hold."""
        return self.kv.shape[-2]

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in each row. All rows are copied if there was less."""
        if length > self.length:
            old, shape = self.kv, (*self.kv.shape[:-2], length, self.kv.shape[-1])
            self.kv = _zeros(shape, old.dtype, old.device)
            self.kv[..., : old.shape[-2], :] = old

    def put(self, slot: int, snapshot: Snapshot) -> None:
        """Copy ``snapshot`` into ``slot``."""
        self.kv[:, :, slot, :, : snapshot.shape[-2]] = snapshot

    def take(self, slot: int, length: int) -> Snapshot:
        """Return a copy of the first ``length`` tokens of ``slot``."""
        return self.kv[:, :, slot, :, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the row in slot ``source`` over the one in slot ``target``."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def begin_step(self, lengths: Sequence[int], tokens: Sequence[Sequence[int]]) -> DecodeStep:
        """Prepare to feed ``tokens``, at least one each, to the first rows, of ``lengths``."""
        batch, device = len(lengths), self.kv.device
        ids, last = [row[0] for row in tokens], [*range(batch)]
        slots, places = [*range(batch)], [*lengths]
        parts = []
        for length in sorted({*map(len, tokens)} - {1}):
            start = len(ids)
            for slot in (slot for slot, row in enumerate(tokens) if len(row) == length):
                ids += tokens[slot][1:]
                slots += [slot] * (length - 1)
                places += range(lengths[slot] + 1, lengths[slot] + length)
                last[slot] = len(ids) - 1
            parts.append((slice(start, len(ids)), length - 1))
        fed, rows, positions = torch.tensor([ids, slots, places], device=device).unbind(0)
        self.rows, self.positions = rows[:batch], positions[:batch]
        self.width = max(places) + 1
        hidden = torch.arange(self.width, device=device) > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.kv.dtype, device=device).masked_fill_(hidden, float("-inf"))
        results = [(part, rows[part][::n], mask[part].view(-1, 1, n, self.width)) for part, n in parts]
        ends = torch.tensor(last, device=device) if results else rows
        return DecodeStep(fed, rows, positions, ends, mask[:batch, None, None], results)


class GrowingCache:
    """Concatenates what is new: transformers' ``DynamicCache``, for full attention alone."""

    def __init__(self) -> None:
        self.layers: list[SimpleNamespace] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add to ``layer``, or to a new one behind the last."""
        if layer == len(self.layers):
            self.layers.append(SimpleNamespace(keys=keys, values=values))
        else:
            found = self.layers[layer]
            found.keys, found.values = torch.cat((found.keys, keys), -2), torch.cat((found.values, values), -2)
        return self.layers[layer].keys, self.layers[layer].values

    def get_seq_length(self) -> int:
        """Return how many tokens each row has."""
        return self.layers[0].keys.shape[-2] if self.layers else 0

    def batch_repeat_interleave(self, times: int) -> None:
        """Repeat each row ``times`` times."""
        for layer in self.layers:
            layer.keys, layer.values = (x.repeat_interleave(times, 0) for x in (layer.keys, layer.values))


def new_cache(model: PreTrainedModel | Qwen2, **settings: Any) -> DynamicCache | GrowingCache:
    """Return an empty cache that grows, for ``model``; ``settings`` are for transformers' one."""
    if isinstance(model, Qwen2):
        return GrowingCache()
    from transformers.cache_utils import DynamicCache

    return DynamicCache(**settings)


def as_transformers_cache(slots: SlotCache) -> Cache:
    """Return transformers' view of ``slots``: each row's new key and value go to its own position."""
    from transformers.cache_utils import Cache

    return Cache(layers=[_slot_layer()(slots, layer) for layer in range(len(slots.kv))])


@cache
def _slot_layer() -> type[CacheLayerMixin]:
    """Return the class of a layer of that view, made once: its base is transformers'."""
    from transformers.cache_utils import CacheLayerMixin

    class SlotLayer(CacheLayerMixin):
        def __init__(self, slots: SlotCache, layer: int) -> None:
            super().__init__()
            self._slots, self._layer, self.is_initialized = slots, layer, True

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object):
            slots = self._slots
            keys, values = slots.kv[self._layer]
            keys[slots.rows, :, slots.positions] = key_states[:, :, 0]
            values[slots.rows, :, slots.positions] = value_states[:, :, 0]
            batch = len(slots.positions)
            return keys[:batch, :, : slots.width], values[:batch, :, : slots.width]

        def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
            """Do nothing: all memory was allocated at once."""

        def get_seq_length(self) -> int:
            return self._slots.width - 1

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self._slots.width, 0

        def get_max_length(self) -> int:
            return self._slots.length

    return SlotLayer


def fills(model: torch.nn.Module, cache: Any) -> dict[str, Any]:
    """Return ``model``'s arguments to read keys and values from ``cache`` and add to them.
    Transformers 5.24 says ``cache``; earlier ones, and some models, ``past_key_values``."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {name: cache, "use_cache": True}


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; in Linux's main memory in large pages: page look-ups would slow the reading."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    with suppress(OSError):  # Without large pages in the kernel, the same memory is only slower.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


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
