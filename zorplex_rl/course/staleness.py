"""Measure the cost of stale data: train on what the weights of ``lag`` versions ago sampled.

    trained         0  1  2  3  4  5 …
    sampled with    0  0  0  1  2  3 …      at lag 2

The first ``lag`` steps train on data of version 0, so the mean lag of a trial is below its ``lag``:
5.2 at lag 8 in 13 steps. On a CPU with one number of threads a trial gives the same result again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch

from zorplex_rl.config import Config, Difficulty, LearnerConfig, LossName
from zorplex_rl.learning.advantages import group_relative, mean_relative
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.requests import EVALUATION_SEED, Sampling
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import accuracy


@dataclass(frozen=True, slots=True)
class Conditions:
    """The settings that all trials of a study share; the trainer's number type is float32."""

    policy: str = "embedded"
    device: str = "cpu"
    task: str = "compositional"
    difficulty: Difficulty = "easy"
    steps: int = 20
    schedule_steps: int = 0
    """The step at which the learning rate is lowest; 0: the last one."""
    prompts: int = 6
    samples: int = 6
    """Samples of each of a batch's prompts."""
    updates_per_batch: int = 2
    learning_rate: float = 4e-4
    """Twice a run's, so that few steps show an effect. It falls to a tenth."""
    warmup_steps: int = LearnerConfig.warmup_steps
    max_tokens: int = Config.max_tokens
    held_out_tasks: int = 200
    sampler_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a study: a loss, with ``advantages_of``, how stale its data are, a seed."""

    loss: LossName
    lag: int
    """The largest lag, in versions."""
    seed: int


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial: held-out accuracy after the last step, mean lag of all episodes."""

    trial: Trial
    accuracy: float
    mean_lag: float


def train_with_lag(
    trial: Trial,
    conditions: Conditions,
    watch: Callable[[Learner, Diagnostics], None] = lambda learner, metrics: None,
    spoil: Callable[[list[Episode]], None] = lambda episodes: None,
) -> TrialResult:
    """Train on data that are ``trial.lag`` versions old, at first of version 0. ``watch`` is called
    after each step with the learner and the step's diagnostics; ``spoil`` before it, with its
    episodes, to plant a fault in them."""
    learner = fresh_learner(trial, conditions)
    sampler = load_policy(conditions.policy, conditions.device, conditions.sampler_dtype)
    environment = Zorplex(trial.seed)
    newest = deque([(0, weights_of(learner.policy))], maxlen=trial.lag + 1)
    metrics = []
    for step in range(conditions.steps):
        version, weights = newest[0]
        sampler.model.load_state_dict(weights)
        episodes = sample_batch(sampler, environment, step, trial.seed, conditions, version)
        spoil(episodes)
        metrics.append(
            learner.step(episodes, advantages_of(episodes, conditions.samples, trial.loss))
        )
        newest.append((learner.version, weights_of(learner.policy)))
        watch(learner, metrics[-1])
    accuracy = held_out_accuracy(learner.policy, environment, conditions)
    return TrialResult(trial, accuracy, fmean(row["lag_mean"] for row in metrics))


def fresh_learner(trial: Trial, conditions: Conditions) -> Learner:
    """Return a learner at version 0 with the loss of ``trial``."""
    config = LearnerConfig(
        loss=trial.loss,
        learning_rate=conditions.learning_rate,
        warmup_steps=conditions.warmup_steps,
        updates_per_batch=conditions.updates_per_batch,
    )
    steps = conditions.schedule_steps or conditions.steps
    return Learner(load_policy(conditions.policy, conditions.device), config, steps)


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    """Return a copy of ``policy``'s weights."""
    return {name: tensor.detach().clone() for name, tensor in policy.model.state_dict().items()}


def sample_batch(
    policy: Policy,
    environment: Zorplex,
    step: int,
    seed: int,
    conditions: Conditions,
    version: int = 0,
) -> list[Episode]:
    """Sample and score the episodes of a step, a prompt's samples side by side."""
    tasks = environment.tasks(
        kinds_of(conditions.task, conditions.difficulty),
        conditions.prompts,
        start=step * conditions.prompts,
    )
    copies = [task for task in tasks for _ in range(conditions.samples)]
    first = (seed * 1_009 + step) * len(copies)
    return play(
        policy, environment, copies, first, Sampling(max_tokens=conditions.max_tokens), version
    )


def advantages_of(episodes: list[Episode], samples: int, loss: LossName = "grpo") -> list[float]:
    """Return group-relative advantages for any ``loss``, so that a study compares only the losses;
    but those of maxrl, of which they are all, for it."""
    rewards = [episode.scored.reward for episode in episodes]
    estimate = mean_relative if loss == "maxrl" else group_relative
    groups = [rewards[start : start + samples] for start in range(0, len(rewards), samples)]
    return [advantage for group in estimate(groups) for advantage in group]


def held_out_accuracy(policy: Policy, environment: Zorplex, conditions: Conditions) -> float:
    """Sample one episode of each held-out task. Returns the share of correct ones."""
    tasks = environment.tasks(
        kinds_of(conditions.task, conditions.difficulty), conditions.held_out_tasks, "held_out"
    )
    return accuracy(
        play(
            policy, environment, tasks, EVALUATION_SEED, Sampling(max_tokens=conditions.max_tokens)
        )
    )
