"""The models of the Llama family in plain torch: Llama, SmolLM2, Qwen2, Qwen3.

    ids [B, T] ──► embed ──► layers ──► norm ──► states [B, T, H] ──► lm_head ──► logits [B, T, V]

    a layer:   x += out(attend(rotate(query(n)), rotate(key(n)), value(n)))    with n = norm(x)
               x += down(silu(gate(n)) · up(n))                                with n = norm(x)

Sampler and trainer run these layers. They differ in what a token attends to, which the argument
``attend`` says: its ancestors in a tree of texts (``TreeAttention``; a plain text is a tree without
branches), or its row's slot of a cache (``decoder.py``).

Parameters and files have the names of transformers, and logits are equal (``tests/policy/test_model.py``).
Importing that library takes each process some seconds. Models of other families are transformers' own.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zorplex_rl.policy.lora import AdaptedLinear
from zorplex_rl.policy.model_folder import (
    FAMILY,
    filled,
    rope_of,
)
from zorplex_rl.policy.product import product_of

ROTATIONS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
"""What ``frequencies`` reads besides ``rope_theta``, for each kind of rotation."""
BLOCK = 128
"""Queries that attend together, to the columns that any of them sees: a tree's other branches cost
little."""
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention in one layer: takes the layer's index, queries [B, T, heads, head_dim], and keys and values
with fewer heads. Returns what each query gathers, [B, T, heads, head_dim]."""


class TreeAttention:
    """Each token attends to its ancestors in a tree whose tokens are in depth-first order: token k is an
    ancestor of the tokens from k to ``subtree_end[k]``, [B, T]."""

    def __init__(self, subtree_end: Tensor, keep: bool = False) -> None:
        self.subtree_end = subtree_end
        self.kept: list[tuple[Tensor, Tensor]] | None = [] if keep else None
        """Keys and values [B, T, kv_heads, head_dim] of each layer, for a cache."""
        self.blocks: list[tuple[Tensor | slice, Tensor]] = []
        """For each block of queries: the columns it attends to, and its mask. Built in the first layer
        and reused by the others."""

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        if self.kept is not None:
            self.kept.append((k, v))
        if not self.blocks:
            self._build_blocks(q, k)
        # Copies: views would keep the queries' memory, too, for the backward pass.
        k = k.transpose(1, 2).contiguous()  # [B, kv_heads, T, head_dim]
        v = v.transpose(1, 2).contiguous()
        mixed = []
        for queries, (columns, mask) in zip(q.split(BLOCK, 1), self.blocks, strict=True):
            keys = k[:, :, columns]
            values = v[:, :, columns]
            mixed.append(attention(queries, keys, values, mask))
        return torch.cat(mixed, 1)

    def _build_blocks(self, q: Tensor, k: Tensor) -> None:
        queries_per_key = q.shape[2] // k.shape[2]
        for start in range(0, q.shape[1], BLOCK):
            visible = ancestors(self.subtree_end, slice(start, start + BLOCK))  # [B, 1, n, T]
            columns = visible_columns(visible)
            mask = q.new_zeros(1).where(visible[..., columns], float("-inf"))  # [B, 1, n, S]
            mask = mask.repeat_interleave(queries_per_key, 2)
            self.blocks.append((columns, mask))


def ancestors(subtree_end: Tensor, queries: slice = slice(None)) -> Tensor:
    """Return a bool mask [B, 1, n, T]: which tokens each of n ``queries`` attends to, itself included."""
    key = torch.arange(subtree_end.shape[1], device=subtree_end.device)  # [T]
    query = key[queries, None]  # [n, 1]
    is_ancestor = (key <= query) & (query <= subtree_end[:, None])  # [B, n, T]
    return is_ancestor[:, None]


