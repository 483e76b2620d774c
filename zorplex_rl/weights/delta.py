"""Publish what has changed: in bfloat16 most weights are the same after a step as before.

    before   1.0  2.0  3.0  4.0          what a reader has, version 6
    after    1.0  2.5  3.0  4.0          version 7
    change   head │ indices [1]    │ values [2.5]       4 bytes for each index
             head │ mask 0100 0000 │ values [2.5]       1 bit for each weight: smaller if more than 1 in 32 has changed

A weight w changes in bfloat16 only if the step is large against the gap between w and its
neighbour, about w/128. Adam's step is about the learning rate, so the lower the rate, the fewer
weights change (``expected_share``).

The ring (``ring.py``) holds, beside K whole versions, the changes from each of the last versions to
the next, in slots of their own under the same seqlock. A change is complete before the whole
version is. So a reader that has version v, and sees that n is the newest, either finds all the
changes v+1 … n, or reads n whole. It does that, too, where a change is missing (it was too large,
overwritten, or of a version that is always read whole) or does not lead to the checksum in its
head. The values are the new bits, not differences: after the last change the buffer holds exactly
what the publisher packed.

>>> before, after = torch.zeros(128, dtype=torch.uint8), torch.zeros(128, dtype=torch.uint8)
>>> after[5] = 9
>>> change = torch.zeros(128, dtype=torch.uint8)
>>> size = encode(before, after, 6, 1, change)
>>> apply(change[:size], before), torch.equal(before, after)
(6, True)
"""

import numpy as np
import torch
from torch import Tensor

from zorplex_rl.weights.layout import Layout

HEAD = 64
"""Bytes of a change's head: 8 numbers of 64 bits (version before, kind, number of changed words,
bytes of a word, size in bytes, two checksums of the result, unused)."""
CHANGES = 4
"""Slots for changes: so many versions may a reader be behind."""
BLOCK = 8
_INDICES, _MASK = 0, 1
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_WORDS = 2**31


class ChangeMismatch(ValueError):
    """A change does not fit to the buffer that it was applied to, which is now worthless."""


def capacity(layout: Layout) -> int:
    """Return the bytes of a slot for a change: a quarter of the weights. What is larger is read
    whole."""
    return HEAD + layout.size // 4


def word_of(layout: Layout) -> int:
    """Return the bytes of the smallest number in ``layout``: what is compared and sent."""
    return min((entry.dtype.itemsize for entry in layout.entries), default=1)


def encode(before: Tensor, after: Tensor, version_before: int, word: int, out: Tensor) -> int | None:
    """Write the change from ``before`` to ``after``, both uint8 [size], to ``out``, uint8.

    ``word`` is the bytes of a number. Returns the bytes written, or None if they are more than
    ``out`` holds.
    """
    old, new = (buffer.view(_WORDS[word]).numpy() for buffer in (before, after))
    changed = old != new
    positions = np.flatnonzero(changed)
    count = len(positions)
    by_index, by_mask = _aligned(4 * count), _aligned(-(-len(new) // 8))
    kind = _INDICES if by_index <= by_mask and len(new) < _MOST_WORDS else _MASK
    where = by_index if kind == _INDICES else by_mask
    size = HEAD + where + count * word
    if size > len(out):
        return None
    head = [version_before, kind, count, word, size, *checksum(after), 0]
    out[:HEAD].view(torch.int64).copy_(torch.tensor(head))
    if kind == _INDICES:
        out[HEAD : HEAD + 4 * count].view(torch.int32).numpy()[:] = positions
    else:
        out[HEAD : HEAD + -(-len(new) // 8)].numpy()[:] = np.packbits(changed)
    out[HEAD + where : size].view(_WORDS[word]).numpy()[:] = new[positions]
    return size


def read_head(head: Tensor) -> tuple[int, int]:
    """Return what ``head``, uint8 [HEAD], says of its change: the version that it starts from, and
    its size in bytes."""
    before, _, _, _, size, *_ = head.view(torch.int64).tolist()
    return before, size


def apply(change: Tensor, buffer: Tensor) -> int:
    """Apply ``change``, uint8, to ``buffer``, uint8 [size], in place. Returns the version that it
    starts from.

    Raises ChangeMismatch if the result is not what was published.
    """
    before, kind, count, word, size, *sums, _ = change[:HEAD].view(torch.int64).tolist()
    target = buffer.view(_WORDS[word])
    where = _aligned(4 * count if kind == _INDICES else -(-len(target) // 8))
    values = change[HEAD + where : size].view(_WORDS[word])
    if kind == _INDICES:
        target.numpy()[change[HEAD : HEAD + 4 * count].view(torch.int32).numpy()] = values.numpy()
    else:
        bits = np.unpackbits(change[HEAD : HEAD + -(-len(target) // 8)].numpy(), count=len(target))
        target.numpy()[bits.view(bool)] = values.numpy()
    if checksum(buffer) != tuple(sums):
        raise ChangeMismatch(f"the change from version {before} does not lead to the weights that were published")
    return before


def checksum(buffer: Tensor) -> tuple[int, int]:
    """Return two sums over ``buffer``, uint8, a multiple of 64 bytes: of its 64-bit words, and of
    the same weighted by position, both modulo 2⁶⁴ (as in Fletcher's checksum, 1982)."""
    blocks = buffer.view(torch.int64).view(-1, BLOCK)
    # A word's position is that of its block and that within it, so two passes give the second sum.
    of_blocks, of_places = blocks.sum(1), blocks.sum(0)
    weighted = BLOCK * (of_blocks * torch.arange(len(of_blocks))).sum() + (of_places * torch.arange(1, BLOCK + 1)).sum()
    return int(of_places.sum()), int(weighted)


def expected_share(weights: Tensor, step: Tensor, dtype: torch.dtype = torch.bfloat16) -> float:
    """Return the share of ``weights`` that ``step``, of the same shape, is expected to change once
    they are rounded to ``dtype``.

    A weight's rounded value changes if the step takes it over a border between two neighbours,
    which are a gap apart. Where in its gap a weight is, is taken for uniform, so the chance is
    step / gap, and at most 1.

    >>> expected_share(torch.ones(8), torch.full((8,), 2**-10))
    0.125
    """
    bits = -round(np.log2(torch.finfo(dtype).eps))
    gaps = torch.exp2(weights.abs().double().log2().floor() - bits).clamp(min=torch.finfo(dtype).tiny)
    return (step.abs().double() / gaps).clamp(max=1).mean().item()


def expected_bytes(share: float, words: int, word: int) -> float:
    """Return the bytes of a change of ``share`` of ``words`` numbers of ``word`` bytes each."""
    return HEAD + min(4 * share * words, words / 8) + share * words * word


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
