"""The weight ring: the writer never waits for readers, and readers never use half a version.

    headers  int64 [K, 2]      (sequence, version) of each slot; the sequence is odd while the slot is being written
    slots    uint8 [K, size]   one whole version of the weights in each

    writer   sequence ← 2n + 1 → fence → copy, version → fence → sequence ← 2n + 2     n publications began before this one
    reader   headers → the newest even slot → fence → bulk read → fence → headers again: unchanged, or start over

This is a seqlock (Lameter 2005). A lock cannot stop a one-sided read, so the header does not
prevent a torn read but *reveals* it: if the slot's sequence is even and the same before and after
the bulk read, no write began in between. That holds in whatever order the bytes of the bulk read
arrive. With K ≥ 2 slots, a reader starts over only if the writer comes all the way round to its
slot. There is one writer.

The writer uses the slot whose publication failed, if there is one, else the oldest. A failed
publication leaves its sequence odd, so nobody reads that slot. The next publication starts there
again with a sequence that no reader has seen.

What the seqlock assumes of memory (H.-J. Boehm, "Can seqlocks get along with programming language
memory models?", MSPC 2012, doi:10.1145/2247684.2247688): the odd sequence is visible before any
byte of the copy, every byte of the copy and the version before the even sequence, and the reader's
three reads are done in their order.

    shared memory     x86 keeps stores in order and loads in order. ARM keeps neither. ``fence`` orders both sides on both.
    one-sided reads   The reader requests each of its three reads after the answer to the one before, so they are in order anywhere. The
                      writer needs its fences as above. Over TCP a thread of the writer's process reads. Over ibverbs the network card reads,
                      by DMA, which an x86 processor keeps coherent and in order. On ARM the fence orders the processors; a card outside
                      their (inner) shareable domain would need more, which no program outside the kernel can request portably.
    message, tcp      As shared memory: another thread of the writer's process copies.

All of this was run on x86 only. A test simulates a processor that reorders stores, and checks that
these fences are enough and each is needed.

>>> ring = WeightRing(torch.nn.Linear(2, 1), slots=2)
>>> ring.publish(torch.nn.Linear(2, 1), version=7)
>>> newest_slot(ring.headers)
Header(slot=0, sequence=2, version=7)
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import ALIGNMENT, Layout, Weights, on_cuda

NOTHING_PUBLISHED = -1
READ_TIMEOUT = 5.0
"""Seconds that a reader waits for a ring without a complete slot."""


class WeightPullError(RuntimeError):
    """A pull has failed. The weights in use are unchanged."""


class NothingPublished(WeightPullError):
    """There is no complete version to read: none has been published, or every slot is still being
    written."""


@dataclass(frozen=True, slots=True)
class Header:
    """A slot's header as it was read."""

    slot: int
    sequence: int
    version: int


class Reader(Protocol):
    """Reads a ring, of any process. Both methods raise WeightPullError if it cannot be reached."""

    layout: Layout

    async def read_headers(self) -> Tensor:
        """Return the headers, int64 [K, 2]."""

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        """Copy ``slot`` into ``staging``, uint8 [layout.size]."""


class WeightRing:
    """The writer's side: K host buffers for the weights of ``model``, pinned if the model is on
    CUDA.

    ``layout`` says where each tensor is in a buffer. ``memory``, uint8 of at least ``ring_bytes``
    bytes, holds headers and slots if it is given (shared memory, for example). Raises ValueError
    for fewer than 2 slots.
    """

    def __init__(
        self, model: Weights, slots: int = 2, layout: Layout | None = None, memory: Tensor | None = None
    ) -> None:
        if slots < 2:
            raise ValueError(f"a ring of {slots} slot(s) would be overwritten while it is read; use 2 or more")
        self.layout = layout or Layout.of(model)
        if memory is None:
            memory = torch.zeros(ring_bytes(self.layout, slots), dtype=torch.uint8, pin_memory=on_cuda(model))
        self.headers, self.slots = ring_views(memory, self.layout, slots)
        self.headers.copy_(torch.tensor([[0, NOTHING_PUBLISHED]] * slots))
        self._begun = 0

    def publish(self, model: Weights, version: int) -> None:
        """Publish ``model``'s weights as ``version``. Does not disturb readers of other slots.

        If this raises, readers continue with the versions that were published before, and the next
        call works as if this one had not happened.
        """
        slot = self._next_slot()
        # Not computed from the slot's own sequence: after a failure that is odd, and one more would
        # mark a half-written slot as complete.
        being_written, whole = 2 * self._begun + 1, 2 * self._begun + 2
        self._begun += 1
        self.headers[slot, 0] = being_written
        fence()
        self.layout.pack(model, self.slots[slot])
        self.headers[slot, 1] = version
        fence()
        self.headers[slot, 0] = whole

    def _next_slot(self) -> int:
        """Return the slot that a failed publication left unreadable, else the oldest one."""
        sequences = self.headers[:, 0].tolist()
        return min(range(len(sequences)), key=lambda slot: (sequences[slot] % 2 == 0, sequences[slot]))