def visible_columns(visible: Tensor) -> Tensor | slice:
    """Return the columns of ``visible`` [B, 1, n, T] in which anything is True. If they are the first
    ones, as in a plain text, this is a slice, which costs no copy."""
    is_needed = visible.any(2).any(0)[0]
    columns = is_needed.nonzero()[:, 0]
    is_beginning = columns[-1] < len(columns)
    return slice(len(columns)) if is_beginning else columns


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
) -> Tensor:
    """Return attention [B, T, heads, head_dim] of q, of the same shape, over k and v
    [B, kv_heads, S, head_dim].

    Heads that share keys become further queries, so that no key is copied for them. ``mask`` is additive
    and repeats each row heads / kv_heads times: [B, 1, T · heads / kv_heads, S].
    """
    grouped = q.unflatten(2, (k.shape[1], -1))  # [B, T, kv_heads, heads / kv_heads, head_dim]
    grouped = grouped.transpose(1, 2).contiguous()
    mixed = F.scaled_dot_product_attention(grouped.flatten(2, 3), k, v, attn_mask=mask)
    return mixed.view(grouped.shape).transpose(1, 2).flatten(2, 3)


class States(NamedTuple):
    """What the layers compute, [B, T, hidden_size]."""

    last_hidden_state: Tensor


class Logits(NamedTuple):
    """What the whole model computes, [B, T, V]."""

    logits: Tensor


def linear(x: Tensor, layer: Any) -> Tensor:
    """Return ``layer(x)``, without the cost of calling a module."""
    if isinstance(layer, AdaptedLinear):
        return layer.forward(x)
    return product_of(x, layer.weight, layer.bias)


