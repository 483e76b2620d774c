"""Figures of a service: the states, the moment of the blow and the rates that they show."""

from __future__ import annotations

from itertools import pairwise

import pytest

from zorplex_rl.course.figures.service_charts import Fault, rates, stretches
from zorplex_rl.services.status import ReplicaStatus, ServiceStatus

FAULT = Fault(10.0, "tools_0", "kill -9")


def status(*replicas: str, answered: int = 0, waiting: int = 0) -> ServiceStatus:
    """A service whose places are filled by ``replicas``; "" is a place that is being filled."""
    rows = [
        ReplicaStatus(place, name or "—", "ready" if name else "starting", 1, 2, 0, 0, 1.0)
        for place, name in enumerate(replicas)
    ]
    return ServiceStatus("tools", tuple(rows), answered, answered, 0, 0, 0, 0, waiting, 2 * len(rows), 1.0, 2.0, 3.0)


KILLED = [
    (9.0, status("tools_0", "tools_1", answered=0)),
    (9.9, status("tools_0", "tools_1", answered=90)),
    (10.1, status("tools_0", "tools_1", answered=110)),
    (11.0, status("", "tools_1", answered=150)),
    (12.0, status("tools_2", "tools_1", answered=200)),
    (13.0, status("tools_2", "tools_1", answered=300)),
]


def test_a_place_is_in_rotation_then_failed_then_replaced_then_in_rotation_again():
    found = [(s.state, s.replica, s.start, s.end) for s in stretches(KILLED, FAULT) if s.place == 0]
    assert found == [
        ("in rotation", "tools_0", -1.0, 0.0),
        ("failed, not detected yet", "tools_0", 0.0, 1.0),
        ("being replaced", "—", 1.0, 2.0),
        ("in rotation", "tools_2", 2.0, 3.0),
    ]


def test_the_other_place_is_in_rotation_all_the_time_but_for_the_mark_of_the_blow():
    others = [s for s in stretches(KILLED, FAULT) if s.place == 1]
    assert {s.state for s in others} == {"in rotation"}
    assert (others[0].start, others[-1].end) == (-1.0, 3.0)


def test_rates_add_up_to_what_was_answered_and_leave_no_gap():
    found = rates(KILLED, seconds=1.0)
    assert sum((end - start) * rate for start, end, rate in found) == pytest.approx(300)
    assert (found[0][0], found[-1][1]) == (9.0, 13.0)
    assert all(before[1] == after[0] for before, after in pairwise(found))
