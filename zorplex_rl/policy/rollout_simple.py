"""Sample one episode, a token at a time: run the model on all so far, draw, run a called tool.

    LOOKUP[blip] -> 17 ⏎ [ANSWER] 17 <eos>
    ~~~~~~~~~~~~         ~~~~~~~~~~~~~~~~~     drawn, and recorded with its log-probability
                ^^^^^^^^                       fed: the tool's result

``rollout.py`` does so for many at once with a key-value cache: the same episodes, by a test.
"""

import random

import torch

from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.requests import Sampling
from zorplex_rl.policy.tokenizer import decode_text, encode_prompt, encode_text
from zorplex_rl.policy.tool_loop import Tool
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.parser import answer_is_complete, find_call, format_result


@torch.inference_mode()
def rollout_simple(policy: Policy, task: Task, execute: Tool, sampling: Sampling, seed: int = 0) -> Episode:
    """Sample one episode of ``task``. ``execute(task, call)`` runs a tool; returns text."""
    rng, prompt = random.Random(seed), encode_prompt(policy.tokenizer, task)
    ids, sampled, logprobs, turns = list[int](), list[bool](), list[float](), list[Turn]()
    start, text = 0, ""
    finish: Finish | None = None
    while not finish and len(ids) < sampling.max_tokens:
        logits = policy.model(torch.tensor([prompt + ids])).logits[0, -1].float()
        token, logprob = draw(logits, sampling.temperature, rng)
        ids, sampled, logprobs = [*ids, token], [*sampled, True], [*logprobs, logprob]
        text = decode_text(policy.tokenizer, ids[start:], policy.eos_ids)
        if token in policy.eos_ids:
            finish = "eos"
        elif call := find_call(text):
            finish = "turns" if len(turns) + 1 == sampling.max_turns else None
            fed = [] if finish else encode_text(policy.tokenizer, format_result(execute(task, call)))
            fed = fed[: sampling.max_tokens - len(ids)]
            result = decode_text(policy.tokenizer, fed, policy.eos_ids) or None
            turns.append(Turn(text, start, len(ids), str(call), result))
            ids, sampled, logprobs = ids + fed, sampled + [False] * len(fed), logprobs + [0.0] * len(fed)
            start = len(ids)
        elif any(answer_is_complete(line + "\n") for line in text.split("\n")[:-1]):
            finish = "answer"
    if start < len(ids):
        turns.append(Turn(text, start, len(ids)))
    return Episode(task, prompt, ids, sampled, logprobs, turns, finish or "tokens", seed)


def draw(logits: torch.Tensor, temperature: float, rng: random.Random) -> tuple[int, float]:
    """Draw a token from ``logits`` [V], the likeliest at temperature 0. Returns it, and log π."""
    if temperature == 0:
        return int(logits.argmax()), float(torch.log_softmax(logits, -1).max())
    logprobs = torch.log_softmax(logits / temperature, -1)
    # Inverse transform sampling: the first token with a cumulative probability above the draw.
    cumulated = logprobs.exp().cumsum(-1)
    token = int(torch.searchsorted(cumulated, rng.random() * cumulated[-1], right=True))
    return token, float(logprobs[token])
