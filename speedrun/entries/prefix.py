"""As temperature.py, and each token is compared with the samples that are the same up to it: they share its luck."""

import math
from statistics import pstdev

import torch

from zorplex_rl.learning.advantages import by_prefix
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import schedule, token_logprobs
from zorplex_rl.learning.train_simple import play
from zorplex_rl.task.environment import Zorplex

PROMPTS = 8
GROUP_SIZE = 8
STEPS = 40
LEARNING_RATE = 5e-4
WARMUP_STEPS = 3
SHARPENING = 0.2
SHARPEN_FROM = 32


def train(policy, tasks, seed):
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    gain = policy.model.base_model.norm.weight
    mean = 0.0
    square = 0.0
    for step in range(STEPS):
        batch = [tasks[(PROMPTS * step + number) % len(tasks)] for number in range(PROMPTS)]
        copies = [task for task in batch for _ in range(GROUP_SIZE)]
        episodes = play(policy, Zorplex(), copies, seed + step * len(copies))

        advantages = []
        for start in range(0, len(episodes), GROUP_SIZE):
            advantages += advantages_of(episodes[start : start + GROUP_SIZE])
        teaching = [(e, values) for e, values in zip(episodes, advantages, strict=True) if any(values)]

        tokens = sum(sum(episode.sampled) for episode in episodes)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for part in collate([episode for episode, _ in teaching], [values for _, values in teaching], 8192):
            logp, _ = token_logprobs(policy, part)
            loss = -(part.advantage * logp * part.mask).sum() / tokens
            loss.backward()

        # The logits are linear in the gain of the last norm: the gradient of log(scale) is Σ gain · gradient.
        slope = float((gain.detach() * gain.grad).sum())
        mean = 0.9 * mean + 0.1 * slope
        square = 0.95 * square + 0.05 * slope**2
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * schedule(step, WARMUP_STEPS, STEPS)
        optimizer.step()
        if step >= SHARPEN_FROM:
            # A step of Adam on log(scale).
            move = mean / (1 - 0.9 ** (step + 1)) / (math.sqrt(square / (1 - 0.95 ** (step + 1))) + 1e-12)
            gain.data.mul_(math.exp(-SHARPENING * move))
        yield


def advantages_of(group):
    """Return a list for each episode: at each token its reward minus the mean of those that begin alike."""
    rewards = [episode.scored.reward for episode in group]
    spread = pstdev(rewards) + 0.1
    return by_prefix(group, [reward / spread for reward in rewards])
