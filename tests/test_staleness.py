"""The study of staleness: data of exactly the lag that was asked for, the same outcome every time, and losses that agree where they have to."""

from __future__ import annotations

import asyncio

import pytest
import torch

from zorplex_rl.learning import staleness
from zorplex_rl.learning.staleness import Conditions, Trial, train_with_lag

SHORT = Conditions(task="simple", steps=4, prompts=2, samples=4, max_tokens=48, held_out_tasks=8, learning_rate=3e-3)


@pytest.fixture
def sampled_with(monkeypatch):
    """For each training step, how many of the versions before it have the weights that its data were sampled with."""
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


@pytest.mark.parametrize(("lag", "lags"), [(0, [0, 0, 0, 0]), (2, [0, 1, 2, 2])])
def test_data_are_exactly_as_stale_as_asked_for_once_there_are_so_many_versions(lag, lags, sampled_with):
    train_with_lag(Trial("grpo", lag, 0), SHORT)
    assert [min(step) for step in sampled_with] == lags


def test_only_stale_data_disagree_with_the_trainer():
    fresh, stale = (train_with_lag(Trial("tis", lag, 0), SHORT) for lag in (0, 2))
    assert fresh.max_logp_difference < 1e-4 < stale.max_logp_difference
    assert fresh.effective_sample_size > 0.9999 > stale.effective_sample_size


def test_a_trial_in_a_process_of_its_own_has_the_outcome_that_it_has_here():
    from zorplex_rl.system.study import run_trials

    trials, reported = [Trial("grpo", 1, 0), Trial("reinforce", 1, 1)], []
    found = asyncio.run(run_trials(trials, SHORT, processes=1, on_outcome=reported.append))
    assert found == reported
    assert {outcome.trial: outcome for outcome in found} == {trial: train_with_lag(trial, SHORT) for trial in trials}