def ring_bytes(layout: Layout, slots: int) -> int:
    """Return the bytes of memory that a ring takes."""
    return _aligned(16 * slots) + slots * _aligned(layout.size)


def ring_views(memory: Tensor, layout: Layout, slots: int) -> tuple[Tensor, list[Tensor]]:
    """Return views of a ring that starts at the start of ``memory`` (uint8): its headers, int64 [K,
    2], and its slots, uint8 [size] each."""
    headers = memory[: 16 * slots].view(torch.int64).view(slots, 2)
    starts = (_aligned(16 * slots) + slot * _aligned(layout.size) for slot in range(slots))
    return headers, [memory[start : start + layout.size] for start in starts]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def complete_slots(headers: Tensor) -> list[Header]:
    """Return the slots of ``headers`` [K, 2] that hold a complete version: neither empty nor being
    written."""
    return [
        Header(slot, sequence, version)
        for slot, (sequence, version) in enumerate(headers.tolist())
        if sequence % 2 == 0 and version != NOTHING_PUBLISHED
    ]


def newest_slot(headers: Tensor) -> Header | None:
    """Return the slot with the newest complete version in ``headers`` [K, 2], or None if all are
    empty or being written."""
    return max(complete_slots(headers), key=lambda header: (header.version, header.sequence), default=None)


class Backoff:
    """Exponential back-off between two polls: pauses of 1 ms, doubled up to 0.25 s, for ``seconds``
    in all."""

    def __init__(self, seconds: float) -> None:
        self._pause, self._left = 0.001, seconds

    async def wait(self) -> bool:
        """Sleep for the next pause. Returns False, without sleeping, when the time is up."""
        pause = min(self._pause, self._left)
        self._pause, self._left = min(2 * self._pause, 0.25), self._left - pause
        await asyncio.sleep(pause)
        return pause > 0


async def read_ring(
    read_headers: Callable[[], Awaitable[Tensor]],
    read_slot: Callable[[int], Awaitable[None]],
    newer_than: int = NOTHING_PUBLISHED,
    attempts: int = 100,
    timeout: float = READ_TIMEOUT,
) -> int:
    """Pull the newest version through any transport: ``read_slot`` fills a staging buffer with it.
    Returns that version.

    Returns ``newer_than`` without a bulk read if there is nothing newer. Raises WeightPullError
    after ``attempts`` torn reads, and NothingPublished if there is no complete slot for ``timeout``
    seconds.
    """
    waiting = Backoff(timeout)
    torn = 0
    while torn < attempts:
        headers = await read_headers()
        header = newest_slot(headers)
        if header is None:
            if not await waiting.wait():
                raise NothingPublished(nothing_whole(headers, timeout))
            continue
        if header.version <= newer_than:
            return newer_than
        fence()
        await read_slot(header.slot)
        fence()
        sequence, version = (await read_headers())[header.slot].tolist()
        if (sequence, version) == (header.sequence, header.version):
            return header.version
        torn += 1
    raise WeightPullError(
        f"no whole version of the weights could be read in {attempts} attempts; the writer laps the reader: use more slots"
    )


def nothing_whole(headers: Tensor, seconds: float) -> str:
    """Return one sentence that says why there was nothing to read in ``headers`` [K, 2] for
    ``seconds``."""
    if headers[:, 0].any():
        return (
            f"no slot of the weight ring was whole for {seconds:g} s: the first publication is still under way or has failed; "
            "look at the trainer, and publish again"
        )
    return f"no weights have been published yet, after a wait of {seconds:g} s; have the trainer publish before the first pull"
