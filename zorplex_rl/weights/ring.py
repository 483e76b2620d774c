"""The weight ring: a writer that never waits for readers, and readers that never see half a version.

    headers  int64 [K, 2]      (sequence, version) of each slot; the sequence is odd while the slot is being written
    slots    uint8 [K, size]   one whole version of the weights in each

    writer   sequence + 1 (odd) → copy → version, sequence + 1 (even)          always into the oldest slot
    reader   headers → the newest even slot → bulk read → headers again: unchanged, or start over

This is a seqlock (Lameter 2005). A one-sided read cannot be locked out, so instead of preventing a torn read the header *reveals* it: if
the slot's sequence is even and the same before and after the bulk read, no write began in between. That holds in whatever order the bytes
of the bulk read arrive. With K ≥ 2 slots the writer has to lap a reader before the reader must start over.

>>> ring = WeightRing(torch.nn.Linear(2, 1), slots=2)
>>> ring.publish(torch.nn.Linear(2, 1), version=7)
>>> newest_slot(ring.headers)
Header(slot=0, sequence=2, version=7)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.weights.layout import ALIGNMENT, Layout, Weights

NOTHING_PUBLISHED = -1


class WeightPullError(RuntimeError):
    """A pull that could not be completed; the weights in use are untouched."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a slot said about itself when its header was read."""

    slot: int
    sequence: int
    version: int


class WeightRing:
    """The writer's side: K host buffers for the weights of ``model``, pinned where there is CUDA; ``layout`` says where they stand.

    ``memory``, uint8 of at least ``ring_bytes``, is where headers and slots are put if it is given; shared memory, for example.
    """

    def __init__(
        self, model: Weights, slots: int = 2, layout: Layout | None = None, memory: Tensor | None = None
    ) -> None:
        if slots < 2:
            raise ValueError(f"a ring of {slots} slot(s) would be overwritten while it is read; use 2 or more")
        self.layout = layout or Layout.of(model)
        if memory is None:
            memory = torch.zeros(
                ring_bytes(self.layout, slots), dtype=torch.uint8, pin_memory=torch.cuda.is_available()
            )
        self.headers, self.slots = ring_views(memory, self.layout, slots)
        self.headers.copy_(torch.tensor([[0, NOTHING_PUBLISHED]] * slots))
        self._published = 0

    def publish(self, model: Weights, version: int) -> None:
        """Make ``model``'s weights the newest ones, as ``version``. Readers of other slots are not disturbed."""
        slot = self._published % len(self.slots)
        self.headers[slot, 0] += 1
        self.layout.pack(model, self.slots[slot])
        self.headers[slot, 1] = version
        self.headers[slot, 0] += 1
        self._published += 1


def ring_bytes(layout: Layout, slots: int) -> int:
    """How much memory a ring takes."""
    return _aligned(16 * slots) + slots * _aligned(layout.size)


def ring_views(memory: Tensor, layout: Layout, slots: int) -> tuple[Tensor, list[Tensor]]:
    """The headers, int64 [K, 2], and the slots, uint8 [size] each, of a ring that begins where ``memory``, uint8, does."""
    headers = memory[: 16 * slots].view(torch.int64).view(slots, 2)
    starts = (_aligned(16 * slots) + slot * _aligned(layout.size) for slot in range(slots))
    return headers, [memory[start : start + layout.size] for start in starts]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def complete_slots(headers: Tensor) -> list[Header]:
    """The slots of ``headers`` [K, 2] that hold a whole version: neither empty nor being written."""
    return [
        Header(slot, sequence, version)
        for slot, (sequence, version) in enumerate(headers.tolist())
        if sequence % 2 == 0 and version != NOTHING_PUBLISHED
    ]


def newest_slot(headers: Tensor) -> Header | None:
    """The slot with the newest complete version in ``headers`` [K, 2], or None if all are empty or being written."""
    return max(complete_slots(headers), key=lambda header: (header.version, header.sequence), default=None)


async def read_ring(
    read_headers: Callable[[], Awaitable[Tensor]],
    read_slot: Callable[[int], Awaitable[None]],
    newer_than: int = NOTHING_PUBLISHED,
    attempts: int = 100,
) -> int:
    """The reader's side, whatever carries the bytes: have ``read_slot`` fill the staging buffer with one whole version, and return which.

    Returns ``newer_than`` without a bulk read if there is nothing newer. Raises WeightPullError after ``attempts`` torn reads.
    """
    for _ in range(attempts):
        header = newest_slot(await read_headers())
        if header is None:
            continue
        if header.version <= newer_than:
            return newer_than
        await read_slot(header.slot)
        sequence, version = (await read_headers())[header.slot].tolist()
        if (sequence, version) == (header.sequence, header.version):
            return header.version
    raise WeightPullError(
        f"no whole version of the weights could be read in {attempts} attempts; the writer laps the reader: use more slots"
    )
