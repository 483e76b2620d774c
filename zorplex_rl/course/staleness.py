"""Sample, compare and judge, for studies of training on stale data: on what the weights of ``lag`` versions ago sampled."""

from dataclasses import dataclass

import torch

from zorplex_rl.config import Config, Difficulty, LearnerConfig
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy
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


def advantages_of(episodes: list[Episode], samples: int) -> list[float]:
    """Return group-relative advantages for any loss, so that a study compares only the losses."""
    rewards = [episode.scored.reward for episode in episodes]
    groups = [rewards[start : start + samples] for start in range(0, len(rewards), samples)]
    return [advantage for group in group_relative(groups) for advantage in group]


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
