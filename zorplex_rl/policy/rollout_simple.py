"""Sample one episode, a token at a time: run the model on everything so far, draw a token, and run the
tool if that completes a call.

    LOOKUP[blip] -> 17 ⏎ [ANSWER] 17 <eos>
    ~~~~~~~~~~~~         ~~~~~~~~~~~~~~~~~     drawn, and recorded with its log-probability
                ^^^^^^^^                       injected: the tool's result

``rollout.py`` samples many episodes at once, with a key-value cache. A test checks that both give the
same episodes.
"""

import random

import torch

from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.requests import Sampling
from zorplex_rl.policy.tokenizer import (
    decode_text,
    encode_prompt,
    encode_text,
)
from zorplex_rl.policy.tool_loop import Tool
from zorplex_rl.task.episode import Episode, Task, Turn
from zorplex_rl.task.parser import (
    find_answer,
    find_call,
    format_result,
)


@torch.inference_mode()
def rollout_simple(
    policy: Policy,
    task: Task,
    execute: Tool,
    sampling: Sampling,
    seed: int = 0,
) -> Episode:
    """Sample one episode of ``task``. ``execute(task, call)`` runs a tool and returns its result."""
    rng = random.Random(seed)
    prompt = encode_prompt(policy.tokenizer, task)
    episode = Episode(
        task,
        prompt_ids=prompt,
        token_ids=[],
        sampled=[],
        logprobs=[],
        turns=[],
        finish="tokens",  # the limit on tokens, unless something else ends it
        seed=seed,
    )
    ids = episode.token_ids
    turn_start = 0
    while len(ids) < sampling.max_tokens:
        context = torch.tensor([prompt + ids])
        logits = policy.model(context).logits[0, -1].float()
        token, logprob = draw(logits, sampling.temperature, rng)
        append(episode, [token], sampled=True, logprob=logprob)

        text = decode_text(policy.tokenizer, ids[turn_start:], policy.eos_ids)
        finished_lines = text.rpartition("\n")[0]  # in the last line more digits may follow
        call = find_call(text)
        if token in policy.eos_ids:
            episode.finish = "eos"
            break
        if call:
            is_last = len(episode.turns) + 1 == sampling.max_turns
            # After the last turn nothing is sampled, so its call is not run.
            result = "" if is_last else format_result(execute(task, call))
            result_ids = encode_text(policy.tokenizer, result)[: sampling.max_tokens - len(ids)]
            # The limit may have cut the result.
            injected = decode_text(policy.tokenizer, result_ids, policy.eos_ids) or None
            episode.turns.append(Turn(text, turn_start, len(ids), str(call), injected))
            append(episode, result_ids, sampled=False, logprob=0.0)
            turn_start = len(ids)
            if is_last:
                episode.finish = "turns"
                break
        elif find_answer(finished_lines) is not None:
            episode.finish = "answer"
            break

    if turn_start < len(ids):
        episode.turns.append(Turn(text, turn_start, len(ids)))
    return episode


def append(
    episode: Episode,
    ids: list[int],
    sampled: bool,
    logprob: float,
) -> None:
    """Append tokens to ``episode``."""
    for token in ids:
        episode.token_ids.append(token)
        episode.sampled.append(sampled)
        episode.logprobs.append(logprob)


def draw(
    logits: torch.Tensor,
    temperature: float,
    rng: random.Random,
) -> tuple[int, float]:
    """Draw a token from ``logits`` [V], the likeliest at temperature 0. Returns it, and log π."""
    logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
    if temperature == 0:
        token = int(logits.argmax())
    else:
        # Inverse transform sampling: the first token with a cumulative probability above the draw.
        cumulated = logprobs.exp().cumsum(-1)
        token = int(torch.searchsorted(cumulated, rng.random() * cumulated[-1], right=True))
    return token, float(logprobs[token])
