"""The simulator: closed forms where there are any, and the rules of the real system."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from closed_form import A_HAIR, any_setting, even_setting, exact_seconds
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zorplex_rl.course.sync_and_async import compare, utilisation
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.simulation.simulate import simulate_async

pytestmark = pytest.mark.slow


def seconds_of(setting: Setting) -> tuple[float, float]:
    both = compare(setting)
    return both.sync.seconds, both.asynchronous.seconds


@settings(max_examples=200)
@given(even_setting)
def test_without_variation_both_modes_take_exactly_what_the_closed_form_says(setting):
    exact = (exact_seconds(setting, "sync"), exact_seconds(setting, "async"))
    assert seconds_of(setting) == exact


@settings(max_examples=200)
@given(any_setting)
def test_async_is_nowhere_slower_than_sync_and_at_lag_0_it_is_sync_to_the_last_bit(setting):
    both = compare(setting)
    assert both.asynchronous.seconds <= both.sync.seconds * A_HAIR
    assert simulate_async(replace(setting, max_lag=0), setting.latencies()) == both.sync


@settings(max_examples=200)
@given(any_setting, st.integers(2, 6))
def test_the_groups_of_a_share_are_of_one_step_and_of_one_version(setting, share):
    assume(setting.generation_seconds > 0)
    both = compare(replace(setting, share=share))
    assert both.asynchronous.seconds <= both.sync.seconds * A_HAIR
    spans = both.asynchronous.timeline.spans
    versions = {
        span.args["group"]: (span.actor, span.args["version"])
        for span in spans
        if span.kind == "generate"
    }
    for step in range(setting.steps):
        groups = [
            step * setting.groups_per_step + group for group in range(setting.groups_per_step)
        ]
        for start in range(0, len(groups), share):
            assert len({versions[group] for group in groups[start : start + share]}) == 1


@settings(max_examples=200)
@given(any_setting)
def test_every_group_takes_its_latency_is_trained_on_once_within_the_lag_bound_and_no_row_does_two_things_at_once(
    setting,
):
    both, groups, expected = (
        compare(setting),
        setting.steps * setting.groups_per_step,
        setting.latencies().generate,
    )
    assert both.sync.staleness == {0: groups}
    assert sum(both.asynchronous.staleness.values()) == groups
    assert max(both.asynchronous.staleness) <= setting.max_lag
    for run in (both.sync, both.asynchronous):
        spans = run.timeline.spans
        if setting.generation_seconds:
            found = {
                span.args["group"]: span.end - span.start
                for span in spans
                if span.kind == "generate"
            }
            assert [found[group] for group in sorted(found)] == pytest.approx(expected)
        for actor, share in utilisation(run).items():
            seconds_of_all = sum(span.end - span.start for span in spans if span.actor == actor)
            assert share * run.seconds == pytest.approx(seconds_of_all)


@settings(max_examples=200)
@given(any_setting)
def test_the_trainer_starts_only_when_its_data_is_there_and_a_generator_only_what_may_be_used(
    setting,
):
    assume(setting.generation_seconds > 0 and setting.training_seconds > 0)
    spans = simulate_async(setting, setting.latencies()).timeline.spans
    generated = [span for span in spans if span.kind == "generate"]
    for train in (span for span in spans if span.kind == "train"):
        finished = sum(span.end <= train.start for span in generated)
        assert finished >= (train.args["step"] + 1) * setting.groups_per_step
    for span in generated:
        assert (
            span.args["group"] // setting.groups_per_step <= span.args["version"] + setting.max_lag
        )


@settings(max_examples=200)
@given(any_setting, st.integers(1, 4))
def test_a_larger_lag_never_makes_a_run_longer(setting, more):
    larger = replace(setting, max_lag=setting.max_lag + more)
    assert seconds_of(larger)[1] <= seconds_of(setting)[1] * A_HAIR


def test_a_straggler_holds_up_sync_for_its_whole_length_and_async_only_once_its_lag_is_used_up():
    calm = Setting(
        generators=4,
        steps=6,
        max_lag=2,
        generation_seconds=1,
        variation=0,
        training_seconds=4,
        sync_seconds=0,
    )
    sync, asynchronous = seconds_of(calm)
    assert seconds_of(replace(calm, straggler=5)) == (sync + 3, asynchronous), (
        "5 seconds instead of two rounds of 1"
    )
    sync_held_up, async_held_up = seconds_of(replace(calm, straggler=20))
    assert sync_held_up == sync + 18
    assert 0 < async_held_up - asynchronous < 18


def test_the_latency_of_a_group_depends_on_its_number_and_the_seed_alone():
    short = Setting(steps=3, generators=2, max_lag=0)
    long = replace(short, steps=9, generators=7, max_lag=4, training_seconds=9)
    assert long.latencies().generate[:24] == short.latencies().generate
    assert replace(short, seed=1).latencies().generate != short.latencies().generate
    doubled = replace(short, generation_seconds=2 * short.generation_seconds).latencies().generate
    assert doubled == pytest.approx([2 * latency for latency in short.latencies().generate])


def test_latencies_have_the_mean_and_the_variation_that_was_asked_for():
    generate = (
        Setting(groups_per_step=100, steps=1000, generation_seconds=3, variation=0.7)
        .latencies()
        .generate
    )
    assert fmean(generate) == pytest.approx(3, rel=0.02)
    assert pstdev(generate) / fmean(generate) == pytest.approx(0.7, rel=0.05)
