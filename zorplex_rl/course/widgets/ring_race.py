"""Simulate one writer and one reader of the weight ring, tick by tick, with and without the
seqlock.

    writer   writes version 0, 1, 2 … into slot 0, 1, 2 … of the ring, one chunk per tick, then pauses (the trainer trains)
    reader   copies the newest complete slot into a staging buffer, one chunk in several ticks, again and again

The protocol is that of ``weights/ring.py``: a slot's sequence number is odd while the slot is
written. The reader reads the sequence number, copies the slot, and reads the number again. With
``seqlock`` it uses a copy only if the number has not changed; without it, it uses every copy. A
copy is torn if it holds chunks of several versions.

>>> careful, careless = (race(slots=2, ticks_per_chunk=3, pause=0, seqlock=seqlock) for seqlock in (True, False))
>>> careless.torn_used > 0, careful.torn_used, careful.torn_found > 0
(True, 0, True)
>>> race(slots=4, ticks_per_chunk=3, pause=0, seqlock=True).torn_found  # with more slots the writer needs longer to come back to the same slot
0
"""

from collections.abc import Iterator
from dataclasses import dataclass

CHUNKS = 8
"""Chunks in one version of the weights."""
EMPTY = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """Hold the state after one tick. A chunk is given as the version that it belongs to; ``EMPTY``
    if it was never written."""

    slots: tuple[tuple[int, ...], ...]
    sequences: tuple[int, ...]
    writing: tuple[int, int] | None
    """(slot, chunk) that the writer wrote in this tick; None while it pauses."""
    reading: tuple[int, int] | None
    """(slot, chunk) that the reader is copying."""
    staging: tuple[int, ...]
    event: str
    """The reader's event in this tick: "", "begins", "whole", "torn, used" or "torn, again"."""


@dataclass(frozen=True, slots=True)
class Race:
    """Hold all frames of a simulation and its counts."""

    frames: tuple[Frame, ...]
    published: int
    whole: int
    """Copies that were used and hold one version only."""
    torn_found: int
    """Copies during which the slot changed: the seqlock detected them, and the reader copied
    again."""
    torn_used: int
    """Torn copies that were used."""


def race(slots: int, ticks_per_chunk: int, pause: int, seqlock: bool, ticks: int = 120) -> Race:
    """Run both for ``ticks``. The reader takes ``ticks_per_chunk`` per chunk; the writer pauses
    ``pause`` ticks between two versions."""
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
