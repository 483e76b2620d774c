"""The mean lag in closed form is that of the simulated run, whatever the latencies."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zorplex_rl.simulation.lag import mean_lag
from zorplex_rl.simulation.setting import Details, Setting
from zorplex_rl.simulation.simulate import simulate_async

quarters = st.integers(1, 16).map(lambda n: n / 4)


def simulated(setting: Setting, ahead: bool = False) -> float:
    """The mean lag of the groups of the middle half of the steps: after the start, when all data
    are fresh, and before the end. ``ahead``: generators take shares of a step, all at once."""
    share = setting.groups_per_step // setting.generators if ahead else 1
    latencies = replace(setting.latencies(), details=Details(share=share, ahead=ahead))
    spans = [span for span in simulate_async(setting, latencies).timeline.spans if span.kind == "generate"]
    steps = range(setting.steps // 2, 3 * setting.steps // 4)
    lags = [span.args["group"] // setting.groups_per_step - span.args["version"] for span in spans]
    return fmean(
        lag for lag, span in zip(lags, spans, strict=True) if span.args["group"] // setting.groups_per_step in steps
    )


@given(
    rounds=st.integers(1, 4), generators=st.sampled_from([1, 2, 3, 4]), max_lag=st.integers(0, 6), generation=quarters,
    training=quarters, sync=quarters, ahead=st.booleans(),
)  # fmt: skip
def test_without_variation_it_is_exact(rounds, generators, max_lag, generation, training, sync, ahead):
    batch = rounds * generation
    # At a tie of generators and another resource, which of them waits depends on the start.
    assume(batch != max(training, sync, (sync + batch + training) / (max_lag + 1)))
    latencies = {"generation_seconds": generation, "training_seconds": training, "sync_seconds": sync}
    counts = {"generators": generators, "groups_per_step": rounds * generators, "max_lag": max_lag}
    # Seven steps ahead are a cycle, and the half of them has whole cycles of nearly every length.
    setting = Setting(steps=168, variation=0, **counts, **latencies)
    expected = mean_lag(generators, rounds * generators, max_lag, generation, training, sync, ahead)
    assert simulated(setting, ahead) == pytest.approx(expected, rel=0.05 if ahead else 1e-9)


@pytest.mark.parametrize(("training", "max_lag"), [(1.0, 4), (3.0, 2), (3.0, 8)])
def test_with_some_variation_it_is_within_a_tenth(training, max_lag):
    means = {"generation_seconds": 1.0, "training_seconds": training, "sync_seconds": 0.1}
    counts = {"generators": 4, "groups_per_step": 8, "max_lag": max_lag}
    found = fmean(simulated(Setting(steps=200, variation=0.3, seed=seed, **counts, **means)) for seed in range(5))
    assert mean_lag(4, 8, max_lag, 1.0, training, 0.1) == pytest.approx(found, rel=0.1)
