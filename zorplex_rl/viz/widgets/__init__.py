"""Provide widgets for notebooks that also work on a static page: Python computes, JavaScript draws.

    TimelineSimulator     sync against async, from a dozen numbers            computed by analysis/simulate.py
    WeightRingRace        a writer overtakes a reader, with and without seqlock    computed by analysis/ring_race.py
    ReshardMap            bytes between every source and destination          shows matrices
    LiveCurve             accuracy during training                            shows rows of metrics
    ServiceBoard          replicas of a service, their health and queues      shows a service's status

With a kernel, a simulator sends its slider positions to Python and shows the answer. Without one, it looks the answer up in a table that Python
computed for every position, if the simulator was made with ``static=True``.
"""

from zorplex_rl.viz.widgets.live_curve import LiveCurve
from zorplex_rl.viz.widgets.reshard_map import ReshardMap
from zorplex_rl.viz.widgets.service_board import ServiceBoard
from zorplex_rl.viz.widgets.timeline_simulator import TimelineSimulator
from zorplex_rl.viz.widgets.weight_ring_race import WeightRingRace

__all__ = ["LiveCurve", "ReshardMap", "ServiceBoard", "TimelineSimulator", "WeightRingRace"]
