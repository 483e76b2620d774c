"""Show the weight ring in slow motion: which chunk is written, which is read, and which copies are
torn.

    WeightRingRace(static="execute" in mo.cli_args())

Sliders set the number of slots, the speeds of reader and writer, and the tick that is shown. A
switch turns the seqlock off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.widgets.ring_race import race
from zorplex_rl.course.widgets.widget import Axes, Params, Simulator, tabulate
from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES: Axes = {"slots": [2, 3, 4], "ticks_per_chunk": [1, 2, 3, 4], "pause": [0, 4, 8, 16], "seqlock": [False, True]}


class WeightRingRace(Simulator, script="weight_ring_race.js"):
    """Show one writer and one reader. ``static`` computes the table for a page without a kernel, in
    about a second.

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

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        result, params = state["result"], state["params"]
        # The first torn copy is what the widget is about; without one, the last tick.
        tick = next(
            (n for n, frame in enumerate(result["frames"]) if frame[5].startswith("torn")), len(result["frames"]) - 1
        )
        slots, _, writing, reading, staging, event = result["frames"][tick]
        rows = {f"slot {number}": chunks for number, chunks in enumerate(slots)} | {"reader's copy": staging}

        def draw(figure: Figure) -> None:
            axes = figure.subplots()
            for row, chunks in enumerate(rows.values()):
                for chunk, version in enumerate(chunks):
                    colour = style.SERIES[version % len(style.SERIES)] if version >= 0 else "none"
                    axes.barh(row, 0.94, left=chunk, height=0.8, color=colour, edgecolor=style.GREY)
                    if version >= 0:
                        style.write_in_bar(axes, chunk + 0.47, row, str(version))
            style.name_rows(axes, list(rows), margin=0.7)
            axes.set(xlim=(0, len(staging)), xticks=[])
            style.bare_axes(axes, keep=())

        protected = "with" if params["seqlock"] else "without"
        said = (
            f"tick {tick}, {protected} seqlock: the writer is at {writing}, the reader at {reading} (slot, chunk), {event or 'copying'}; "
            f"of all copies {result['torn_used']} torn ones were used"
        )
        return render(draw, 60 + 40 * len(rows), "Versions of the chunks in the weight ring", said)


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
