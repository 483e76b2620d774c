"""The microscope: what is arithmetic and what is age in the ratio of a token."""

from __future__ import annotations

import copy

import pytest
import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.course.microscope import factors
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

ENVIRONMENT = Zorplex(0)


def requests(count=2):
    tasks = ENVIRONMENT.tasks(("simple:easy", "compositional:easy"), 2, "train")
    return [
        RolloutRequest(task, 10 * g + i, g) for g, task in enumerate(tasks) for i in range(count)
    ]


@pytest.fixture(scope="module")
def episodes(embedded):
    """Sampled in bfloat16, with the weights of ``embedded``."""
    return rollout(
        load_policy("embedded", dtype="bfloat16"), requests(), ENVIRONMENT.execute, Sampling()
    )


@pytest.fixture(scope="module")
def later(embedded, episodes):
    """The policy after a large step."""
    policy = Policy(
        copy.deepcopy(embedded.model), embedded.tokenizer, embedded.name, embedded.eos_ids
    )
    Learner(policy, LearnerConfig(learning_rate=1e-3, warmup_steps=1)).step(
        episodes, [1.0, -1.0, 1.0, -1.0]
    )
    return policy


def test_the_two_factors_multiply_to_the_ratio_of_the_present_policy_to_the_sampler(
    embedded, later, episodes
):
    found = factors(episodes, embedded, later)
    present = response_logprobs(later, episodes)
    whole = [
        (new - old, sampled)
        for e, row in zip(episodes, present, strict=True)
        for new, old, sampled in zip(row, e.logprobs, e.sampled, strict=True)
    ]
    expected = torch.tensor(
        [apart for apart, sampled in whole if sampled], dtype=torch.float64
    ).exp()
    torch.testing.assert_close(
        found.numerics.exp() * found.staleness.exp(), expected, atol=0, rtol=1e-6
    )
    # Neither is the whole.
    assert found.numerics.abs().max() > 1e-3 and found.staleness.abs().max() > 1e-2


def test_the_same_weights_have_no_staleness_whatever_their_sampler_computed_in(embedded, episodes):
    found = factors(episodes, embedded)
    assert found.staleness.abs().max() == 0 < found.numerics.abs().max()
