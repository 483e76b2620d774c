"""What stands behind notebook 05b, where SmolLM2 is not on the machine that runs the tests."""

from __future__ import annotations

import pytest

from zorplex_rl.course import nb05b
from zorplex_rl.course.widgets.live_curve import LiveCurve


@pytest.mark.parametrize(("narrow", "option"), [((0.3, 0.5), 0), ((0.5, 0.9), 1), ((0.5, 1.0), 2)])
def test_the_last_batches_of_the_two_runs_are_compared(narrow, option):
    curve = LiveCurve(2)
    for step, share in enumerate((0.9, 0.8), 1):
        curve.add(nb05b.SAMPLED, step, share)

    right, why = nb05b.narrow_learned(curve, narrow)

    assert right == option
    assert "80% of the last batch" in why


def test_without_smollm2_no_option_is_right():
    assert nb05b.narrow_learned(LiveCurve(2), [])[0] == []
