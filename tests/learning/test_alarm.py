"""A run that looks like those that collapsed says so, once, and what to change."""

from __future__ import annotations

import math

import pytest

from zorplex_rl.learning.alarm import LIMITS, Alarm, Limit, Smoothed

HIGH = Limit(("second_moment",), "level", 1.0, above=True)


def rings(alarm: Alarm, values: list[float], name: str = "second_moment") -> list[int]:
    """The steps at which it says something, of steps with these values."""
    return [step for step, value in enumerate(values, start=1) if alarm.note({name: value})]


def test_one_step_beyond_the_bound_is_not_enough_and_staying_there_is():
    assert rings(Alarm([HIGH]), [0.0, 2.0, 0.0, 0.0]) == []
    assert rings(Alarm([HIGH]), [0.0, 2.0, 2.0, 2.0]) == [3]


def test_it_is_said_once_and_again_only_after_the_value_was_within_the_bound():
    calm = 6 * [0.0]
    assert rings(Alarm([HIGH]), [*calm, *(6 * [3.0]), *calm, *(6 * [3.0])]) == [8, 19]


def test_any_of_several_limits_rings_and_one_whose_diagnostic_the_loss_lacks_never_does():
    alarm = Alarm([Limit(("clip_fraction_low", "clip_fraction_high"), "level", 0.1, above=True), HIGH])
    assert alarm.note({"second_moment": 0.5}) is None
    assert "second moment is 2.2, above 1" in (alarm.note({"second_moment": 5.5}) or "")


def test_the_sentence_says_what_was_read_and_what_to_change():
    said = Alarm([Limit(("entropy",), "fall", 0.5, above=False)])
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


def test_fresh_data_never_ring_the_alarm_of_a_run():
    fresh = {"mismatch_kl": 0.0, "second_moment": 0.0, "effective_sample_size": 1.0, "episode_sample_size": 1.0}
    alarm = Alarm(LIMITS)
    assert [alarm.note(fresh) for _ in range(50)] == 50 * [None]
