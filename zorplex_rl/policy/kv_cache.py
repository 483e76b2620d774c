"""Caches of keys and values: one that grows, for prompts, and one with a fixed number of slots, one
for each row of a decode batch.

    kv   [layers, 2, slots, kv_heads, length, head_dim]      keys and values of every layer

Active rows always use the first slots, so a decode step works on *views* of the first slots, as
wide as the longest row: nothing is concatenated, gathered or copied between steps. A row can be
taken out, put back, or moved to close a gap. What a slot holds behind its row's end is never seen:
every token attends to the positions up to its own, and its own has been written by then.

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

from zorplex_rl.policy.model import Qwen2

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
