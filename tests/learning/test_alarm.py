"""A run that looks like those that collapsed says so, once, and what to change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.course.staleness import Conditions, Trial, train_with_lag
from zorplex_rl.learning.alarm import BEARABLE, LIMITS, RATE, TYPICAL, Alarm, Forecast, Limit, Smoothed
from zorplex_rl.learning.schedule import schedule

HIGH = Limit(("second_moment",), "level", 1.0, above=True)


def watching(*limits: Limit) -> Alarm:
    """An alarm with these limits; the forecast is silent for its loss."""
    return Alarm(LearnerConfig(loss="grpo"), limits=limits)


def rings(alarm: Alarm, values: list[float], name: str = "second_moment") -> list[int]:
    """The steps at which it says something, of steps with these values."""
    return [step for step, value in enumerate(values, start=1) if alarm.note({name: value}, step)]


def test_one_step_beyond_the_bound_is_not_enough_and_staying_there_is():
    assert rings(watching(HIGH), [0.0, 2.0, 0.0, 0.0]) == []
    assert rings(watching(HIGH), [0.0, 2.0, 2.0, 2.0]) == [3]


def test_it_is_said_once_and_again_only_after_the_value_was_within_the_bound():
    calm = 6 * [0.0]
    assert rings(watching(HIGH), [*calm, *(6 * [3.0]), *calm, *(6 * [3.0])]) == [8, 19]


def test_any_of_several_limits_rings_and_one_whose_diagnostic_the_loss_lacks_never_does():
    alarm = watching(Limit(("clip_fraction_low", "clip_fraction_high"), "level", 0.1, above=True), HIGH)
    assert alarm.note({"second_moment": 0.5}, 1) is None
    assert "second moment is 2.2, above 1" in (alarm.note({"second_moment": 5.5}, 2) or "")


def test_the_sentence_says_what_was_read_and_what_to_change():
    said = watching(Limit(("entropy",), "fall", 0.5, above=False))
    assert said.note({"entropy": 3.0}, 1) is None
    sentence = said.note({"entropy": -3.0}, 2)
    assert sentence is not None
    assert sentence.startswith(
        "this run may be about to collapse: entropy is, as a share of its highest value, 0.33, below 0.5;"
    )
    assert "--learning-rate" in sentence and "--max-lag" in sentence and "--loss grpo" in sentence


@pytest.mark.parametrize("form", ["fall", "rise"])
def test_a_share_of_nothing_is_no_number_and_rings_nothing(form):
    found = Smoothed()
    found.note(0.0)
    assert math.isnan(found.read(form))
    assert not any(Limit(("reward",), form, 0.0, above).is_crossed(found.read(form)) for above in (True, False))


WARMUP = 5


def stale(step: int, lag: int, speed: float, noise: float = 0.0) -> dict[str, float]:
    """The metrics of a step of a policy that moves in a line, ``speed`` a step at the full rate."""
    age = min(step - 1, lag)
    moved = speed * sum(schedule(version, WARMUP, 0) for version in range(step - 1 - age, step - 1))
    return {"second_moment": moved**2 + noise, "lag_mean": age, "lag_max": age, "episode_sample_size": 1.0}


EMBEDDED = LearnerConfig(warmup_steps=WARMUP, learning_rate=RATE)
SPEED = RATE * TYPICAL**0.5
"""What is typical at that rate."""


@pytest.mark.parametrize("lag", [1, 2, 5, 8])
def test_a_typical_policy_at_the_rate_of_comparison_has_the_lag_that_it_has_from_the_first_stale_batch_on(lag):
    forecast = Forecast(EMBEDDED, lag)
    found = [forecast.note(stale(step, lag, SPEED), step) for step in range(1, 20)]
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx(18 * [lag])


def test_a_policy_that_moves_three_times_as_fast_has_three_times_the_lag():
    forecast = Forecast(EMBEDDED, 8)
    found = [forecast.note(stale(step, 8, 3 * SPEED), step) for step in range(1, 4)]
    assert found[1:] == pytest.approx(2 * [24])


def test_half_the_rate_is_as_good_as_an_eighth_of_the_lag():
    forecast = Forecast(replace(EMBEDDED, learning_rate=RATE / 2), 16)
    found = [forecast.note(stale(step, 8, SPEED / 2), step) for step in range(1, 4)]
    assert found[1:] == pytest.approx(2 * [2])


def test_what_the_numerics_alone_make_is_no_drift():
    forecast = Forecast(EMBEDDED, 8)
    found = [forecast.note(stale(step, 8, SPEED, noise=1e-3), step) for step in range(1, 9)]
    assert found[1:] == pytest.approx(7 * [8])


def test_a_batch_that_is_partly_fresh_counts_by_its_stale_part():
    metrics = stale(9, 2, SPEED)
    quarter = metrics | {"second_moment": metrics["second_moment"] / 4, "lag_mean": 0.5}
    assert Forecast(EMBEDDED, 8).note(quarter, 9) == pytest.approx(8)


def test_batches_of_a_lag_above_eight_are_not_read():
    forecast = Forecast(EMBEDDED, 32)
    found = [forecast.note(stale(step, 32, SPEED), step) for step in range(1, 10)]
    far = [forecast.note(stale(step, 32, 9 * SPEED), step) for step in range(10, 40)]
    assert found[1:] + far == pytest.approx(38 * [32])
    assert math.isnan(Forecast(EMBEDDED, 32).note(stale(20, 9, SPEED), 20))


@pytest.mark.parametrize("loss", sorted(BEARABLE))
def test_the_forecast_rings_where_its_loss_bears_less_and_is_silent_where_it_bears_more(loss):
    for factor, expected in ((1.08, [2]), (0.95, [])):
        speed = factor * SPEED * BEARABLE[loss] / 8
        alarm = Alarm(replace(EMBEDDED, loss=loss), max_lag=8)
        said = {step: alarm.note(stale(step, 8, speed), step) for step in range(1, 12)}
        assert [step for step, sentence in said.items() if sentence] == expected
        for sentence in filter(None, said.values()):
            assert (
                f"the lag that --max-lag allows, 8, is like one of {factor * BEARABLE[loss]:.2g} at a learning rate of 0.0004, "
                f"and --loss {loss} bears {BEARABLE[loss]:g}"
                in sentence
                and "lower --learning-rate or --max-lag" in sentence
            )


def test_what_was_foretold_is_said_again_by_the_diagnostic_when_it_comes():
    alarm = Alarm(replace(EMBEDDED, loss="reinforce"), max_lag=8)
    steps = [stale(step, 8, SPEED) | {"episode_sample_size": 1.0 if step < 6 else 0.01} for step in range(1, 15)]
    said = {step: alarm.note(metrics, step) for step, metrics in enumerate(steps, start=1)}
    (first, foretold), (second, diagnosed) = [(step, text) for step, text in said.items() if text]
    assert first == 2 and "--max-lag allows" in str(foretold)
    assert 6 < second < 12 and "about to collapse" in str(diagnosed)


def test_a_loss_that_stops_each_token_or_episode_bears_any_drift():
    alarm = Alarm(LearnerConfig(loss="grpo"), max_lag=8)
    assert [alarm.note(stale(step, 8, speed=3.0), step) for step in range(1, 12)] == 11 * [None]


@pytest.mark.parametrize("loss", ["reinforce", "tis", Config.learner.loss])
def test_fresh_data_never_ring_the_alarm_of_a_run(loss):
    sizes = {"effective_sample_size": 1.0, "episode_sample_size": 1.0}
    fresh = {"mismatch_kl": 0.0, "second_moment": 0.0, "lag_mean": 0, "lag_max": 0} | sizes
    alarm = Alarm(LearnerConfig(loss=loss), max_lag=0)
    assert [alarm.note(fresh, step) for step in range(1, 51)] == 50 * [None]
    assert LIMITS


@pytest.mark.parametrize(
    ("loss", "lag", "expected"), [("reinforce", 8, True), ("grpo", 8, False), ("reinforce", 0, False)]
)
def test_in_a_real_training_on_stale_data_it_rings_before_anything_is_lost(loss, lag, expected):
    config = LearnerConfig(loss=loss, learning_rate=4e-4, updates_per_batch=2)
    alarm, said = Alarm(config, lag), []
    train_with_lag(
        Trial(loss, lag, seed=3),
        Conditions(steps=3, schedule_steps=60, held_out_tasks=1),
        lambda learner, metrics: said.append(alarm.note(metrics, learner.version)),
    )
    assert any(said) == expected
