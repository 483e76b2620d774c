"""What a token attends to: its ancestors in a tree (existing texts), or its row's cache slot (texts
being generated).

**A tree**, for prompts and for training. Texts that begin alike share their first tokens:

    LOOKUP[ ─┬─ blip ] ─┬─ ␣-> 17 ⏎ [ANSWER] 17        ids          packed into one row, in this order
             │          └─ ␣-> 17 ⏎ So 17              positions    depth: how many tokens come before
             └─ mip ] ──── ␣-> 4 ⏎ [ANSWER] 4          subtree_end  the last token that has this one before it

Each distinct beginning runs once, and its gradients add up. Tokens attend in blocks of neighbours.

**Slots**, for sampling. The cache has a slot for each row, which several samples may share:

    kv   [layers, 2, slots, kv_heads, length, head_dim]      keys and values of every layer

Active rows use the first slots, so a step works on *views* as wide as the longest row: nothing is
copied between steps. A mask hides what a slot holds behind the end of its row. A step feeds one token
to most rows, and a tool's whole result to the few that have just received one:

    slot 0   17                     The first tokens of all rows attend together, in place. The other
    slot 1   ]   ␣-> ␣ 4 2 ⏎        tokens attend to a copy of their rows: results of equal length
    slot 2   ]   ␣-> ␣ 1 7 ⏎        together.

Models of other families run through their own, slower ``forward``: one prompt, or one token of each
row, at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zorplex_rl.policy.model import (
    Model,
    TreeAttention,
    ancestors,
    attention,
    linear,
)
from zorplex_rl.policy.tokenizer import shared_length

# Transformers takes seconds to load: it is imported only where one of its models is already loaded.
if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache, CacheLayerMixin

TOGETHER = 8192
"""Maximum number of distinct tokens of prompts that run at once."""
Snapshot = Tensor
"""A copy of one row's part of the cache, [layers, 2, kv_heads, length, head_dim]."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Texts as N tokens: each distinct beginning once."""

    ids: Tensor
    """The tokens [N], in depth-first order."""
    positions: Tensor
    """How many tokens come before each one in its text [N]."""
    subtree_end: Tensor
    """The last token that attends to each one [N] (``model.TreeAttention``)."""
    token_index: list[Tensor]
    """For each text, the places [T] of its tokens in ``ids``."""


def build_tree(texts: Sequence[list[int]], device: torch.device | str = "cpu") -> TokenTree:
    """Return the tree of sorted ``texts``.

    >>> tree = build_tree([[7, 1, 4], [7, 1, 5], [7, 2]])
    >>> tree.ids.tolist(), tree.subtree_end.tolist(), [index.tolist() for index in tree.token_index]
    ([7, 1, 4, 5, 2], [4, 3, 2, 3, 4], [[0, 1, 2], [0, 1, 3], [0, 4]])
    """
    ids: list[int] = []
    positions: list[int] = []
    subtree_end: list[int] = []
    token_index = []
    path: list[int] = []
    previous: list[int] = []
    for text in texts:
        shared = shared_length((previous, text))
        end = len(ids) + len(text) - shared
        path = [*path[:shared], *range(len(ids), end)]
        ids += text[shared:]
        positions += range(shared, len(text))
        subtree_end += path[shared:]
        for token in path:
            subtree_end[token] = path[-1]
        token_index.append(torch.tensor(path, device=device))
        previous = text
    tokens, depths, ends = torch.tensor([ids, positions, subtree_end], device=device)
    return TokenTree(tokens, depths, ends, token_index)


