"""The weight ring: the writer never waits for readers, and readers never use half a version.

    headers  int64 [K, 2]      (sequence, version) of each slot; the sequence is odd while the slot is being written
    slots    uint8 [K, size]   one whole version of the weights in each
    changes                    if asked for: more slots, with headers after these, for what has changed (``delta.py``)

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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights.delta import CHANGES, HEAD, apply, capacity, encode, read_head, word_of
from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import ALIGNMENT, Layout, Weights, on_cuda

NOTHING_PUBLISHED = -1
READ_TIMEOUT = 5.0
"""Seconds that a reader waits for a ring without a complete slot."""


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
        """Return the headers of all slots, int64 [K, 2]."""

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        """Fill ``staging``, uint8, with the first bytes of ``slot``."""


class WeightRing:
    """The writer's side: K host buffers for the weights of ``model``, pinned if the model is on
    CUDA.

    ``layout`` says where each tensor is in a buffer. ``memory``, uint8 of at least ``ring_bytes``
    bytes, holds headers and slots if it is given (shared memory, for example). ``full_every`` is
    how often a version can only be read whole; above 1, ``CHANGES`` more slots hold what has
    changed from one version to the next. Raises ValueError for fewer than 2 slots.
    """

    def __init__(
        self,
        model: Weights,
        slots: int = 2,
        layout: Layout | None = None,
        memory: Tensor | None = None,
        full_every: int = 1,
    ) -> None:
        if slots < 2:
            raise ValueError(f"a ring of {slots} slot(s) would be overwritten while it is read; use 2 or more")
        self.layout = layout or Layout.of(model)
        self.whole, self.changes, self._full_every = slots, CHANGES if full_every > 1 else 0, full_every
        if memory is None:
            size = ring_bytes(self.layout, slots, self.changes)
            memory = torch.zeros(size, dtype=torch.uint8, pin_memory=on_cuda(model))
        self.headers, self.slots = ring_views(memory, self.layout, slots, self.changes)
        self.headers.copy_(torch.tensor([[0, NOTHING_PUBLISHED]] * len(self.slots)))
        self._begun = 0
        self._word = word_of(self.layout)

    def publish(self, model: Weights, version: int) -> None:
        """Publish ``model``'s weights as ``version``. Does not disturb readers of other slots.

        If this raises, readers continue with the versions that were published before, and the next
        call works as if this one had not happened.
        """
        before = newest_slot(self.headers[: self.whole]) if self.changes else None
        slot = self._next_slot(range(self.whole))
        with self._writing(slot, version):
            self.layout.pack(model, self.slots[slot])
            # Before this version can be seen: who sees it finds the change that leads to it.
            if before and before.version == version - 1 and version % self._full_every:
                self._publish_change(self.slots[before.slot], self.slots[slot], version)

    def _publish_change(self, before: Tensor, after: Tensor, version: int) -> None:
        slot = self._next_slot(range(self.whole, len(self.slots)))
        with self._writing(slot, version) as header:
            if encode(before, after, version - 1, self._word, self.slots[slot]) is None:
                header[1] = NOTHING_PUBLISHED

    @contextmanager
    def _writing(self, slot: int, version: int) -> Iterator[list[int]]:
        """Let the block write ``slot``, which is complete at its end. Gives the header to be."""
        # Not computed from the slot's own sequence: after a failure that is odd, and one more would
        # mark a half-written slot as complete.
        being_written, whole = 2 * self._begun + 1, 2 * self._begun + 2
        self._begun += 1
        self.headers[slot, 0] = being_written
        fence()
        yield (header := [whole, version])
        self.headers[slot, 1] = header[1]
        fence()
        self.headers[slot, 0] = header[0]

    def _next_slot(self, among: Sequence[int]) -> int:
        """Return the slot that a failed publication left unreadable, else the oldest one."""
        sequences = self.headers[:, 0].tolist()
        return min(among, key=lambda slot: (sequences[slot] % 2 == 0, sequences[slot]))


def ring_bytes(layout: Layout, slots: int, changes: int = 0) -> int:
    """Return the bytes of memory that a ring takes."""
    sizes = slots * _aligned(layout.size) + changes * _aligned(capacity(layout))
    return _aligned(16 * (slots + changes)) + sizes


def ring_views(memory: Tensor, layout: Layout, slots: int, changes: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Return views of a ring that starts at the start of ``memory`` (uint8): its headers, int64 [K,
    2], and its slots, uint8 [size] each; those for changes come last."""
    number = slots + changes
    headers = memory[: 16 * number].view(torch.int64).view(number, 2)
    views, start = [], _aligned(16 * number)
    for size in [layout.size] * slots + [capacity(layout)] * changes:
        views.append(memory[start : start + size])
        start += _aligned(size)
    return headers, views


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


async def follow_changes(
    read_headers: Callable[[], Awaitable[Tensor]],
    read_slot: Callable[[int, Tensor], Awaitable[None]],
    whole: int,
    scratch: Tensor,
    staging: Tensor,
    staged: int,
) -> tuple[int, int]:
    """Bring ``staging``, which holds version ``staged``, to the newest version by its changes.

    The first ``whole`` slots hold whole versions. ``read_slot`` fills a buffer with the first bytes
    of a slot, and ``scratch``, uint8, has room for a change. Returns the version that ``staging``
    holds now, and the newest one: if they differ, that has to be read whole. Raises ChangeMismatch,
    after which ``staging`` is worthless, and what the two functions raise.
    """
    headers = await read_headers()
    newest = newest_slot(headers[:whole])
    changes = {header.version: header for header in complete_slots(headers) if header.slot >= whole}
    while newest and staged < newest.version and (header := changes.get(staged + 1)):
        fence()
        await read_slot(header.slot, scratch[:HEAD])
        before, size = read_head(scratch[:HEAD])
        # What a torn head says is not believed, only not read beyond the slot.
        await read_slot(header.slot, scratch[: min(max(size, HEAD), len(scratch))])
        fence()
        unchanged = (await read_headers())[header.slot].tolist() == [header.sequence, header.version]
        if not unchanged or before != staged:
            break
        await asyncio.to_thread(apply, scratch[:size], staging)
        staged = header.version
    return staged, newest.version if newest else staged


def nothing_whole(headers: Tensor, seconds: float) -> str:
    """Return one sentence that says why there was nothing to read in ``headers`` [K, 2] for
    ``seconds``."""
    if headers[:, 0].any():
        return (
            f"no slot of the weight ring was whole for {seconds:g} s: the first publication is still under way or has failed; "
            "look at the trainer, and publish again"
        )
    return f"no weights have been published yet, after a wait of {seconds:g} s; have the trainer publish before the first pull"
