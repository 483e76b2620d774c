"""A writer laps a reader: the weight ring in slow motion, with and without its seqlock.

    writer   version 0, 1, 2 … into slot 0, 1, 2 … of the ring, one chunk a tick, then a pause (the trainer trains)
    reader   the newest complete slot into a staging buffer, one chunk in several ticks, again and again

Time is counted in ticks. It is the protocol of ``weights/ring.py``: a slot's sequence is odd while it is written; the reader looks at the headers,
copies, and looks again. With ``seqlock`` a copy is used only if its slot has not changed meanwhile; without, whatever has arrived is used.

>>> careful, careless = (race(slots=2, ticks_per_chunk=3, pause=0, seqlock=seqlock) for seqlock in (True, False))
>>> careless.torn_used > 0, careful.torn_used, careful.torn_found > 0
(True, 0, True)
>>> race(slots=4, ticks_per_chunk=3, pause=0, seqlock=True).torn_found  # with more slots it takes longer to lap the reader
0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CHUNKS = 8
"""Chunks in one version of the weights."""
EMPTY = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """One tick. Chunks are given by the version that they belong to; ``EMPTY`` where nothing has been written yet."""

    slots: tuple[tuple[int, ...], ...]
    sequences: tuple[int, ...]
    writing: tuple[int, int] | None
    """Slot and chunk that the writer has just written, unless it pauses."""
    reading: tuple[int, int] | None
    """Slot and chunk that the reader is at."""
    staging: tuple[int, ...]
    event: str
    """What has just happened to the reader: "", "begins", "whole", "torn, used" or "torn, again"."""


@dataclass(frozen=True, slots=True)
class Race:
    """What happened, tick by tick, and what it came to."""

    frames: tuple[Frame, ...]
    published: int
    whole: int
    """Copies that were used and are one version throughout."""
    torn_found: int
    """Copies of several versions that the seqlock revealed: thrown away, and read again."""
    torn_used: int
    """Copies of several versions that nobody noticed."""


def race(slots: int, ticks_per_chunk: int, pause: int, seqlock: bool, ticks: int = 120) -> Race:
    """Let both run for ``ticks``. The reader takes ``ticks_per_chunk`` for a chunk; the writer rests ``pause`` ticks between two versions."""
    ring = [[EMPTY] * CHUNKS for _ in range(slots)]
    ring[0] = [0] * CHUNKS
    sequences = [2] + [0] * (slots - 1)
    writer, reader = _write(ring, sequences, pause), _read(ring, sequences, ticks_per_chunk, seqlock)
    frames = []
    for _ in range(ticks):
        writing = next(writer)
        reading, staging, event = next(reader)
        frames.append(Frame(tuple(map(tuple, ring)), tuple(sequences), writing, reading, staging, event))
    events = [frame.event for frame in frames]
    published = sum(sequence // 2 for sequence in sequences)
    return Race(
        tuple(frames), published, events.count("whole"), events.count("torn, again"), events.count("torn, used")
    )


def _write(ring: list[list[int]], sequences: list[int], pause: int) -> Iterator[tuple[int, int] | None]:
    version = 0
    while True:
        for _ in range(pause):
            yield None
        version += 1
        slot = version % len(ring)
        sequences[slot] += 1
        for chunk in range(CHUNKS):
            ring[slot][chunk] = version
            if chunk == CHUNKS - 1:
                sequences[slot] += 1
            yield slot, chunk


def _read(
    ring: list[list[int]], sequences: list[int], ticks_per_chunk: int, seqlock: bool
) -> Iterator[tuple[tuple[int, int] | None, tuple[int, ...], str]]:
    staging = [EMPTY] * CHUNKS
    while True:
        complete = [slot for slot, sequence in enumerate(sequences) if sequence and sequence % 2 == 0]
        slot = max(complete, key=lambda slot: ring[slot][-1])
        sequence, event = sequences[slot], "begins"
        staging = [EMPTY] * CHUNKS
        for chunk in range(CHUNKS):
            for _ in range(ticks_per_chunk - 1):
                yield (slot, chunk), tuple(staging), event
                event = ""
            staging[chunk] = ring[slot][chunk]
            if chunk < CHUNKS - 1:
                yield (slot, chunk), tuple(staging), event
                event = ""
        changed = sequences[slot] != sequence
        torn = len(set(staging)) > 1
        yield (
            (slot, CHUNKS - 1),
            tuple(staging),
            "torn, again" if seqlock and changed else "torn, used" if torn else "whole",
        )
