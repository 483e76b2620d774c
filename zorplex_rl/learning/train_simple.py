"""Train a language model with RL in one process and one file: sample, score, compare, step.

    tasks ──► sample G episodes of each ──► score ──► better than its group? ──► push those tokens up, the others down
                       ▲                                                                │
                       └──────────────────── the same weights ◄─────────────────────────┘

    python -m zorplex_rl.learning.train_simple          trains the embedded policy, and prints a line for each step

What it deliberately does not do: run parts in parallel, run a shared prompt only once in a training
step, split a batch that is too large for the memory, clip ratios or correct for stale data, survive
a crash. ``learner.py`` and ``training/`` do, and learn the same (``test_train_simple.py``).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.config import LearnerConfig
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.requests import RolloutRequest, Sampling
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.task.environment import Environment, Zorplex, kinds_of
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import accuracy, score

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a training step: mean reward, accuracy, loss, and the seconds it took."""

    number: int
    reward: float
    accuracy: float
    loss: float
    seconds: float


def train(
    policy: Policy,
    environment: Zorplex,
    kinds: tuple[str, ...],
    steps: int = 20,
    prompts: int = 8,
    group_size: int = 8,
    learning_rate: float = LearnerConfig.learning_rate,
    seed: int = 0,
) -> Iterator[Step]:
    """Train ``policy`` in place on ``prompts`` × ``group_size`` episodes a step. Yields results."""
    optimizer = torch.optim.AdamW(policy.model.parameters(), learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        began = time.monotonic()
        tasks = environment.tasks(kinds, prompts, start=step * prompts)
        copies = [task for task in tasks for _ in range(group_size)]
        episodes = play(policy, environment, copies, seed=seed + step * len(copies))
        rewards = [episode.scored.reward for episode in episodes]
        groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
        advantages = [advantage for group in groups for advantage in compare(group)]
        loss = policy_gradient(policy, episodes, advantages)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        yield Step(step + 1, fmean(rewards), accuracy(episodes), loss.item(), time.monotonic() - began)


def play(
    policy: Policy,
    environment: Environment,
    tasks: list[Task],
    seed: int,
    sampling: Sampling = Sampling(),
    version: int = 0,
) -> list[Episode]:
    """Sample an episode for each of ``tasks`` with weights ``version``. Returns them, scored."""
    requests = [RolloutRequest(task, seed + index) for index, task in enumerate(tasks)]
    episodes = rollout(policy, requests, environment.execute, sampling, version)
    for episode in episodes:
        episode.score = score(episode)
    return episodes


def compare(rewards: list[float]) -> list[float]:
    """Return each reward, standardised within its group (GRPO, Shao et al. 2024, 4.1.2)."""
    mean, deviation = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def policy_gradient(policy: Policy, episodes: list[Episode], advantages: list[float]) -> Tensor:
    """Return −mean of A · log π over the sampled tokens of ``episodes`` (Williams 1992, eq. 4)."""
    ids = pad_sequence([torch.tensor(e.prompt_ids + e.token_ids) for e in episodes], batch_first=True).to(
        policy.model.device
    )
    mask = pad_sequence([torch.tensor([False] * len(e.prompt_ids) + e.sampled) for e in episodes], batch_first=True)
    mask = mask.to(policy.model.device)
    # The logits [B, T, V] are those of the next token. Attention hides the padding on the right.
    logits = policy.model(ids[:, :-1]).logits
    logp = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    weighted = torch.tensor(advantages, device=policy.model.device)[:, None] * logp * mask[:, 1:]
    return -weighted.sum() / mask.sum()


if __name__ == "__main__":
    torch.set_num_threads(1)
    policy, environment = load_policy(), Zorplex(seed=0)
    kinds = kinds_of("compositional")
    held_out = environment.tasks(kinds, 200, "held_out")
    print(f"held out, greedy: {accuracy(play(policy, environment, held_out, 0, GREEDY)):.1%}")
    for step in train(policy, environment, kinds):
        print(
            f"step {step.number:2}   reward {step.reward:5.2f}   accuracy {step.accuracy:6.1%}   {step.seconds:.1f} s"
        )
    print(f"held out, greedy: {accuracy(play(policy, environment, held_out, 0, GREEDY)):.1%}")
