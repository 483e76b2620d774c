"""Qwen2 in plain torch: the model of the embedded policy and of those that descend from it.

    ids [B, T] ──► embed ──► layers ──► norm ──► states [B, T, H] ──► lm_head ──► logits [B, T, V]

    a layer:   x += out(attend(rotate(query(n)), rotate(key(n)), value(n)))    with n = norm(x)
               x += down(silu(gate(n)) · up(n))                                with n = norm(x)

It does what transformers' ``Qwen2ForCausalLM`` does, operation by operation, and has its names of
parameters, its calls and its files: the bits are the same (``tests/policy/test_model.py``). It
exists because importing that one takes each process two seconds. All other models are transformers'.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class States(NamedTuple):
    """What the layers compute, [B, T, hidden_size]."""

    last_hidden_state: Tensor


class Logits(NamedTuple):
    """What the whole model computes, [B, T, V]."""

    logits: Tensor


class Norm(nn.Module):
    """x / √(mean of x² + ε) · weight, in float32 (Zhang, Sennrich 2019)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (exact * scale).to(x.dtype)


class Rotation(nn.Module):
    """Cosines and sines of each position's angles (Su et al. 2021)."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        steps = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float, device="cpu") / head_dim)
        self.inv_freq = nn.Buffer(steps, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [B, T, head_dim] of ``positions`` [B, T], of the type of ``x``."""
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x₁, x₂) of [B, heads, T, head_dim], halves of the last dimension."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    """Query heads that share keys and values in groups."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        size, self.head_dim = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.q_proj = nn.Linear(size, config.num_attention_heads * self.head_dim)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * self.head_dim)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * self.head_dim)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Any, layer: int) -> Tensor:
        batch, length, _ = x.shape
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).view(batch, length, -1, self.head_dim).transpose(1, 2) for project in projections)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        groups = q.shape[1] // k.shape[1]
        if mask is not None and length == 1:
            q = q.view(batch, k.shape[1], groups, self.head_dim)  # One token: its heads can be positions.
        elif mask is not None:
            k, v = (y[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for y in (k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and length > 1, enable_gqa=mask is None and groups > 1
        )
        return self.o_proj(mixed.reshape(batch, -1, length, self.head_dim).transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """A gated layer (Shazeer 2020)."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the gated layer, each added to what it read."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, *places: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *places)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """All but the output layer."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        # Its own initialisation, of no use here, takes half a second of imports where there is no memory.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        head_dim = config.hidden_size // config.num_attention_heads
        self.rotary_emb = Rotation(head_dim, config.rope_parameters["rope_theta"])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
    ) -> States:
        """Run ``input_ids`` [B, T], or ``inputs_embeds`` [B, T, hidden_size], behind what ``cache``
        (``decoder.py``) has, and add them to it. ``attention_mask`` [B, seen + T] says which are no padding, or
        [B, 1, T, seen + T] is added to the scores. ``use_cache`` is for transformers' models."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        seen = 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        mask = attention_mask
        if mask is None or mask.dim() == 2:
            mask = causal_mask(mask, x.shape[0], x.shape[1], seen, x.device)
        cos, sin = (y[:, None] for y in self.rotary_emb(x, position_ids))
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, cache, index)
        return States(self.norm(x))


def causal_mask(real: Tensor | None, batch: int, length: int, seen: int, device: torch.device) -> Tensor | None:
    """Return which of ``seen`` + ``length`` tokens each of the last ``length`` attends to,
    [batch, 1, length, seen + length]: those up to itself that are ``real`` [batch, seen + length].
    None if those are all of them, or all up to itself, which torch computes faster without a mask."""
    if (length == 1 or not seen) and (real is None or bool(real.all())):
        return None
    positions = torch.arange(seen + length, device=device)
    allowed = (positions <= positions[seen:, None])[None, None]
    return (allowed if real is None else allowed & real[:, None, None].bool()).expand(batch, -1, -1, -1)


class Qwen2(nn.Module):
    """The model of a folder's ``config.json`` and ``generation_config.json``, without weights."""

    def __init__(self, config: SimpleNamespace, generation_config: SimpleNamespace) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation_config
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output layer's weights those of the embeddings, if the settings say so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor | None = None, *, cache: Any = None, **others: Any) -> Logits:
        """Return the logits after each token; arguments as those of ``Body``."""
        return Logits(self.lm_head(self.model(input_ids, cache=cache, **others).last_hidden_state))

    @property
    def base_model(self) -> Body:
        """All but the output layer."""
        return self.model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.lm_head.weight.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of the tokens' vectors."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer."""
        return self.lm_head

    def num_parameters(self) -> int:
        """Return the number of weights; a shared one counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of a model folder, which transformers reads, too."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for name, settings in (("config", self.config), ("generation_config", self.generation_config)):
            text = json.dumps(vars(settings), indent=2, sort_keys=True)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        weights = {name: value.detach().contiguous() for name, value in self.named_parameters()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
