"""One decoding step of a model: the newest token of every row in, the logits of the next ones out.

A step for 64 rows of a small model is some two hundred small tensor operations, and what it costs is calling them. ``LeanDecoder`` spells
the step out for models of the Llama family (Llama, Qwen2), straight on their parameters: same mathematics, a third of the calls. Every
other causal model decodes through its own ``forward``; nothing else depends on which it is.

    x = embed(ids)
    each layer:   q, k, v = project(norm(x));  rotate q, k;  k, v → cache;  x += project(attend(q, cache))
                  x += down(silu(gate(norm(x))) · up(norm(x)))
    logits = head(norm(x))
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM, LlamaModel, PreTrainedModel, Qwen2ForCausalLM, Qwen2Model

from zorplex_rl.policy.slots import SlotCache

Decode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, SlotCache], torch.Tensor]
"""(ids [B], positions [B], mask [B, 1, 1, width], cache) -> logits [B, V], with the new keys and values written to the cache."""


def decoder_of(model: PreTrainedModel) -> Decode:
    """The quickest way to decode with ``model``."""
    return LeanDecoder(model) if is_lean(model) else OwnForward(model)


def is_lean(model: PreTrainedModel) -> bool:
    """Whether ``LeanDecoder`` computes what ``model`` does. Subclasses, wrapped layers, hooks and long-context variants are left alone."""
    config = model.config
    return (
        (type(model), type(model.base_model)) in ((LlamaForCausalLM, LlamaModel), (Qwen2ForCausalLM, Qwen2Model))
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        in ("default", "linear", "llama3")
        and all(type(layer.self_attn.q_proj) is torch.nn.Linear for layer in model.model.layers)
    )


class OwnForward:
    """Decodes through the model's own ``forward``, whatever its architecture."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: SlotCache
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        return output.logits[:, -1]


class LeanDecoder:
    """The step written out. It reads the model's live parameters, so weights that are copied into the model count from the next step on."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._model = model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._cos = self._sin = torch.empty(0)

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: SlotCache
    ) -> torch.Tensor:
        body, batch, width = self._model.model, len(ids), mask.shape[-1]
        heads, kv_heads, dim = self._heads, self._kv_heads, self._head_dim
        if len(self._cos) < cache.length:
            self._tabulate_rotation(cache.length)
        cos, sin = self._cos[positions], self._sin[positions]
        x = F.embedding(ids, body.embed_tokens.weight)
        for layer, kv in zip(body.layers, cache.kv, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            h = _norm(x, layer.input_layernorm)
            qk = torch.cat((_linear(h, attention.q_proj), _linear(h, attention.k_proj)), -1)
            qk = qk.view(batch, heads + kv_heads, dim)
            # (x₁, x₂) → (x₁ cos − x₂ sin, x₂ cos + x₁ sin): rolling by half swaps the parts, and the sign is in the sine.
            qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
            q, k = qk.split((heads, kv_heads), 1)
            v = _linear(h, attention.v_proj).view(batch, kv_heads, dim)
            kv[0, cache.rows, :, positions] = k
            kv[1, cache.rows, :, positions] = v
            keys, values = kv[0, :batch, :, :width], kv[1, :batch, :, :width]
            # The query heads that share a key-value head stand where a query's positions would: no key is copied for them.
            q = q.reshape(batch, kv_heads, heads // kv_heads, dim)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=dim**-0.5)
            x = x + _linear(mixed.reshape(batch, heads * dim), attention.o_proj)
            h = _norm(x, layer.post_attention_layernorm)
            x = x + _linear(F.silu(_linear(h, mlp.gate_proj)) * _linear(h, mlp.up_proj), mlp.down_proj)
        return _linear(_norm(x, body.norm), self._model.lm_head)

    def _tabulate_rotation(self, length: int) -> None:
        """The model's own cosines and sines [length, 1, head_dim] for all positions, the first half of the sines negated."""
        positions = torch.arange(length, device=self._model.device)
        cos, sin = self._model.model.rotary_emb(self._model.lm_head.weight, positions[None])
        sign = torch.ones(self._head_dim, device=sin.device, dtype=sin.dtype)
        sign[: self._head_dim // 2] = -1
        self._cos, self._sin = cos[0, :, None], (sin * sign)[0, :, None]


def _linear(x: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    return F.linear(x, layer.weight, layer.bias)


def _norm(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
    return F.rms_norm(x, layer.weight.shape, layer.weight, layer.variance_epsilon)
