"""The weight ring: the writer never waits for readers, and no reader uses a half-written version.

    slots    uint8 [K, size]   one whole version of the weights in each
    headers  int64 [K, 2]      (sequence, version) of each slot; the sequence is odd while the slot is being written

    writer   sequence ← 2n - 1 → fence → copy, version → fence → sequence ← 2n     this is publication n
    reader   headers → the newest even slot → fence → bulk read → fence → headers again: unchanged, or start over

This is a seqlock (Lameter 2005). A lock cannot stop a one-sided read. So the header does not prevent
a torn read but *reveals* it: if the slot's sequence is even, and the same before and after the bulk
read, no write began in between. It does not matter in which order the bytes arrive. With K ≥ 2 slots,
a reader starts over only if the writer comes all the way round to its slot. There is one writer. A
publication that fails leaves its sequence odd: its slot is not read, and the next publication uses it.

The seqlock assumes an order of memory accesses (H.-J. Boehm, "Can seqlocks get along with programming
language memory models?", MSPC 2012, doi:10.1145/2247684.2247688): the odd sequence is visible before
any byte of the copy, the copy and the version before the even sequence, and the reader's three reads
happen in their order. x86 keeps stores in order and loads in order, ARM keeps neither; ``fence``
orders both on both. A one-sided read is requested after the answer to the one before. Over TCP, as
in a reply to a message, a thread of the writer's process reads. Over ibverbs the network card reads
by DMA, which x86 keeps coherent and in order; on ARM, a card outside the processors' (inner)
shareable domain would need more than this fence. All of this was run on x86 only. A test simulates a
processor that reorders, and checks that these fences suffice and that each is needed.

>>> ring = WeightRing(torch.nn.Linear(2, 1))
>>> ring.publish(torch.nn.Linear(2, 1), version=7)
>>> newest_common([ring.headers])
[Header(slot=0, sequence=2, version=7)]
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.layout import Layout, Weights, gpu_of
from zorplex_rl.weights.shared_memory import SharedHandle, allocate

NOTHING_PUBLISHED = -1
SLOTS = 2
"""One to write, and one to read."""
READ_TIMEOUT = 5.0
"""Seconds that a reader waits for a complete version."""
ALIGNMENT = 64
"""Slots start at multiples of this."""
HEADER_BYTES = 16


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a slot."""

    slot: int
    sequence: int
    version: int


class Reader(Protocol):
    """Reads a ring of any process. Both methods raise WeightPullError if it cannot be reached."""

    transport: str
    layout: Layout

    async def read_headers(self) -> Tensor:
        """Return the headers of all slots, int64 [K, 2]."""

    async def read_slot(self, slot: int, staging: Tensor) -> None:
        """Copy ``slot`` to ``staging``, uint8 [size]."""


class WeightRing:
    """The writer's side: buffers in main memory for K versions of ``weights``. Other processes of this host
    read them by the handle ``shared``; for weights on a GPU they are pinned instead."""

    def __init__(self, weights: Weights, slots: int = SLOTS) -> None:
        self.layout = Layout.of(weights)
        self.shared: SharedHandle | None
        size = slots * (_stride(self.layout) + HEADER_BYTES)
        on_gpu = gpu_of(weights) is not None
        memory, self.shared = (None, None) if on_gpu else allocate(size)
        if memory is None:
            memory = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        self.headers, self.slots = ring_views(memory, self.layout, slots)
        self.headers[:, 1] = NOTHING_PUBLISHED
        self._begun = 0

    def publish(self, weights: Weights, version: int) -> None:
        """Publish ``weights`` as ``version``. Does not disturb readers of other slots. If this raises, readers
        go on with the versions that were published before."""
        slot = self._next_slot()
        # Not computed from the slot's sequence: that is odd after a failure, and one more would mark a
        # half-written slot as complete.
        self._begun += 1
        self.headers[slot, 0] = 2 * self._begun - 1
        fence()
        self.layout.pack(weights, self.slots[slot])
        self.headers[slot, 1] = version
        fence()
        self.headers[slot, 0] = 2 * self._begun

    def _next_slot(self) -> int:
        """Return the slot that a failed publication left unreadable, else the oldest one."""
        sequences = self.headers[:, 0].tolist()
        oldest = min(sequences, key=lambda sequence: (sequence % 2 == 0, sequence))
        return int(sequences.index(oldest))