def split_by_budget(texts: Sequence[list[int]], most: int) -> list[list[int]]:
    """Split ``texts`` into trees. Returns the indices of each tree's texts, in sorted order. A tree of
    several texts has at most ``most`` distinct tokens.

    >>> split_by_budget([[7, 1, 4], [7, 2], [7, 1, 5], [8, 1]], most=5)
    [[0, 2, 1], [3]]
    """
    trees: list[list[int]] = []
    size = most
    before: list[int] = []
    for index in sorted(range(len(texts)), key=lambda i: texts[i]):
        text = texts[index]
        size += len(text) - shared_length((before, text))
        if size > most:
            trees.append([])
            size = len(text)
        trees[-1].append(index)
        before = text
    return trees


def states_of(model: PreTrainedModel | Model, tree: TokenTree) -> Tensor:
    """Return the last hidden states [N, hidden_size] of the tokens of ``tree``."""
    ids = tree.ids[None]
    positions = tree.positions[None]
    subtree_end = tree.subtree_end[None]
    if isinstance(model, Model):
        return model.base_model(ids, positions, TreeAttention(subtree_end)).last_hidden_state[0]
    mask = ancestors(subtree_end)
    states = model.base_model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
    )
    return states.last_hidden_state[0]


def project(model: PreTrainedModel | Model, states: Tensor) -> Tensor:
    """Return the logits [..., V] of hidden states [..., hidden_size], in float32, as ``forward``
    computes them."""
    config = model.config
    logits = linear(states, model.get_output_embeddings()).float()
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


def borders(model: PreTrainedModel | Model) -> tuple[int, int]:
    """Return after how many tokens ``model`` attends only to a window, and after how many it rotates
    keys in another way, but not those in a cache (Phi-3's long rope). 0 is never."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    window = getattr(model.config, "sliding_window", None) or 0
    if rope.get("rope_type") == "longrope":
        return window, rope["original_max_position_embeddings"]
    return window, 0


def prefill(
    model: PreTrainedModel | Model, prompts: Sequence[list[int]]
) -> list[tuple[Snapshot, Tensor]]:
    """Run ``prompts``. Returns each one's snapshot, and its next token's logits [V]."""
    if not isinstance(model, Model):
        return [_prefill_by_forward(model, prompt) for prompt in prompts]
    results: dict[int, tuple[Snapshot, Tensor]] = {}
    for chosen in split_by_budget(prompts, TOGETHER):
        texts = [prompts[i] for i in chosen]
        tree = build_tree(texts, model.device)
        ids = tree.ids[None]
        positions = tree.positions[None]
        attend = TreeAttention(tree.subtree_end[None], keep=True)
        (states,) = model.base_model(ids, positions, attend).last_hidden_state
        for prompt, tokens in zip(chosen, tree.token_index, strict=True):
            layers = []
            for keys, values in attend.kept or ():
                layers.append(torch.stack((keys[0, tokens], values[0, tokens])))
            snapshot = torch.stack(layers).transpose(2, 3)
            logits = project(model, states[tokens[-1]])
            results[prompt] = (snapshot, logits)
    return [results[prompt] for prompt in range(len(prompts))]


class Fed(NamedTuple):
    """A token that a step feeds to the model."""

    slot: int
    """The row whose next token it is."""
    token: int
    position: int
    """How many tokens come before it in its row."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step for B rows. It feeds N tokens: first each row's first one, then the results of
    tools, those of equal length together."""

    ids: Tensor
    """The tokens [N]."""
    positions: Tensor
    """Their positions in their rows [N]."""
    cells: Tensor
    """Where their keys go in one layer of the cache [N · kv_heads]: slot after slot, head after head."""
    last: Tensor
    """The index of each row's last token [B]."""
    mask: Tensor
    """The additive mask of the rows' first tokens [B, 1, 1, width]."""
    results: list[tuple[slice, Tensor, Tensor]]
    """For each length Q of results: their tokens, row after row; their rows [n]; and their mask
    [n, 1, Q · heads / kv_heads, width]."""


