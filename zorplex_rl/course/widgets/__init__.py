"""Provide widgets for notebooks that also work on a static page: Python computes, JavaScript draws.

    TimelineSimulator     sync against async, from a dozen numbers            computed by course/sync_and_async.py
    WeightRingRace        a writer overtakes a reader, with and without seqlock    computed by itself
    ReshardMap            bytes between every source and destination          shows matrices
    WhatIf                knobs, and a figure, numbers or bars                computed by a function of the notebook
    LoopPlayer            groups move through the loop, played like a film    shows timelines
    LiveCurve             accuracy during training                            shows rows of metrics
    ServicePlayer         requests cross the replicas of a pool, around a fault    shows recordings

With a kernel, a simulator sends its slider positions to Python and shows the answer. Without one,
it looks the answer up in a table, which Python computed for every position during the export.
"""

from collections.abc import Mapping
from typing import Any

from zorplex_rl.course.widgets.live_curve import LiveCurve
from zorplex_rl.course.widgets.loop_player import LoopPlayer
from zorplex_rl.course.widgets.reshard_map import ReshardMap
from zorplex_rl.course.widgets.service_player import ServicePlayer
from zorplex_rl.course.widgets.timeline_simulator import TimelineSimulator
from zorplex_rl.course.widgets.weight_ring_race import WeightRingRace
from zorplex_rl.course.widgets.what_if import WhatIf

__all__ = [
    "LiveCurve",
    "LoopPlayer",
    "ReshardMap",
    "ServicePlayer",
    "TimelineSimulator",
    "WeightRingRace",
    "WhatIf",
]


def drawn(state: Mapping[str, Any]) -> str:
    """Return the state of any widget as plain HTML or SVG; empty if its kind is none of these."""
    widget = globals().get(state.get("kind", "")) if state.get("kind") in __all__ else None
    return widget.drawn(state) if widget else ""
