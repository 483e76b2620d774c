"""The loop of ``learning/train_simple.py`` with the settings that ``zorplex-rl train`` has by default."""

import torch

from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import schedule, token_logprobs
from zorplex_rl.learning.train_simple import play
from zorplex_rl.task.environment import Zorplex

PROMPTS = 8
GROUP_SIZE = 8


def train(policy, tasks, seed, steps=120, learning_rate=2e-4, warmup_steps=5):
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        batch = [tasks[(PROMPTS * step + number) % len(tasks)] for number in range(PROMPTS)]
        copies = [task for task in batch for _ in range(GROUP_SIZE)]
        episodes = play(policy, Zorplex(), copies, seed + step * len(copies))

        rewards = [episode.scored.reward for episode in episodes]
        groups = [rewards[start : start + GROUP_SIZE] for start in range(0, len(rewards), GROUP_SIZE)]
        advantages = [advantage for group in group_relative(groups) for advantage in group]
        # An episode whose group has equal rewards teaches nothing, and need not run again.
        teaching = [(episode, advantage) for episode, advantage in zip(episodes, advantages, strict=True) if advantage]

        tokens = sum(sum(episode.sampled) for episode in episodes)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for part in collate([episode for episode, _ in teaching], [advantage for _, advantage in teaching], 8192):
            logp, _ = token_logprobs(policy, part)
            loss = -(part.advantage[:, None] * logp * part.mask).sum() / tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.param_groups[0]["lr"] = learning_rate * schedule(step, warmup_steps, steps)
        optimizer.step()
        yield
