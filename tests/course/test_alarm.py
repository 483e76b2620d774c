"""A run that looks like those that collapsed says so, once, and what to change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.course.alarm import BEARABLE, LIMITS, RATE, Alarm, Limit, Smoothed, alike
from zorplex_rl.course.staleness import Conditions, Trial, train_with_lag

HIGH = Limit(("second_moment",), "level", 1.0, above=True)


def watching(*limits: Limit) -> Alarm:
    """An alarm with these limits; the forecast is silent for its loss."""
    return Alarm(LearnerConfig(loss="grpo"), limits=limits)


def rings(alarm: Alarm, values: list[float], name: str = "second_moment") -> list[int]:
    """The steps at which it says something, of steps with these values."""
    return [step for step, value in enumerate(values, start=1) if alarm.note({name: value})]


def test_one_step_beyond_the_bound_is_not_enough_and_staying_there_is():
    assert rings(watching(HIGH), [0.0, 2.0, 0.0, 0.0]) == []
    assert rings(watching(HIGH), [0.0, 2.0, 2.0, 2.0]) == [3]


def test_it_is_said_once_and_again_only_after_the_value_was_within_the_bound():
    calm = 6 * [0.0]
    assert rings(watching(HIGH), [*calm, *(6 * [3.0]), *calm, *(6 * [3.0])]) == [8, 19]


def test_any_of_several_limits_rings_and_one_whose_diagnostic_the_loss_lacks_never_does():
    alarm = watching(Limit(("clip_fraction_low", "clip_fraction_high"), "level", 0.1, above=True), HIGH)
    assert alarm.note({"second_moment": 0.5}) is None
    assert "second moment is 2.2, above 1" in (alarm.note({"second_moment": 5.5}) or "")


def test_the_sentence_says_what_was_read_and_what_to_change():
    said = watching(Limit(("entropy",), "fall", 0.5, above=False))
    assert said.note({"entropy": 3.0}) is None
    sentence = said.note({"entropy": -3.0})
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


EMBEDDED = LearnerConfig(learning_rate=RATE)
STALE = {"lag_mean": 2.0, "lag_max": 2.0}


def said_by(config: LearnerConfig, lag: int) -> dict[int, str]:
    """What the alarm of a run says, by step, of steps of which all but the first are stale."""
    alarm = Alarm(config, lag)
    said = {step: alarm.note(STALE if step > 1 else {"lag_max": 0.0}) for step in range(1, 20)}
    return {step: sentence for step, sentence in said.items() if sentence}


def test_a_lag_is_compared_by_the_cube_of_the_learning_rate():
    assert alike(8, RATE) == 8
    assert alike(8, RATE / 2) == 1
    assert alike(0, RATE) == 0


@pytest.mark.parametrize("loss", sorted(BEARABLE))
def test_the_forecast_rings_with_the_first_stale_batch_where_its_loss_bears_less_and_is_silent_where_it_bears_more(
    loss,
):
    for factor, expected in ((1.03, [2]), (0.97, [])):
        rate = RATE * (factor * BEARABLE[loss] / 8) ** (1 / 3)
        said = said_by(replace(EMBEDDED, loss=loss, learning_rate=rate), 8)
        assert list(said) == expected
        for sentence in said.values():
            assert (
                f"the lag that --max-lag allows, 8, is like one of {factor * BEARABLE[loss]:.2g} at a learning rate of 0.0004, "
                f"and in recorded runs of the embedded policy --loss {loss} fell from {BEARABLE[loss]:g} on"
            ) in sentence
            assert "lower --learning-rate or --max-lag" in sentence


def test_what_was_foretold_is_said_again_by_the_diagnostic_when_it_comes():
    alarm = Alarm(replace(EMBEDDED, loss="reinforce"), max_lag=8)
    steps = [STALE | {"episode_sample_size": 1.0 if step < 6 else 0.01} for step in range(1, 15)]
    said = {step: alarm.note(metrics) for step, metrics in enumerate(steps, start=1)}
    (first, foretold), (second, diagnosed) = [(step, text) for step, text in said.items() if text]
    assert first == 1 and "--max-lag allows" in str(foretold)
    assert 6 < second < 12 and "about to collapse" in str(diagnosed)


def test_a_loss_that_stops_each_token_or_episode_bears_any_lag():
    assert said_by(replace(EMBEDDED, loss="grpo", learning_rate=4e-3), 32) == {}


@pytest.mark.parametrize("loss", ["reinforce", "tis", Config.learner.loss])
def test_fresh_data_never_ring_the_alarm_of_a_run(loss):
    sizes = {"effective_sample_size": 1.0, "episode_sample_size": 1.0}
    fresh = {"mismatch_kl": 0.0, "second_moment": 0.0, "lag_mean": 0, "lag_max": 0} | sizes
    alarm = Alarm(LearnerConfig(loss=loss), max_lag=0)
    assert [alarm.note(fresh) for _ in range(50)] == 50 * [None]
    assert LIMITS


@pytest.mark.parametrize(
    ("loss", "lag", "expected"), [("reinforce", 8, True), ("grpo", 8, False), ("reinforce", 0, False)]
)
def test_in_a_real_training_on_stale_data_it_rings_before_anything_is_lost(loss, lag, expected):
    config = LearnerConfig(loss=loss, learning_rate=4e-4, updates_per_batch=2)
    alarm, said = Alarm(config, lag), []
    train_with_lag(
        Trial(loss, lag, seed=3),
        Conditions(steps=3, prompts=3, samples=4, schedule_steps=60, held_out_tasks=1),
        lambda learner, metrics: said.append(alarm.note(metrics)),
    )
    assert any(said) == expected
