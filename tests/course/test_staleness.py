"""The study of staleness: data as old as was asked for as soon as they can be, the same outcome
every time, losses that agree where they have to."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from test_recorded_study import Trial
from test_recorded_study import benchmark as staleness

from zorplex_rl.course.staleness import Conditions
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

fresh_learner, train_with_lag = staleness.fresh_learner, staleness.train_with_lag

SHORT = Conditions(
    task="simple",
    steps=4,
    prompts=2,
    samples=4,
    max_tokens=48,
    held_out_tasks=8,
    learning_rate=3e-3,
)


@pytest.fixture
def sampled_with(monkeypatch):
    """For each training step, how many of the versions before it have the weights that its data
    were sampled with."""
    versions, found = [], []
    weights_of, sample_batch = staleness.weights_of, staleness.sample_batch

    def remember(policy):
        versions.append(weights_of(policy))
        return versions[-1]

    def compare(policy, *arguments):
        mine = weights_of(policy)
        same = [all(torch.equal(mine[name], theirs[name]) for name in mine) for theirs in versions]
        found.append([len(versions) - 1 - index for index, equal in enumerate(same) if equal])
        return sample_batch(policy, *arguments)

    monkeypatch.setattr(staleness, "weights_of", remember)
    monkeypatch.setattr(staleness, "sample_batch", compare)
    return found


@pytest.mark.parametrize(("lag", "lags"), [(0, [0, 0, 0, 0]), (2, [0, 1, 2, 2]), (8, [0, 1, 2, 3])])
def test_data_are_as_stale_as_asked_for_once_there_are_so_many_versions_and_a_trial_says_their_mean(
    lag, lags, sampled_with
):
    found = train_with_lag(Trial("grpo", lag, 0), SHORT)
    assert [min(step) for step in sampled_with] == lags
    assert found.mean_lag == pytest.approx(fmean(lags))


def test_a_study_may_ask_for_full_steps_from_the_first_one():
    full = fresh_learner(Trial("grpo", 0, 0), replace(SHORT, warmup_steps=0))
    assert full.config.warmup_steps == 0
    assert fresh_learner(Trial("grpo", 0, 0), SHORT).config.warmup_steps == 5


def test_only_stale_data_disagree_with_the_trainer():
    seen: dict[int, list[dict[str, float]]] = {0: [], 2: []}
    for lag, steps in seen.items():
        train_with_lag(
            Trial("tis", lag, 0), SHORT, lambda learner, metrics, steps=steps: steps.append(metrics)
        )
    fresh, stale = [max(step["max_logp_difference"] for step in steps) for steps in seen.values()]
    assert fresh < 1e-4 < stale
    fresh, stale = [min(step["effective_sample_size"] for step in steps) for steps in seen.values()]
    assert fresh > 0.9999 > stale


def test_a_study_may_take_hard_tasks():
    hard = staleness.sample_batch(
        staleness.load_policy(),
        Zorplex(0),
        0,
        0,
        replace(SHORT, task="compositional", difficulty="hard"),
    )
    assert {episode.task.difficulty for episode in hard} == {"hard"}


def test_a_trial_may_end_before_its_learning_rate_has_fallen():
    assert fresh_learner(Trial("grpo", 0, 0), replace(SHORT, schedule_steps=60)).decay_steps == 60
    assert fresh_learner(Trial("grpo", 0, 0), SHORT).decay_steps == SHORT.steps
