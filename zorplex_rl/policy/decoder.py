"""What a token attends to: its ancestors in a tree of texts that are there, or its row's slot of a
cache, for texts that are being written.

**A tree**, for prompts and for training. Texts that begin alike share these tokens:

    LOOKUP[ ─┬─ blip ] ─┬─ ␣-> 17 ⏎ [ANSWER] 17        ids        packed into one row, in this order
             │          └─ ␣-> 17 ⏎ So 17              positions  depth: how many tokens come before
             └─ mip ] ──── ␣-> 4 ⏎ [ANSWER] 4          ends       where the texts end that have this beginning

Each distinct beginning runs once, and its gradients add up. Tokens attend in blocks of neighbours.

**Slots**, for sampling. The cache has one for each row that is written, alone or by samples together:

    kv   [layers, 2, slots, kv_heads, length, head_dim]      keys and values of every layer

Active rows use the first slots, so a step works on *views*, as wide as the longest row: nothing is
copied between steps. What a slot holds behind its row's end is never seen. A step feeds one token to
most rows, and a tool's whole result to the few that have just got one:

    slot 0   17                     The first tokens of all rows attend together, in place. Other
    slot 1   ]   ␣-> ␣ 4 2 ⏎        tokens attend to a copy of their rows, results of equal length
    slot 2   ]   ␣-> ␣ 1 7 ⏎        together.

Models of other families run through their own ``forward``, more slowly, a prompt or a token at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zorplex_rl.policy.model import Masked, Model, ancestors, attention, linear

# Transformers takes seconds to load: it is imported where one of its models is already there.
if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache, CacheLayerMixin

TOGETHER = 8192
"""Most distinct tokens of prompts that run at once."""
Snapshot = Tensor
"""One row's part of the cache, [layers, 2, kv_heads, length, head_dim], outside of it."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Texts as N tokens, each distinct beginning once. ``ids`` and ``positions`` [N]; ``ends`` [N]: the
    last token that sees this one (``model.Masked``). ``places[i]`` [T]: where text i's tokens are."""

    ids: Tensor
    positions: Tensor
    ends: Tensor
    places: list[Tensor]


