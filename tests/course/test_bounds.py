"""The lower bounds on a run's wall time: no simulated run beats them, and one without variation reaches
them."""

from __future__ import annotations

import pytest
from closed_form import A_HAIR, any_setting, even_setting, exact_seconds
from hypothesis import given, settings

from zorplex_rl.course.bounds import RESOURCES, lower_bounds
from zorplex_rl.course.sync_and_async import compare

pytestmark = pytest.mark.slow


@settings(max_examples=200)
@given(even_setting)
def test_without_variation_the_bound_is_what_the_closed_form_says(setting):
    latencies = setting.latencies()
    for mode in ("sync", "async"):
        assert lower_bounds(setting, latencies, mode).all == exact_seconds(setting, mode)


@settings(max_examples=200)
@given(any_setting)
def test_no_run_beats_its_lower_bound(setting):
    latencies = setting.latencies()
    both = compare(setting)
    for mode, run in (("sync", both.sync), ("async", both.asynchronous)):
        bounds = lower_bounds(setting, latencies, mode)
        assert run.seconds * A_HAIR >= bounds.all
        assert bounds.all * A_HAIR >= max(getattr(bounds, name) for name in RESOURCES)
