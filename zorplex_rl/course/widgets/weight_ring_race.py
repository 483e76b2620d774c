"""Show the weight ring in slow motion: which chunk is written, which is read, which copy is torn.

    writer   writes version 1, 2, 3 … into slot 0, 1, 2 … of the ring, one chunk per tick, then pauses (the trainer trains)
    reader   copies the newest complete slot into a staging buffer, one chunk in several ticks, again and again

    WeightRingRace()

The protocol is that of ``weights/ring.py``: a slot's sequence number is odd while the slot is
written, and each write takes the next two numbers of the whole ring. The reader reads the sequence
number, copies the slot, and reads the number again. With ``seqlock`` it uses a copy only if the number
has not changed; without it, it uses every copy. A copy is torn if it holds chunks of several versions.

>>> careful, careless = (race(slots=2, ticks_per_chunk=3, pause=0, seqlock=seqlock) for seqlock in (True, False))
>>> careless["torn_used"] > 0, careful["torn_used"], careful["torn_found"] > 0
(True, 0, True)
>>> race(slots=4, ticks_per_chunk=3, pause=0, seqlock=True)["torn_found"]  # the writer needs longer to come back to a slot
0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.bars import write_in_bar
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.widgets.widget import Axes, Params, Simulator, tabulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES: Axes = {
    "slots": [2, 3, 4],
    "ticks_per_chunk": [1, 2, 3, 4],
    "pause": [0, 4, 8, 16],
    "seqlock": [False, True],
}
START: Params = {"slots": 2, "ticks_per_chunk": 3, "pause": 8, "seqlock": False}
CHUNKS, EMPTY = 8, -1
"""Chunks in one version, and what stands for a chunk that was never written."""
Place = tuple[int, int]
"""Slot and chunk."""


class WeightRingRace(Simulator, script="weight_ring_race.js"):
    """Show one writer and one reader, at ``START`` first."""

    def __init__(self) -> None:
        super().__init__(params=START, controls={"axes": dict(AXES)})

    def answer(self, params: Params) -> dict[str, Any]:
        return race(**{name: params[name] for name in AXES})

    def make_table(self) -> dict[str, Any]:
        return tabulate(AXES, race)

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        result, params = state["result"], state["params"]
        # The first torn copy is what the widget is about; without one, the last tick.
        torn = (tick for tick, frame in enumerate(result["frames"]) if frame[5].startswith("torn"))
        tick = next(torn, len(result["frames"]) - 1)
        slots, _, writing, reading, staging, event = result["frames"][tick]
        rows = {f"slot {number}": chunks for number, chunks in enumerate(slots)} | {
            "reader's copy": staging
        }

        def draw(figure: Figure) -> None:
            axes = figure.subplots()
            for row, chunks in enumerate(rows.values()):
                for chunk, version in enumerate(chunks):
                    colour = style.SERIES[version % len(style.SERIES)] if version >= 0 else "none"
                    axes.barh(row, 0.94, left=chunk, height=0.8, color=colour, edgecolor=style.GREY)
                    if version >= 0:
                        write_in_bar(axes, chunk + 0.47, row, str(version))
            style.name_rows(axes, list(rows), margin=0.7)
            axes.set(xlim=(0, len(staging)), xticks=[])
            style.bare_axes(axes, keep=())

        protected = "with" if params["seqlock"] else "without"
        said = (
            f"tick {tick}, {protected} seqlock: the writer is at {writing}, the reader at {reading} (slot, chunk), {event or 'copying'}; "
            f"of all copies {result['torn_used']} torn ones were used"
        )
        return render(draw, 60 + 40 * len(rows), "Versions of the chunks in the weight ring", said)


def race(
    slots: int, ticks_per_chunk: int, pause: int, seqlock: bool, ticks: int = 120
) -> dict[str, Any]:
    """Run writer and reader for ``ticks``. Returns a frame for each of them, and counts of copies.

    A frame is [the versions of each slot's chunks, sequence numbers, what is written, what is read,
    the versions in the staging buffer, what happens to the reader]: "", "begins", "whole", "torn,
    used" or "torn, again". The writer pauses for ``pause`` ticks between two versions.
    """
    ring = [[EMPTY] * CHUNKS for _ in range(slots)]
    ring[0] = [1] * CHUNKS
    sequences = [2] + [0] * (slots - 1)
    writer, reader = (
        _write(ring, sequences, pause),
        _read(ring, sequences, ticks_per_chunk, seqlock),
    )
    frames: list[list[Any]] = []
    for _ in range(ticks):
        writing, (reading, staging, event) = next(writer), next(reader)
        frames.append([[*map(tuple, ring)], tuple(sequences), writing, reading, staging, event])
    events = [frame[-1] for frame in frames]
    return {
        "frames": frames,
        "published": max(sequences) // 2,
        "whole": events.count("whole"),
        "torn_found": events.count("torn, again"),
        "torn_used": events.count("torn, used"),
    }


def _write(ring: list[list[int]], sequences: list[int], pause: int) -> Iterator[Place | None]:
    version = 1
    while True:
        for _ in range(pause):
            yield None
        slot = version % len(ring)
        version += 1
        sequences[slot] = 2 * version - 1
        for chunk in range(CHUNKS):
            ring[slot][chunk] = version
            if chunk == CHUNKS - 1:
                sequences[slot] = 2 * version
            yield slot, chunk


def _read(
    ring: list[list[int]], sequences: list[int], ticks_per_chunk: int, seqlock: bool
) -> Iterator[tuple[Place, tuple[int, ...], str]]:
    while True:
        complete = [
            slot for slot, sequence in enumerate(sequences) if sequence and sequence % 2 == 0
        ]
        slot = max(complete, key=lambda slot: ring[slot][-1])
        sequence = sequences[slot]
        event = "begins"
        staging = [EMPTY] * CHUNKS
        for chunk in range(CHUNKS):
            for tick in range(ticks_per_chunk):
                if tick == ticks_per_chunk - 1:
                    staging[chunk] = ring[slot][chunk]
                    if chunk == CHUNKS - 1:
                        used = "torn, used" if len(set(staging)) > 1 else "whole"
                        event = "torn, again" if seqlock and sequences[slot] != sequence else used
                yield (slot, chunk), tuple(staging), event
                event = ""