def plant(texts: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> TokenTree:
    """Return the tree of ``texts``, which are sorted."""
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    places = []
    path: list[int] = []
    before: Sequence[int] = ()
    for text in texts:
        shared = common_length(before, text)
        path = [*path[:shared], *range(len(ids), len(ids) + len(text) - shared)]
        ids += text[shared:]
        depths += range(shared, len(text))
        ends += path[shared:]
        for place in path:
            ends[place] = path[-1]
        places.append(torch.tensor(path, device=device))
        before = text
    tokens, positions, last = torch.tensor([ids, depths, ends], device=device)
    return TokenTree(tokens, positions, last, places)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two texts share."""
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def divide(texts: Sequence[list[int]], most: int) -> list[list[int]]:
    """Divide ``texts`` into trees. Returns the indices of each one's texts, sorted; it has at most
    ``most`` distinct tokens if it has more than one text.

    >>> divide([[7, 1, 4], [7, 2], [7, 1, 5], [8, 1]], most=5)
    [[0, 2, 1], [3]]
    """
    trees: list[list[int]] = []
    size = most
    before: Sequence[int] = ()
    for index in sorted(range(len(texts)), key=lambda i: texts[i]):
        text = texts[index]
        size += len(text) - common_length(before, text)
        if size > most:
            trees.append([])
            size = len(text)
        trees[-1].append(index)
        before = text
    return trees


def states_of(model: PreTrainedModel | Model, tree: TokenTree) -> Tensor:
    """Return the last hidden states [N, hidden_size] of the tokens of ``tree``."""
    ids, positions, ends = tree.ids[None], tree.positions[None], tree.ends[None]
    if isinstance(model, Model):
        return model.base_model(ids, positions, Masked(ends)).last_hidden_state[0]
    places = {"attention_mask": ancestors(ends), "position_ids": positions}
    return model.base_model(input_ids=ids, **places, use_cache=False).last_hidden_state[0]


def project(model: PreTrainedModel | Model, states: Tensor) -> Tensor:
    """Return the logits [..., V] of hidden states [..., hidden_size], in float32, as ``forward``
    computes them."""
    layer, config = model.get_output_embeddings(), model.config
    logits = linear(states, layer).float()
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


def borders(model: PreTrainedModel | Model) -> tuple[int, int]:
    """Return after how many tokens ``model`` attends to a window only, and after how many it turns all
    keys otherwise, those of the cache not (Phi-3's long rope). 0: it does not."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    is_long = rope.get("rope_type") == "longrope"
    turn = rope["original_max_position_embeddings"] if is_long else 0
    return getattr(model.config, "sliding_window", None) or 0, turn


def prefill(model: PreTrainedModel | Model, prompts: Sequence[list[int]]) -> list[tuple[Snapshot, Tensor]]:
    """Run ``prompts``. Returns for each its snapshot and the next token's logits [V]."""
    if not isinstance(model, Model):
        return [_prefill_by_forward(model, prompt) for prompt in prompts]
    found: dict[int, tuple[Snapshot, Tensor]] = {}
    for chosen in divide(prompts, TOGETHER):
        tree = plant([prompts[i] for i in chosen], model.device)
        attend = Masked(tree.ends[None], keep=True)
        (states,) = model.base_model(tree.ids[None], tree.positions[None], attend).last_hidden_state
        for index, place in zip(chosen, tree.places, strict=True):
            kv = torch.stack([torch.stack((k[0, place], v[0, place])) for k, v in attend.kept or ()])
            found[index] = kv.transpose(2, 3), project(model, states[place[-1]])
    return [found[i] for i in range(len(prompts))]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step for B rows: N tokens ``ids``, their ``positions``, and the ``cells``
    [N · kv_heads] of their keys in one layer of the cache, slot after slot, head after head.

    The first token of each row comes first; ``mask`` [B, 1, 1, width] is their additive mask.
    ``results`` has the others, those of equal length Q together: which tokens of the step they are,
    row after row, their rows [n], and mask [n, 1, Q · heads / kv_heads, width]. ``last`` is each row's last token.
    """

    ids: Tensor
    positions: Tensor
    cells: Tensor
    last: Tensor
    mask: Tensor
    results: list[tuple[slice, Tensor, Tensor]]


class SlotCache:
    """The cache of up to ``slots`` rows of up to ``length`` tokens for ``model``."""

    def __init__(self, model: PreTrainedModel | Model, slots: int, length: int = 0) -> None:
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers, self._shared = config.num_hidden_layers, config.num_attention_heads // heads
        self.kv = torch.empty(layers, 2, slots, heads, 0, head_dim, dtype=model.dtype, device=model.device)
        self.rows = self.positions = torch.arange(slots, device=model.device)
        self.width = 0
        self.reserve(length)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in each row. All rows are copied if there was less."""
        if length > self.kv.shape[-2]:
            old, shape = self.kv, (*self.kv.shape[:-2], length, self.kv.shape[-1])
            self.kv = torch.zeros(shape, dtype=old.dtype, device=old.device)
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
        shared = mask[:, None].expand(-1, self._shared, -1)
        results = [
            (part, rows[part][::n], shared[part].reshape(-1, 1, n * self._shared, self.width)) for part, n in parts
        ]
        ends = torch.tensor(last, device=device) if results else rows
        _, _, _, heads, length, _ = self.kv.shape
        cells = (rows[:, None] * heads + torch.arange(heads, device=device)) * length + positions[:, None]
        return DecodeStep(fed, positions, cells.flatten(), ends, mask[:batch, None, None], results)


class Decoder:
    """Runs ``model`` on a step's tokens. ``at_once`` is how many it takes of a row; None is all."""

    def __init__(self, model: PreTrainedModel | Model) -> None:
        self._model = model
        self.at_once = None if isinstance(model, Model) else 1
        self._slots: SlotCache | None = None

    def __call__(self, step: DecodeStep, cache: SlotCache) -> Tensor:
        """Return the logits [B, V] after every row's last token. Writes to ``cache``."""
        if isinstance(self._model, Model):

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                kv = cache.kv[layer]
                for cells, new in zip(kv.flatten(1, 3), (k, v), strict=True):
                    cells.index_copy_(0, step.cells, new.flatten(0, 1))
                return _attend(q, kv, step)

            states = self._model.base_model(step.ids, step.positions, attend).last_hidden_state
            return project(self._model, states[step.last] if step.results else states)
        if self._slots is not cache:
            from transformers.cache_utils import Cache

            layers = [_slot_layer()(cache, layer) for layer in range(len(cache.kv))]
            self._slots, self._view = cache, Cache(layers=layers)
        ids, positions = step.ids[:, None], step.positions[:, None]
        places = {"attention_mask": step.mask, "position_ids": positions} | _fills(self._model, self._view)
        return self._model(input_ids=ids, **places).logits[:, -1]


def _attend(q: Tensor, kv: Tensor, step: DecodeStep) -> Tensor:
    """Return [N, heads, dim] for q [N, heads, dim] over kv [2, slots, kv_heads, length, dim]."""
    batch, width = len(step.mask), step.mask.shape[-1]
    keys, values = kv[:, :batch, :, :width].unbind(0)
    # As ``attention`` does, for one query of each row.
    own = q[:batch].view(batch, keys.shape[1], -1, q.shape[-1])
    mixed = [F.scaled_dot_product_attention(own, keys, values, attn_mask=step.mask).view(q[:batch].shape)]
    for part, rows, mask in step.results:
        results = q[part].unflatten(0, (len(rows), -1))
        mixed.append(attention(results, keys[rows], values[rows], mask).flatten(0, 1))
    return torch.cat(mixed) if step.results else mixed[0]


def _fills(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """Return the arguments that make ``model`` use ``cache``; transformers 5.24 has renamed one."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {name: cache, "use_cache": True}


def _prefill_by_forward(model: PreTrainedModel, prompt: Sequence[int]) -> tuple[Snapshot, Tensor]:
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=model.config)
    found = model(input_ids=torch.tensor([[*prompt]], device=model.device), **_fills(model, cache))
    kv = torch.stack([torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers])
    return kv, found.logits[0, -1].float()


@cache
def _slot_layer() -> type[CacheLayerMixin]:
    """Return the class of a layer of transformers' view of the slots: each row's new key and value go
    to its own position. It is made once: its base is transformers', and a class is in a cycle, which
    would keep ``slots`` until Python's collector came by."""
    from transformers.cache_utils import CacheLayerMixin

    class SlotLayer(CacheLayerMixin):
        def __init__(self, slots: SlotCache, layer: int) -> None:
            super().__init__()
            self._slots = slots
            self._layer = layer
            self.is_initialized = True

        def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object):
            slots = self._slots
            keys, values = slots.kv[self._layer]
            keys[slots.rows, :, slots.positions] = key_states[:, :, 0]
            values[slots.rows, :, slots.positions] = value_states[:, :, 0]
            batch = len(slots.positions)
            return keys[:batch, :, : slots.width], values[:batch, :, : slots.width]

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            """Do nothing: all memory was allocated at once."""

        def get_seq_length(self) -> int:
            return self._slots.width - 1

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self._slots.width, 0

        def get_max_length(self) -> int:
            return self._slots.kv.shape[-2]

    return SlotLayer
