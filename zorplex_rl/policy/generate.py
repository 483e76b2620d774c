"""Sample one episode of one task, and print it."""

from typing import TYPE_CHECKING

from zorplex_rl.policy.load import Policy, end_ids
from zorplex_rl.policy.rollout import (
    RolloutRequest,
    Sampling,
    rollout,
)
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import TaskSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def generate_with_tools(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    spec: TaskSpec,
    task: Task,
    device: str = "cpu",
    max_turns: int = 5,
    temperature: float = 0.0,
    max_tokens: int = 128,
    seed: int = 0,
) -> Episode:
    """Let ``model`` answer ``task`` with tools, greedily at ``temperature`` 0. Returns the scored episode."""
    model.to(device).eval()
    policy = Policy(model, tokenizer, "model", end_ids(model, tokenizer))
    sampling = Sampling(temperature, max_tokens, max_turns, slots=1)
    (episode,) = rollout(policy, [RolloutRequest(task, seed)], spec.execute, sampling)
    episode.score = score(episode)
    return episode


def print_result(episode: Episode) -> None:
    """Print an episode turn by turn: what the policy wrote, the tools' results, and the reward."""
    print(f"Question  {episode.task.question}    (expected {episode.task.answer})")
    for number, turn in enumerate(episode.turns, start=1):
        print(f"  turn {number}  {turn.text.rstrip()}")
        if turn.result is not None:
            print(f"    tool {turn.result.strip()}")
    result = episode.score or score(episode)
    parts = "  ".join(f"{name} {value:+.1f}" for name, value in result.parts.items())
    print(f"Outcome   {result.outcome}, answer {result.answer}    ", end="")
    print(f"reward {result.reward:.2f}  ({parts})")
