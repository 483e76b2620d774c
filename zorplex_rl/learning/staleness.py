"""What stale data cost: training on episodes that the weights of exactly ``lag`` versions ago have sampled. No actors, and nothing left to timing.

    trained         0  1  2  3  4  5 …
    sampled with    0  0  0  1  2  3 …      at lag 2

An asynchronous run is as stale as its timing makes it, and no two are alike. Here the lag is set, and the same trial gives the same outcome again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean

import torch

from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.learner import Learner, Learning
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import Request, Sampling, rollout
from zorplex_rl.task.curriculum import Zorplex, tier_of
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import score

EVALUATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all trials of a study have in common."""

    policy: str = "embedded"
    device: str = "cpu"
    task: str = "compositional"
    hints: bool = False
    steps: int = 20
    prompts: int = 6
    """In a training batch."""
    samples: int = 6
    """Of each prompt."""
    updates_per_batch: int = 2
    learning_rate: float = 4e-4
    """Twice that of a run, so that a few steps show what staleness does; it falls to a tenth at the last step."""
    max_tokens: int = Config.max_tokens
    held_out_tasks: int = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a study: a loss of ``losses.py``, always with group-relative advantages, and how stale its data are."""

    loss: str
    lag: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trial: accuracy on held-out tasks after the last step, sampled, and what its training data were worth."""

    trial: Trial
    accuracy: float
    effective_sample_size: float
    """Mean over the steps, at the first update of each."""
    max_logp_difference: float
    """The largest change of a sampled token's log-prob between sampling and training."""


def train_with_lag(trial: Trial, conditions: Conditions) -> Outcome:
    """Train on data that are exactly ``trial.lag`` versions old, or as old as they can be in the first steps."""
    learner, sampler = fresh_learner(trial, conditions), load_policy(conditions.policy, conditions.device)
    environment = Zorplex(trial.seed, conditions.hints)
    newest = deque([weights_of(learner.policy)], maxlen=trial.lag + 1)
    metrics = []
    for step in range(conditions.steps):
        sampler.model.load_state_dict(newest[0])
        episodes = sample_batch(sampler, environment, step, trial.seed, conditions)
        metrics.append(learner.step(episodes, advantages_of(episodes, conditions.samples)))
        newest.append(weights_of(learner.policy))
    return Outcome(
        trial,
        held_out_accuracy(learner.policy, environment, conditions),
        fmean(row["effective_sample_size"] for row in metrics),
        max(row["max_logp_difference"] for row in metrics),
    )


def fresh_learner(trial: Trial, conditions: Conditions) -> Learner:
    """A learner at version 0 that takes steps as ``trial`` says."""
    learning = Learning(
        loss=trial.loss,
        learning_rate=conditions.learning_rate,
        decay_steps=conditions.steps,
        updates_per_batch=conditions.updates_per_batch,
    )
    return Learner(load_policy(conditions.policy, conditions.device), learning)


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    """A copy of the present weights."""
    return {name: tensor.detach().clone() for name, tensor in policy.model.state_dict().items()}


def sample_batch(policy: Policy, environment: Zorplex, step: int, seed: int, conditions: Conditions) -> list[Episode]:
    """The scored episodes of training step ``step``, a prompt's samples side by side."""
    tasks = environment.tasks(tier_of(conditions.task), conditions.prompts, start=step * conditions.prompts)
    copies = [task for task in tasks for _ in range(conditions.samples)]
    first = (seed * 1_009 + step) * len(copies)
    return _play(policy, environment, copies, first, conditions.max_tokens)


def advantages_of(episodes: list[Episode], samples: int) -> list[float]:
    """Group-relative, whatever the loss: what a study compares is the losses alone."""
    rewards = [episode.score.reward for episode in episodes]
    groups = [rewards[start : start + samples] for start in range(0, len(rewards), samples)]
    return [advantage for group in group_relative(groups) for advantage in group]


def held_out_accuracy(policy: Policy, environment: Zorplex, conditions: Conditions) -> float:
    """The share of held-out tasks that one sampled episode each gets right."""
    tasks = environment.tasks(tier_of(conditions.task), conditions.held_out_tasks, "held_out")
    episodes = _play(policy, environment, tasks, EVALUATION_SEED, conditions.max_tokens)
    return fmean(episode.score.outcome == "success" for episode in episodes)


def _play(policy: Policy, environment: Zorplex, tasks: list[Task], first_seed: int, max_tokens: int) -> list[Episode]:
    requests = [Request(task, seed) for seed, task in enumerate(tasks, start=first_seed)]
    episodes = rollout(policy, requests, environment.execute, Sampling(max_tokens=max_tokens))
    for episode in episodes:
        episode.score = score(episode)
    return episodes
