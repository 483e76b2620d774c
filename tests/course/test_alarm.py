"""A run that looks like those that collapsed rings, once for each reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zorplex_rl.config import LearnerConfig
from zorplex_rl.course.alarm import BEARABLE, RATE, SMALLEST_SAMPLE_SIZE, Alarm, alike
from zorplex_rl.course.staleness import Conditions, Trial, train_with_lag

EMBEDDED = LearnerConfig(learning_rate=RATE)
STALE = {"lag_mean": 2.0, "lag_max": 2.0}
HALF = SMALLEST_SAMPLE_SIZE / 2


def rings(config: LearnerConfig, lag: int, sizes: list[float]) -> dict[int, str]:
    """What rings, by step, in steps with these sample sizes, of which all but the first are stale."""
    alarm = Alarm(config, lag)
    steps = [
        (STALE if step else {"lag_max": 0.0}) | {"episode_sample_size": size}
        for step, size in enumerate(sizes)
    ]
    return {
        step: part for step, metrics in enumerate(steps, start=1) if (part := alarm.note(metrics))
    }


def test_one_step_beyond_the_bound_is_not_enough_and_staying_there_is():
    assert rings(EMBEDDED, 8, [1.0, HALF, 1.0, 1.0]) == {}
    assert list(rings(EMBEDDED, 8, [1.0, *(12 * [HALF])]).values()) == ["diagnostic"]


def test_it_rings_again_only_after_the_value_was_within_the_bound():
    sizes = 12 * [HALF]
    assert len(rings(EMBEDDED, 8, [1.0, *sizes, *(3 * [1.0]), *sizes])) == 2


def test_a_lag_is_compared_by_the_cube_of_the_learning_rate():
    assert [alike(8, RATE), alike(8, RATE / 2), alike(0, RATE)] == [8, 1, 0]


@pytest.mark.parametrize("loss", sorted(BEARABLE))
def test_the_forecast_rings_with_the_first_stale_batch_where_its_loss_bears_less(loss):
    for factor, expected in ((1.03, {2: "forecast"}), (0.97, {})):
        rate = RATE * (factor * BEARABLE[loss] / 8) ** (1 / 3)
        assert rings(replace(EMBEDDED, loss=loss, learning_rate=rate), 8, 20 * [1.0]) == expected


def test_what_was_foretold_is_said_again_by_the_diagnostic_when_it_comes():
    found = rings(replace(EMBEDDED, loss="reinforce"), 8, [*(5 * [1.0]), *(10 * [0.01])])
    assert list(found.values()) == ["forecast", "diagnostic"] and min(found) == 2


def test_a_loss_that_stops_each_token_bears_any_lag_and_fresh_data_never_ring():
    assert rings(replace(EMBEDDED, learning_rate=4e-3), 32, 20 * [1.0]) == {}
    alarm = Alarm(replace(EMBEDDED, loss="reinforce"), max_lag=8)
    assert [alarm.note({"lag_max": 0, "episode_sample_size": 1.0}) for _ in range(50)] == 50 * [
        None
    ]


@pytest.mark.parametrize(
    ("loss", "lag", "expected"),
    [("reinforce", 8, True), ("grpo", 8, False), ("reinforce", 0, False)],
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
