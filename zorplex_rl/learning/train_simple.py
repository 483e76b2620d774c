"""Train a language model with RL in one process and one file: sample, score, compare, step.

    tasks ──► sample G episodes of each ──► score ──► better than its group? ──► push those tokens up, the others down
                       ▲                                                                │
                       └──────────────────── the same weights ◄─────────────────────────┘

    python -m zorplex_rl.learning.train_simple          trains the embedded policy, and prints a line for each step

Deliberately left out: parts that run in parallel, running a shared prompt once, splitting a batch that
does not fit into memory, correcting for stale data, surviving a crash. ``learner.py`` and ``training/``
do all this, and learn the same (``test_train_simple.py``).
"""

import time
from collections.abc import Iterator
from statistics import fmean, pstdev
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.config import LearnerConfig
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.requests import RolloutRequest, Sampling
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.task.environment import Environment, Zorplex, kinds_of
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import accuracy, score

GREEDY = Sampling(temperature=0.0)


class Step(NamedTuple):
    """The result of a training step."""

    number: int
    reward: float
    """Mean over its episodes."""
    accuracy: float
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
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(
        parameters,
        learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.0,
    )
    for step in range(steps):
        began = time.monotonic()
        copies = []
        for task in environment.tasks(kinds, prompts, start=step * prompts):
            copies.extend([task] * group_size)
        episodes = play(policy, environment, copies, seed + step * len(copies))

        rewards = [episode.scored.reward for episode in episodes]
        advantages = []
        for start in range(0, len(rewards), group_size):
            advantages += compare(rewards[start : start + group_size])

        loss = policy_gradient(policy, episodes, advantages)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        yield Step(
            number=step + 1,
            reward=fmean(rewards),
            accuracy=accuracy(episodes),
            seconds=time.monotonic() - began,
        )


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
    episodes = rollout(
        policy,
        requests,
        environment.execute,
        sampling,
        version,
    )
    for episode in episodes:
        episode.score = score(episode)
    return episodes


def compare(rewards: list[float]) -> list[float]:
    """Return each reward, standardised within its group (GRPO, Shao et al. 2024, 4.1.2)."""
    mean = fmean(rewards)
    deviation = pstdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def policy_gradient(
    policy: Policy,
    episodes: list[Episode],
    advantages: list[float],
) -> torch.Tensor:
    """Return −mean of A · log π over the sampled tokens of ``episodes`` (Williams 1992, eq. 4)."""
    device = policy.model.device
    rows = []
    masks = []
    for episode in episodes:
        rows.append(torch.tensor(episode.prompt_ids + episode.token_ids))
        masks.append(torch.tensor([False] * len(episode.prompt_ids) + episode.sampled))
    # Both [B, T], padded on the right. Attention is causal, so no token sees the padding.
    ids = pad_sequence(rows, batch_first=True).to(device)
    mask = pad_sequence(masks, batch_first=True).to(device)

    # The logits [B, T − 1, V] at a position are those of the next token.
    logits = policy.model(ids[:, :-1]).logits
    logprobs = torch.log_softmax(logits.float(), -1)
    chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
    weights = torch.tensor(advantages, device=device)[:, None]
    weighted = weights * chosen * mask[:, 1:]
    return -weighted.sum() / mask.sum()


def main() -> None:
    torch.set_num_threads(1)
    policy = load_policy()
    environment = Zorplex(seed=0)
    kinds = kinds_of("compositional")
    held_out = environment.tasks(kinds, 200, "held_out")

    def evaluate() -> None:
        episodes = play(
            policy,
            environment,
            held_out,
            seed=0,
            sampling=GREEDY,
        )
        print(f"held out, greedy: {accuracy(episodes):.1%}")

    evaluate()
    for step in train(policy, environment, kinds):
        results = f"reward {step.reward:5.2f}   accuracy {step.accuracy:6.1%}"
        print(f"step {step.number:2}   {results}   {step.seconds:.1f} s")
    evaluate()


if __name__ == "__main__":
    main()
