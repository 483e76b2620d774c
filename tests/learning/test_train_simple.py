"""The simplest trainer learns, and takes the very step that the learner takes."""

import copy

import pytest
import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.train_simple import GREEDY, accuracy, compare, play, policy_gradient, train
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.task.environment import Zorplex, kinds_of

pytestmark = pytest.mark.slow

ENV, KINDS = Zorplex(seed=0), kinds_of("compositional")


@pytest.mark.long
def test_it_goes_from_half_right_at_most_to_95_percent_on_held_out_tasks():
    policy, held_out = load_policy(), ENV.tasks(KINDS, 100, "held_out")
    assert accuracy(play(policy, ENV, held_out, seed=0, sampling=GREEDY)) <= 0.50
    steps = list(train(policy, ENV, KINDS, steps=6, prompts=4))
    assert [step.number for step in steps] == list(range(1, 7))
    assert accuracy(play(policy, ENV, held_out, seed=0, sampling=GREEDY)) >= 0.95


def test_advantages_are_those_of_the_package():
    for rewards in ([1.2, 0.0, 0.2, 1.2], [1.0, 1.0], [0.0, 1.0, -0.4]):
        assert compare(rewards) == pytest.approx(group_relative([rewards])[0])


def test_the_gradient_is_that_of_the_learner_on_the_same_episodes(monkeypatch):
    monkeypatch.setattr("zorplex_rl.learning.learner.MAX_GRAD_NORM", 1e9)
    policy = load_policy()
    tasks = [task for task in ENV.tasks(KINDS, 4) for _ in range(4)]
    episodes = play(policy, ENV, tasks, seed=0)
    rewards = [episode.score.reward for episode in episodes]
    advantages = [a for start in range(0, 16, 4) for a in compare(rewards[start : start + 4])]
    policy_gradient(policy, episodes, advantages).backward()
    simple = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    clever = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.name, policy.eos_ids)
    clever.model.zero_grad()
    learner = Learner(clever, LearnerConfig(loss="reinforce", token_budget=400))
    found: dict[str, torch.Tensor] = {}
    learner.optimizer.step = lambda learning_rate: found.update(
        {name: p.grad.clone() for name, p in clever.model.named_parameters()}
    )
    learner.step(episodes, advantages)
    for name, gradient in simple.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)
