"""Play a run like a film: groups of episodes as dots, coloured by their version.

    both = compare(setting)
    LoopPlayer({"In turns": both.sync.timeline, "Side by side": both.asynchronous.timeline})

    generators ──► replay buffer ──► trainer        a dot moves to the right while it is written, waits, and is trained on
        ▲                               │
        └─────────── weights ◄──────────┘

All timelines run on one clock. A button plays; a slider moves the time by mouse, keys and touch.
The page needs no kernel.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import traitlets

from zorplex_rl.course.widgets.widget import Widget
from zorplex_rl.run.timeline import Span, Timeline


class LoopPlayer(Widget, script="loop_player.js"):
    """Show ``timelines``, first at the share ``start`` of their time. ``unit`` says what a dot is."""

    runs: Any = traitlets.List().tag(sync=True)
    look = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        timelines: Mapping[str, Timeline],
        start: float = 0.4,
        unit: str = "a group of episodes of one task",
    ) -> None:
        super().__init__(
            runs=[{"name": name} | film(timeline) for name, timeline in timelines.items()],
            look={"start": start, "unit": unit},
        )

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import table

        rows = [
            {
                "": run["name"],
                "seconds": f"{run['seconds']:.1f}",
                "training steps": str(len(run["steps"])),
                "dots written": str(len(run["dots"])),
                "of them trained on": str(sum(dot[4] is not None for dot in run["dots"])),
            }
            for run in state["runs"]
        ]
        return table(
            f"The runs that this player shows; a dot is {state['look']['unit']}", rows
        ).text


def film(timeline: Timeline) -> dict[str, Any]:
    """Return what the player draws of ``timeline``, in seconds from its start.

    ``generate`` spans must name their ``group`` and ``version``, ``train`` spans their ``step`` and
    ``groups``. A dot is [version, generator, begun, written, taken by the trainer, trained on,
    step]; the last three are None for a group that was never trained on. ``most`` is the largest
    number of dots that wait, or are trained on, at one time.
    """

    def times(span: Span) -> list[float]:
        return [round(span.start - timeline.start, 4), round(span.end - timeline.start, 4)]

    spans: dict[str, list[Span]] = {kind: [] for kind in ("generate", "train", "publish")}
    for span in sorted(timeline.spans, key=lambda span: span.start):
        if span.kind in spans:
            spans[span.kind].append(span)
    steps = {group: span for span in spans["train"] for group in span.args["groups"]}
    names = sorted({span.actor for span in spans["generate"]})
    dots = []
    for span in spans["generate"]:
        step = steps.get(span.args["group"])
        fate = [*times(step), step.args["step"]] if step else [None, None, None]
        dots.append([span.args["version"], names.index(span.actor), *times(span), *fate])
    return {
        "seconds": round(timeline.end - timeline.start, 4),
        "generators": len(names),
        "dots": dots,
        "steps": [times(span) for span in spans["train"]],
        "weights": [times(span) for span in spans["publish"]],
        "most": max(_most(dots), max(len(span.args["groups"]) for span in spans["train"])),
    }


def _most(dots: list[list[Any]]) -> int:
    """Return the largest number of dots that wait in the buffer at one time."""
    arrivals = [(dot[3], 1) for dot in dots]
    departures = [(dot[4], -1) for dot in dots if dot[4] is not None]
    # A departure at the time of an arrival comes first: the trainer takes a batch as soon as its
    # last group arrives.
    return max(accumulate(change for _, change in sorted(arrivals + departures)), default=0)