def ring_views(
    memory: Tensor,
    layout: Layout,
    slots: int,
) -> tuple[Tensor, list[Tensor]]:
    """Return views of the ring in ``memory`` (uint8): its headers, int64 [K, 2], and its slots, uint8 [size]
    each."""
    stride = _stride(layout)
    views = []
    for slot in range(slots):
        start = slot * stride
        views.append(memory[start : start + layout.size])
    headers = memory[slots * stride :][: slots * HEADER_BYTES]
    return headers.view(torch.int64).view(slots, 2), views


def _stride(layout: Layout) -> int:
    return -(-layout.size // ALIGNMENT) * ALIGNMENT


def complete_slots(headers: Tensor) -> list[Header]:
    """Return the slots of ``headers`` [K, 2] that hold a complete version, in the order of publication."""
    complete = []
    for slot, (sequence, version) in enumerate(headers.tolist()):
        if sequence % 2 == 0 and version != NOTHING_PUBLISHED:
            complete.append(Header(slot, sequence, version))
    return sorted(complete, key=lambda header: header.sequence)


def newest_common(headers: Sequence[Tensor]) -> list[Header] | None:
    """Return each ring's slot with the newest version that all rings have complete, or None.

    >>> ahead = torch.tensor([[4, 7], [2, 6]])          # 7 is complete, 6 still there
    >>> behind = torch.tensor([[3, 5], [2, 6]])         # 7 is being written over 5
    >>> newest_common([ahead, behind])
    [Header(slot=1, sequence=2, version=6), Header(slot=1, sequence=2, version=6)]
    """
    rings = [{header.version: header for header in complete_slots(ring)} for ring in headers]
    common = set.intersection(*map(set, rings))
    return [ring[max(common)] for ring in rings] if common else None


async def read_rings(
    readers: Sequence[Reader],
    staging: Sequence[Tensor],
    newer_than: int = NOTHING_PUBLISHED,
    attempts: int = 100,
    timeout: float = READ_TIMEOUT,
) -> int:
    """Copy the newest version that all rings have to ``staging``, a buffer for each of ``readers``.
    Returns that version; if it is not newer than ``newer_than``, copies nothing and returns that.

    Raises WeightPullError after ``attempts`` torn reads, or ``timeout`` seconds without a version
    that all rings have.
    """
    pause = 0.001
    deadline = time.monotonic() + timeout
    torn = 0
    while torn < attempts:
        chosen = newest_common(await _together(reader.read_headers() for reader in readers))
        if chosen is None:
            if time.monotonic() >= deadline:
                raise WeightPullError(
                    f"no version of the weights was complete for {timeout:g} s: "
                    "none was published, or a publication has failed"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.25)
            continue
        version = chosen[0].version
        if version <= newer_than:
            return newer_than
        fence()
        reads = zip(readers, chosen, staging, strict=True)
        await _together(reader.read_slot(header.slot, buffer) for reader, header, buffer in reads)
        fence()
        rings = await _together(reader.read_headers() for reader in readers)
        unchanged = [
            header in complete_slots(ring) for header, ring in zip(chosen, rings, strict=True)
        ]
        if all(unchanged):
            return version
        torn += 1
    raise WeightPullError(
        f"{attempts} reads of the weights were torn, since the writer laps the reader; use more slots"
    )


async def _together(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Wait for all ``awaitables``, then return their results or raise the first error.

    It waits for all even after an error: a read that still runs would write into a buffer later.
    """
    waiting = list(awaitables)
    if len(waiting) == 1:
        return [await waiting[0]]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