class Attention(nn.Module):
    """Query heads that share keys and values in groups."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        size = config.hidden_size
        self.head_dim = config.head_dim
        heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads
        is_qwen2 = config.model_type == "qwen2"
        biased = is_qwen2 or config.attention_bias
        self.q_proj = nn.Linear(size, heads * self.head_dim, biased)
        self.k_proj = nn.Linear(size, kv_heads * self.head_dim, biased)
        self.v_proj = nn.Linear(size, kv_heads * self.head_dim, biased)
        self.o_proj = nn.Linear(heads * self.head_dim, size, biased and not is_qwen2)
        self.normed = config.model_type == "qwen3"
        if self.normed:
            self.q_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Attend,
        layer: int,
    ) -> Tensor:
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = linear(x, self.q_proj).view(heads)  # [B, T, heads, head_dim]
        k = linear(x, self.k_proj).view(heads)  # [B, T, kv_heads, head_dim]
        v = linear(x, self.v_proj).view(heads)
        if self.normed:
            q = self.q_norm(q)
            k = self.k_norm(k)
        # One rotation for both: fewer operations on small tensors.
        both = rotate(torch.cat((q, k), -2), cos, sin)
        q, k = both.split((q.shape[-2], k.shape[-2]), -2)
        mixed = attend(layer, q, k, v)
        return linear(mixed.flatten(-2), self.o_proj)


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Return x [B, T, heads, head_dim] with its halves (x₁, x₂) turned: (x₁ cos − x₂ sin, x₂ cos + x₁ sin).
    The first half of ``sin`` is negated, so that rolling x by a half does both."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin)


class FeedForward(nn.Module):
    """A gated layer (Shazeer 2020)."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        size = config.hidden_size
        inner = config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, config.mlp_bias)
        self.up_proj = nn.Linear(size, inner, config.mlp_bias)
        self.down_proj = nn.Linear(inner, size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(linear(x, self.gate_proj))  # [B, T, intermediate_size]
        return linear(gate * linear(x, self.up_proj), self.down_proj)


class Layer(nn.Module):
    """Attention, then the gated layer, each added to what it read."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Attend,
        layer: int,
    ) -> Tensor:
        # The parts are not called as modules: that would cost a small model much of its time.
        normed = self.input_layernorm.forward(x)
        x = x + self.self_attn.forward(normed, cos, sin, attend, layer)
        normed = self.post_attention_layernorm.forward(x)
        return x + self.mlp.forward(normed)


def frequencies(config: SimpleNamespace) -> Tensor:
    """Return the angle [head_dim / 2] by which each pair turns from one position to the next (RoPE,
    Su et al. 2021; "llama3": long waves are stretched, Llama 3.1's ``config.json``)."""
    rope = config.rope_parameters
    pairs = torch.arange(
        0,
        config.head_dim,
        2,
        dtype=torch.float,
        device="cpu",
    )
    angles = 1.0 / rope["rope_theta"] ** (pairs / config.head_dim)
    if rope["rope_type"] == "linear":
        return angles / rope["factor"]
    if rope["rope_type"] == "llama3":
        low = rope["low_freq_factor"]
        high = rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * angles / (2 * math.pi)
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return angles * (share + (1 - share) / rope["factor"])
    return angles


class Backbone(nn.Module):
    """All but the output layer."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        # Skip nn.Embedding's initialisation: the file overwrites it, and it costs half a second of imports.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.inv_freq = nn.Buffer(frequencies(config), persistent=False)
        self.tied = config.tie_word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        attend: Attend | None = None,
    ) -> States:
        """Run ``input_ids`` [B, T] at ``positions`` [B, T]. By default these are whole texts, padded on
        the right, where no token sees the padding. With a fitting ``attend`` both may be [N], a token of
        each row."""
        if positions is None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        cos, sin = self._rotation(positions)
        x = embed(self.embed_tokens.weight, input_ids, self.tied)
        attend = attend or TreeAttention(torch.full_like(input_ids, input_ids.shape[-1] - 1))
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, attend, index)
        return States(self.norm(x))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [B, T, 1, head_dim], half of the sines negated."""
        angles = positions[..., None, None] * self.inv_freq.to(positions.device)
        cos = torch.cat((angles, angles), -1).cos()
        sin = torch.cat((-angles, angles), -1).sin()
        dtype = self.embed_tokens.weight.dtype
        return cos.to(dtype), sin.to(dtype)


def embed(
    table: Tensor,
    ids: Tensor,
    tied: bool = False,
) -> Tensor:
    """Return the rows [B, T, H] of ``table`` for ``ids``. The gradients of a token that occurs several
    times add up in float32. They are sparse if ``tied``: the output layer's gradient takes them up."""
    if table.dtype == torch.float32 or not table.requires_grad or not torch.is_grad_enabled():
        return F.embedding(ids, table, sparse=tied)
    distinct, which = ids.unique(return_inverse=True)
    return F.embedding(distinct, table, sparse=tied).float()[which].to(table.dtype)


class Model(nn.Module):
    """The model of a folder's ``config.json`` and ``generation_config.json``, without weights."""

    _no_split_modules = (Layer.__name__,)

    def __init__(self, config: SimpleNamespace, generation_config: SimpleNamespace) -> None:
        super().__init__()
        self.config = SimpleNamespace(**filled(vars(config)))
        self.generation_config = generation_config
        self.model = Backbone(self.config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output layer's weights those of the embeddings, if the settings say so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        attend: Attend | None = None,
    ) -> Logits:
        """Return the logits after each token. The arguments are those of ``Backbone``."""
        states = self.model(input_ids, positions, attend).last_hidden_state
        return Logits(linear(states, self.lm_head))

    @property
    def base_model(self) -> Backbone:
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

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer."""
        return self.lm_head

    def num_parameters(self) -> int:
        """Return the number of weights. A shared one counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """Write a model folder with the weights ``state_dict``. transformers reads it, too."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config", "generation_config"):
            settings = vars(getattr(self, name))
            text = json.dumps(settings, indent=2, sort_keys=True)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        weights = {name: value.contiguous() for name, value in state_dict.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def is_of_the_family(config: dict[str, Any]) -> bool:
    """Return whether ``Model`` computes what ``config`` says: layers of full attention, with shapes and
    rotations that it knows."""
    unknown = ("use_sliding_window", "quantization_config", "per_layer_config")
    kinds_of_layers = {*(config.get("layer_types") or ())}
    rope = rope_of(config)
    of_rotation = rope.keys() - {"rope_type", "rope_theta"}
    return (
        config.get("model_type") in FAMILY
        and config.get("hidden_act", "silu") == "silu"
        and kinds_of_layers <= {"full_attention"}
        and not any(map(config.get, unknown))
        and of_rotation == ROTATIONS.get(rope["rope_type"])
    )
