"""Show the weight ring in slow motion: which chunk is written, which is read, and which copies are torn.

    WeightRingRace(static="execute" in mo.cli_args())

Sliders set the number of slots, the speeds of reader and writer, and the tick that is shown. A switch turns the seqlock off.
"""

from __future__ import annotations

from typing import Any

from zorplex_rl.analysis.ring_race import race
from zorplex_rl.viz.widgets.widget import Axes, Params, Simulator, tabulate

AXES: Axes = {"slots": [2, 3, 4], "ticks_per_chunk": [1, 2, 3, 4], "pause": [0, 4, 8, 16], "seqlock": [False, True]}


class WeightRingRace(Simulator, script="weight_ring_race.js"):
    """Show one writer and one reader. ``static`` computes the table for a page without a kernel, in about a second.

    Raises ValueError for a value that no slider offers.
    """

    def __init__(
        self, static: bool = False, slots: int = 2, ticks_per_chunk: int = 3, pause: int = 8, seqlock: bool = False
    ) -> None:
        params = {"slots": slots, "ticks_per_chunk": ticks_per_chunk, "pause": pause, "seqlock": seqlock}
        for name, value in params.items():
            if value not in AXES[name]:
                raise ValueError(f"{name} is {value}; the widget can show {', '.join(map(str, AXES[name]))}")
        super().__init__(static, params=params, controls={"axes": dict(AXES)})

    def answer(self, params: Params) -> dict[str, Any]:
        return _answer(**{name: params[name] for name in AXES})

    def make_table(self) -> dict[str, Any]:
        return tabulate(AXES, _answer)


def _answer(**params: Any) -> dict[str, Any]:
    found = race(**params)
    frames = [
        [frame.slots, frame.sequences, frame.writing, frame.reading, frame.staging, frame.event]
        for frame in found.frames
    ]
    return {
        "frames": frames,
        "published": found.published,
        "whole": found.whole,
        "torn_found": found.torn_found,
        "torn_used": found.torn_used,
    }