class SlotCache:
    """The cache of up to ``slots`` rows of up to ``length`` tokens for ``model``."""

    def __init__(
        self,
        model: PreTrainedModel | Model,
        slots: int,
        length: int = 0,
    ) -> None:
        config = model.config
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._queries_per_key = heads // kv_heads
        shape = (config.num_hidden_layers, 2, slots, kv_heads, 0, head_dim)
        self.kv = torch.empty(shape, dtype=model.dtype, device=model.device)
        self.rows: Tensor
        """The slots of this step's rows [B]."""
        self.positions: Tensor
        """The positions of their first new tokens [B]."""
        self.width: int
        """The length of the longest row, with what this step adds."""
        self.reserve(length)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in each row. Copies all rows if there is less."""
        missing = length - self.kv.shape[-2]
        if missing > 0:
            self.kv = F.pad(self.kv, (0, 0, 0, missing))

    def put(self, slot: int, snapshot: Snapshot) -> None:
        """Copy ``snapshot`` into ``slot``."""
        self.kv[:, :, slot, :, : snapshot.shape[-2]] = snapshot

    def take(self, slot: int, length: int) -> Snapshot:
        """Return a copy of the first ``length`` tokens of ``slot``."""
        return self.kv[:, :, slot, :, :length].clone()

    def move(
        self,
        source: int,
        target: int,
        length: int,
    ) -> None:
        """Copy the first ``length`` tokens of slot ``source`` to slot ``target``."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def begin_step(self, lengths: Sequence[int], tokens: Sequence[Sequence[int]]) -> DecodeStep:
        """Prepare to feed ``tokens`` to the first rows, at least one to each. The rows have ``lengths``."""
        batch = len(lengths)
        fed = [Fed(slot, row[0], lengths[slot]) for slot, row in enumerate(tokens)]
        last = list(range(batch))
        results: list[tuple[slice, int]] = []
        for length in sorted({len(row) for row in tokens} - {1}):
            start = len(fed)
            for slot, row in enumerate(tokens):
                if len(row) != length:
                    continue
                for position, token in enumerate(row[1:], lengths[slot] + 1):
                    fed.append(Fed(slot, token, position))
                last[slot] = len(fed) - 1
            results.append((slice(start, len(fed)), length - 1))
        rows, ids, positions = torch.tensor(fed, device=self.kv.device).T.contiguous()
        self.rows = rows[:batch]
        self.positions = positions[:batch]
        self.width = max(each.position for each in fed) + 1
        mask = self._mask(positions)
        return DecodeStep(
            ids=ids,
            positions=positions,
            cells=self._cells(rows, positions),
            last=torch.tensor(last, device=rows.device) if results else rows,
            mask=mask[:batch, None, None],
            results=[self._result(part, length, rows, mask) for part, length in results],
        )

    def _mask(self, positions: Tensor) -> Tensor:
        """Return the additive mask [N, width] that hides what lies behind ``positions`` [N]."""
        is_hidden = torch.arange(self.width, device=positions.device) > positions[:, None]
        mask = torch.zeros(is_hidden.shape, dtype=self.kv.dtype, device=positions.device)
        return mask.masked_fill_(is_hidden, float("-inf"))

    def _cells(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the cells [N · kv_heads] of one layer's keys for tokens of ``rows`` at ``positions`` [N]."""
        heads, length = self.kv.shape[3:5]
        head = torch.arange(heads, device=rows.device)
        head_of_row = rows[:, None] * heads + head  # [N, kv_heads]
        return (head_of_row * length + positions[:, None]).flatten()

    def _result(
        self,
        part: slice,
        length: int,
        rows: Tensor,
        mask: Tensor,
    ) -> tuple[slice, Tensor, Tensor]:
        """Return ``part``, results of ``length`` tokens, with its rows and mask; see ``DecodeStep``."""
        queries = length * self._queries_per_key
        of_heads = mask[part, None].expand(-1, self._queries_per_key, -1)
        return part, rows[part][::length], of_heads.reshape(-1, 1, queries, self.width)


class Decoder:
    """Runs ``model`` on a step's tokens."""

    def __init__(self, model: PreTrainedModel | Model) -> None:
        self._model = model
        self.at_once = None if isinstance(model, Model) else 1
        """How many tokens of a row it takes in a step; None: all."""
        self._slots: SlotCache | None = None

    def __call__(self, step: DecodeStep, cache: SlotCache) -> Tensor:
        """Return the logits [B, V] after every row's last token. Writes to ``cache``."""
        if not isinstance(self._model, Model):
            return self._by_forward(self._model, step, cache)

        def attend(
            layer: int,
            q: Tensor,
            k: Tensor,
            v: Tensor,
        ) -> Tensor:
            kv = cache.kv[layer]
            keys, values = kv.flatten(1, 3)
            keys.index_copy_(0, step.cells, k.flatten(0, 1))
            values.index_copy_(0, step.cells, v.flatten(0, 1))
            return attend_to_slots(q, kv, step)

        states = self._model.base_model(step.ids, step.positions, attend).last_hidden_state
        if step.results:
            states = states[step.last]
        return project(self._model, states)

    def _by_forward(
        self,
        model: PreTrainedModel,
        step: DecodeStep,
        cache: SlotCache,
    ) -> Tensor:
        if self._slots is not cache:
            from transformers.cache_utils import Cache

            layers = [_slot_layer()(cache, layer) for layer in range(len(cache.kv))]
            self._slots = cache
            self._view = Cache(layers=layers)
        logits = model(
            input_ids=step.ids[:, None],
            attention_mask=step.mask,
            position_ids=step.positions[:, None],
            **_cache_arguments(model, self._view),
        ).logits
        return logits[:, -1]


def attend_to_slots(
    q: Tensor,
    kv: Tensor,
    step: DecodeStep,
) -> Tensor:
    """Return attention [N, heads, dim] of q, of the same shape, over kv [2, slots, kv_heads, length, dim]."""
    batch, _, _, width = step.mask.shape
    keys, values = kv[:, :batch, :, :width]
    # The first token of each row. As in ``attention``, the heads that share keys are queries.
    first = q[:batch]
    queries = first.view(batch, keys.shape[1], -1, q.shape[-1])
    gathered = F.scaled_dot_product_attention(queries, keys, values, attn_mask=step.mask)
    mixed = [gathered.view(first.shape)]
    if not step.results:
        return mixed[0]
    for part, rows, mask in step.results:
        results = q[part].unflatten(0, (len(rows), -1))  # [n, Q, heads, dim]
        mixed.append(attention(results, keys[rows], values[rows], mask).flatten(0, 1))
    return torch.cat(mixed)


def _cache_arguments(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """Return the arguments that make ``model`` use ``cache``. transformers 5.24 has renamed one."""
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    return {name: cache, "use_cache": True}


def _prefill_by_forward(model: PreTrainedModel, prompt: Sequence[int]) -> tuple[Snapshot, Tensor]:
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.tensor([[*prompt]], device=model.device)
    logits = model(input_ids=ids, **_cache_arguments(model, cache)).logits
    layers = []
    for layer in cache.layers:
        both = torch.stack((layer.keys[0], layer.values[0]))
        layers.append(both)
    return torch.stack(layers), logits[0, -1].float()


@cache
def _slot_layer() -> type[CacheLayerMixin]:
    """Return the class of a layer of transformers' cache that is a view of the slots: each row's new key
    and value go to its position. It is made once: a class object is part of a reference cycle, and
    would keep ``slots`` alive until the next garbage collection."""
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
            active = slice(len(slots.rows))
            columns = slice(slots.width)
            return keys[active, :, columns], values[active, :, columns]

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            """Do nothing: all memory was allocated at once."""

        def get_seq_length(self) -> int:
            return self._slots.width - 1

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self._slots.width, 0

        def get_max_length(self) -> int:
            return self._slots.kv.shape[-2]

    return SlotLayer
