"""Decode through a model's own ``forward``: the way for any architecture, and the one that
``LeanDecoder`` is compared with. Transformers takes seconds to load, and only this needs it."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from zorplex_rl.policy.kv_cache import DecodeStep, SlotCache, fills
from zorplex_rl.policy.qwen2 import Qwen2


class OwnForward:
    """Decodes through the model's own ``forward``. Works for every architecture."""

    tokens_at_once: int | None = 1

    def __init__(self, model: PreTrainedModel | Qwen2) -> None:
        self._model = model
        self._slots: SlotsAsCache | None = None

    def __call__(self, step: DecodeStep, cache: SlotCache) -> torch.Tensor:
        """Return the logits [B, V] after every row's last token. Writes to ``cache``."""
        if self._slots is None or self._slots.slots is not cache:
            self._slots = SlotsAsCache(cache)
        ids, positions = step.ids[:, None], step.positions[:, None]
        output = self._model(
            input_ids=ids, attention_mask=step.mask, position_ids=positions, **fills(self._model, self._slots)
        )
        return output.logits[:, -1]


class SlotsAsCache(Cache):
    """Transformers' view of ``slots``."""

    def __init__(self, slots: SlotCache) -> None:
        super().__init__(layers=[_SlotLayer(slots, layer) for layer in range(len(slots.kv))])
        self.slots = slots


class _SlotLayer(CacheLayerMixin):
    """One layer of a ``SlotCache``. Writes each row's new key and value at its own position."""

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
