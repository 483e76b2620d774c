"""The simplest rollout is the specification of the fast one: the same seeds give the same
episodes."""

import pytest

from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.rollout_simple import rollout_simple
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.specs import TASK_SPECS

pytestmark = pytest.mark.slow

ENV = Zorplex(seed=0)


def same(found: Episode, expected: Episode) -> None:
    """Assert that two episodes hold the same tokens, turns and end, and log-probs within 1e-4."""
    assert (found.prompt_ids, found.token_ids, found.sampled) == (
        expected.prompt_ids,
        expected.token_ids,
        expected.sampled,
    )
    assert (found.turns, found.finish, found.seed) == (
        expected.turns,
        expected.finish,
        expected.seed,
    )
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", TASK_SPECS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, pytest.param(0.7, marks=pytest.mark.long)])
def test_both_rollouts_of_the_embedded_policy_give_the_same_episodes(embedded, kind, temperature):
    sampling = Sampling(temperature, max_tokens=64, max_turns=4, slots=4)
    tasks = ENV.tasks((kind,), 6)
    for seed, found in enumerate(
        rollout(
            embedded, [RolloutRequest(t, s) for s, t in enumerate(tasks)], ENV.execute, sampling
        )
    ):
        same(found, rollout_simple(embedded, tasks[seed], ENV.execute, sampling, seed))


@pytest.mark.parametrize("kind", TASK_SPECS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_rollouts_of_two_architectures_give_the_same_episodes_whatever_ends_them(
    babbling, kind, temperature
):
    sampling = Sampling(temperature, max_tokens=40, max_turns=3, slots=4)
    tasks = ENV.tasks((kind,), 10)
    for seed, found in enumerate(
        rollout(
            babbling, [RolloutRequest(t, s) for s, t in enumerate(tasks)], ENV.execute, sampling
        )
    ):
        same(found, rollout_simple(babbling, tasks[seed], ENV.execute, sampling, seed))
