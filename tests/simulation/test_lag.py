"""The mean lag in closed form is that of the simulated run, whatever the latencies."""

import random
from dataclasses import replace
from math import hypot, sqrt
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zorplex_rl.simulation.lag import mean_lag
from zorplex_rl.simulation.setting import Details, Setting, lognormal
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


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("generators", "groups", "sync"), [(1, 1, 0.0), (1, 3, 0.3), (3, 3, 0.1), (2, 4, 0.3)])
@pytest.mark.parametrize("max_lag", [2, 4])
@pytest.mark.parametrize("training", [0.8, 1.0, 1.2])
def test_around_a_tie_it_is_within_a_tenth_if_it_knows_the_variation(
    training, max_lag, generators, groups, sync, ahead
):
    steps, generation, rng = 1000, generators / groups, random.Random(1)
    counts = {"generators": generators, "groups_per_step": groups, "max_lag": max_lag}
    setting = Setting(steps=steps, generation_seconds=generation, variation=0.5, sync_seconds=sync, **counts)
    train = tuple(lognormal(rng, training, 0.3) for _ in range(steps))
    details = Details(share=groups // generators if ahead else 1, ahead=ahead)
    run = simulate_async(setting, replace(setting.latencies(), train=train, details=details))
    spans = [span.args for span in run.timeline.spans if span.kind == "generate"]
    found = fmean(a["group"] // groups - a["version"] for a in spans if a["group"] > steps * groups // 5)
    deviation = hypot(0.5 * generation * sqrt(groups) / generators, 0.3 * training)
    expected = mean_lag(generators, groups, max_lag, generation, training, sync, ahead, deviation)
    assert expected == pytest.approx(found, rel=0.1)


@given(
    rounds=st.integers(1, 3), max_lag=st.integers(1, 5), training=quarters, sync=quarters, ahead=st.booleans(),
)  # fmt: skip
def test_one_generator_whose_seconds_hardly_vary_has_the_lag_of_one_whose_seconds_do_not(
    rounds, max_lag, training, sync, ahead
):
    # A number just off the quarters: nothing ties, and no version arrives as a round begins.
    others = {"generators": 1, "groups_per_step": rounds, "max_lag": max_lag, "generation": 1.01 / rounds}
    found = mean_lag(**others, training=training, sync=sync, ahead=ahead, deviation=1e-5)
    assert found == pytest.approx(mean_lag(**others, training=training, sync=sync, ahead=ahead), abs=0.02)


@given(
    generators=st.integers(1, 4), rounds=st.integers(1, 3), max_lag=st.integers(0, 6), generation=quarters,
    training=quarters, sync=quarters, deviation=st.floats(0.001, 3), ahead=st.booleans(), more=st.floats(0, 2),
)  # fmt: skip
def test_slower_training_and_a_larger_bound_never_make_data_fresher(
    generators, rounds, max_lag, generation, training, sync, deviation, ahead, more
):
    def lag(max_lag: int, training: float) -> float:
        counts = (generators, rounds * generators, max_lag)
        return mean_lag(*counts, generation, training, sync, ahead, deviation)

    least = lag(max_lag, training)
    assert 0 <= least <= max_lag
    assert lag(max_lag, training + more) >= least - 1e-9
    assert lag(max_lag + 1, training) >= least - 1e-9
