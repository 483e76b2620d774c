"""What the figures that lay runs beside each other are given."""

from __future__ import annotations

from zorplex_rl.course.figures.runs import lags_of
from zorplex_rl.timeline import Span, Timeline


def test_a_group_is_as_old_as_the_versions_between_its_sampling_and_its_step():
    groups = [[[0, 0, 1.0, 0.0], [1, 0, 1.0, 0.0]], [[2, 0, 1.0, 0.0], [3, 1, 1.0, 0.0]]]
    spans = [Span("trainer", "train", step, step + 1, {"step": step, "groups": g}) for step, g in enumerate(groups)]
    assert lags_of(Timeline([*spans, Span("trainer", "publish", 3, 4, {"version": 1})])) == {0: 3, 1: 1}
