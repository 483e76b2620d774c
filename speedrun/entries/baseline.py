"""The loop of ``learning/train_simple.py`` with the settings that ``zorplex-rl train`` has by default.

Every entry is this loop. It changes the settings, or replaces one of the loop's two functions:

    compute_gradient(step)     samples episodes, compares them (``advantages``), leaves the loss's gradient
    update_weights(step)       takes the optimizer's step
"""

import torch

from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import schedule, token_logprobs
from zorplex_rl.learning.train_simple import play
from zorplex_rl.task.environment import Zorplex

PROMPTS = 8
GROUP_SIZE = 8
TOKEN_BUDGET = 8192


class Baseline:
    steps = 120
    learning_rate = 2e-4
    warmup_steps = 5

    def __init__(self, policy, tasks, seed):
        self.policy = policy
        self.tasks = tasks
        self.seed = seed
        self.parameters = list(policy.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )

    def train(self):
        """Train the policy in place. Yields after each step."""
        for step in range(self.steps):
            self.compute_gradient(step)
            self.update_weights(step)
            yield

    def compute_gradient(self, step):
        """Leave the gradient of the step's loss in the parameters."""
        episodes = self.sample(step)
        tokens = count_sampled(episodes)
        self.backward(episodes, divisor=tokens)

    def update_weights(self, step):
        """Change the weights by their gradient."""
        share = schedule(step, self.warmup_steps, self.steps)
        self.optimizer.param_groups[0]["lr"] = share * self.learning_rate
        torch.nn.utils.clip_grad_norm_(self.parameters, max_norm=1.0)
        self.optimizer.step()

    def advantages(self, group):
        """Compare the episodes of a group. Returns for each a list: an advantage for every token."""
        rewards = [episode.scored.reward for episode in group]
        (values,) = group_relative([rewards])
        advantages = []
        for episode, value in zip(group, values, strict=True):
            tokens = len(episode.token_ids)
            advantages.append([value] * tokens)
        return advantages

    def sample(self, step, rank=0, processes=1):
        """Sample the groups of a step: those that process ``rank`` of ``processes`` has to sample."""
        first = PROMPTS * step
        copies = []
        for number in range(first + rank, first + PROMPTS, processes):
            task = self.tasks[number % len(self.tasks)]
            copies.extend([task] * GROUP_SIZE)
        earlier = (processes * step + rank) * len(copies)
        return play(
            self.policy,
            environment=Zorplex(),
            tasks=copies,
            seed=self.seed + earlier,
        )

    def backward(self, episodes, divisor):
        """Compute the gradient of −Σ advantage · log π / ``divisor``."""
        teaching = []
        advantages = []
        for start in range(0, len(episodes), GROUP_SIZE):
            group = episodes[start : start + GROUP_SIZE]
            compared = self.advantages(group)
            for episode, values in zip(group, compared, strict=True):
                # Without any advantage there is no gradient: the model need not read the episode.
                if any(values):
                    teaching.append(episode)
                    advantages.append(values)

        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        for batch in collate(teaching, advantages, TOKEN_BUDGET):
            logp, _ = token_logprobs(self.policy, batch)
            pushed = batch.advantage * logp * batch.mask
            loss = -pushed.sum() / divisor
            loss.backward()


def count_sampled(episodes):
    """Return how many tokens of ``episodes`` the policy has sampled."""
    return sum(sum(episode.sampled) for episode in episodes)


def train(policy, tasks, seed):
    return Baseline(policy, tasks, seed).train()
