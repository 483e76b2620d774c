"""A key-value cache with a fixed number of slots, one for each row of a decode batch.

    kv   [layers, 2, slots, kv_heads, length, head_dim]      keys and values of every layer in one tensor

Active rows always use the first slots. So a decode step works on *views* of the first slots, as wide as the longest row: nothing is
concatenated, gathered or copied between steps. Rows have different lengths; an additive mask hides what is beyond each row's end. A row can be
taken out (while it waits for a tool), put back, or moved to close a gap.

A step feeds one token to most rows, and a whole tool result to the few rows that have just received one. A ``DecodeStep`` lists every row's
first token, so that these can attend together in place, and then the other tokens of the results.

A ``Snapshot`` is one row's part of the cache, [layers, 2, kv_heads, length, head_dim]: that of a parked row, or of the prefilled prompt that
all samples of a group start from.
"""

import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

Snapshot = torch.Tensor


@dataclass(frozen=True, slots=True)
class ResultTokens:
    """The tokens of a step after every row's first one: n rows of up to Q tokens, padded to Q.

    ``rows`` [n] are slots, ``index`` [n, Q] is the position of each token in the step, ``mask`` [n, 1, Q, width] is causal, and ``real`` holds the
    positions in the flattened [n · Q] that are not padding.
    """

    rows: torch.Tensor
    index: torch.Tensor
    mask: torch.Tensor
    real: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """The input of one decode step for B rows: ``ids``, ``rows`` and ``positions`` [N], first one token of each row, then ``results``.

    ``mask`` [B, 1, 1, width] is the additive attention mask of the first B tokens. ``last`` [B] is the index of each row's last token.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    last: torch.Tensor
    results: ResultTokens | None = None


class SlotCache(Cache):
    """The cache of up to ``slots`` rows of up to ``length`` tokens for ``model``."""

    def __init__(self, model: PreTrainedModel, slots: int, length: int) -> None:
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, slots, heads, length, head_dim)
        self.kv = _zeros(shape, model.dtype, model.device)
        self._mask = torch.full((slots, length), float("-inf"), dtype=model.dtype, device=model.device)
        super().__init__(layers=[_SlotLayer(self, *layer.unbind(0)) for layer in self.kv])
        self.rows = torch.arange(slots, device=model.device)
        self.positions = self.rows
        self.width = 0

    @property
    def length(self) -> int:
        """Number of tokens that a row can hold."""
        return self.kv.shape[-2]

    def put(self, slot: int, snapshot: Snapshot) -> None:
        """Copy ``snapshot`` into ``slot``."""
        length = snapshot.shape[-2]
        self.kv[:, :, slot, :, :length] = snapshot
        self._mask[slot, :length] = 0
        self._mask[slot, length:] = float("-inf")

    def take(self, slot: int, length: int) -> Snapshot:
        """Return a copy of the first ``length`` tokens of ``slot``."""
        return self.kv[:, :, slot, :, :length].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the row in slot ``source`` over the one in slot ``target``."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]
        self._mask[target] = self._mask[source]

    def begin_step(self, lengths: Sequence[int], tokens: Sequence[Sequence[int]]) -> DecodeStep:
        """Prepare to feed ``tokens``, at least one for each row, to the first rows, which hold ``lengths`` tokens. Returns the step."""
        batch, device = len(lengths), self.kv.device
        fed, places, owners, ends = [row[0] for row in tokens], list(lengths), list(range(batch)), list(range(batch))
        spans: list[range] = []
        for slot, (length, (_, *more)) in enumerate(zip(lengths, tokens, strict=True)):
            if more:
                spans.append(range(len(fed), len(fed) + len(more)))
                fed += more
                places += range(length + 1, length + 1 + len(more))
                owners += [slot] * len(more)
                ends[slot] = len(fed) - 1
        self.width = max(places) + 1
        ids, rows, positions, last = (torch.tensor(x, device=device) for x in (fed, owners, places, ends))
        self.rows, self.positions = rows[:batch], positions[:batch]
        self._mask[self.rows, self.positions] = 0
        mask = self._mask[:batch, None, None, : self.width]
        if not spans:
            return DecodeStep(ids, rows, positions, mask, last)
        mask = mask.clone()
        self._mask[rows[batch:], positions[batch:]] = 0
        longest = max(map(len, spans))
        index = torch.tensor([[*span] + [span[-1]] * (longest - len(span)) for span in spans], device=device)
        real = [row * longest + column for row, span in enumerate(spans) for column in range(len(span))]
        hidden = torch.arange(self.width, device=device) > positions[index][..., None]
        causal = torch.zeros(hidden.shape, dtype=mask.dtype, device=device).masked_fill_(hidden, float("-inf"))
        results = ResultTokens(rows[index[:, 0]], index, causal[:, None], torch.tensor(real, device=device))
        return DecodeStep(ids, rows, positions, mask, last, results)


class _SlotLayer(CacheLayerMixin):
    """One layer's views into a ``SlotCache``. Writes each row's new key and value at that row's own position."""

    def __init__(self, slots: SlotCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        # Weak: in a ring of references the keys and values of a cache that nobody needs would stay until Python's collector comes by.
        self._slots, self.keys, self.values, self.is_initialized = weakref.proxy(slots), keys, values, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object):
        slots = self._slots
        self.keys[slots.rows, :, slots.positions] = key_states[:, :, 0]
        self.values[slots.rows, :, slots.positions] = value_states[:, :, 0]
        batch = len(slots.positions)
        return self.keys[:batch, :, : slots.width], self.values[:batch, :, : slots.width]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: all memory was allocated at once."""

    def get_seq_length(self) -> int:
        return self._slots.width - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.width, 0

    def get_max_length(self) -> int:
        return self.keys.shape[-2]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; in Linux's main memory in large pages, because a decode step reads the whole cache and page look-ups would slow it."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    with suppress(OSError):  # Without large pages in the kernel, the same memory is only slower.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
