"""Episodes become tensors: responses in rows of like length, and every prompt once, however many responses follow it.

prompts   p₀ p₁ p₂            one row for each distinct prompt
rows      │ t₀ t₁ t₂ t₃       the responses; ``follows`` says which prompt each continues
mask        1  1  0  1        0 where injected or padding

A group's samples share their prompt, and the prompt is often longer than the response: running it once for all of them halves the work of
a training step, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.task.episode import Episode

PADDING = 1.35
"""A row may be made this many times as long by padding; beyond it, a micro-batch of its own is cheaper."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B responses of up to T tokens that follow G prompts of up to P tokens; both are padded on the right.

    prompts [G, P], prompt_lengths [G]; follows [B]; ids, mask, behaviour_logp, reference_logp [B, T]; advantage [B]. ``episodes`` says which of
    the batch the rows are.
    """

    episodes: tuple[int, ...]
    prompts: Tensor
    prompt_lengths: Tensor
    follows: Tensor
    ids: Tensor
    mask: Tensor
    behaviour_logp: Tensor
    reference_logp: Tensor
    advantage: Tensor


def split_by_tokens(lengths: Sequence[int], token_budget: int, prompt_length: int = 0) -> list[list[int]]:
    """Indices of responses of ``lengths`` in micro-batches of at least one row, of like lengths, and of at most ``token_budget`` padded tokens.

    A row counts with its prompt, which stands in the key-value memory of each.

    >>> split_by_tokens([10, 30, 9, 10, 8], token_budget=30)
    [[4, 2, 0], [3], [1]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longest = lengths[index]
        if (
            not batches
            or (len(batches[-1]) + 1) * (prompt_length + longest) > token_budget
            or longest > PADDING * lengths[batches[-1][0]]
        ):
            batches.append([])
        batches[-1].append(index)
    return batches


def collate(
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    token_budget: int,
    reference_logprobs: Sequence[Sequence[float]] | None = None,
    device: torch.device | str = "cpu",
) -> list[MicroBatch]:
    """The micro-batches of ``episodes``. Rows whose advantage is 0 are kept apart from the others: there is nothing to learn from them.

    ``reference_logprobs`` has one value for every token of each response, like ``Episode.logprobs``.
    """
    longest_prompt = max((len(episode.prompt_ids) for episode in episodes), default=0)
    batches = []
    for teaches in (True, False):
        chosen = [i for i in range(len(episodes)) if (advantages[i] != 0) == teaches]
        lengths = [len(episodes[i].token_ids) for i in chosen]
        for part in split_by_tokens(lengths, token_budget, longest_prompt):
            indices = [chosen[i] for i in part]
            batches.append(_micro_batch(indices, episodes, advantages, reference_logprobs, device))
    return batches


def _micro_batch(
    indices: list[int],
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    reference_logprobs: Sequence[Sequence[float]] | None,
    device: torch.device | str,
) -> MicroBatch:
    prompts = list(dict.fromkeys(tuple(episodes[i].prompt_ids) for i in indices))
    follows = [prompts.index(tuple(episodes[i].prompt_ids)) for i in indices]
    shape = (len(indices), max(len(episodes[i].token_ids) for i in indices))
    ids = torch.zeros(shape, dtype=torch.long)
    mask, behaviour, reference = torch.zeros(3, *shape)
    for row, index in enumerate(indices):
        episode = episodes[index]
        end = len(episode.token_ids)
        ids[row, :end] = torch.tensor(episode.token_ids)
        mask[row, :end] = torch.tensor(episode.sampled, dtype=torch.float32)
        behaviour[row, :end] = torch.tensor(episode.logprobs)
        if reference_logprobs is not None:
            reference[row, :end] = torch.tensor(reference_logprobs[index])
    padded = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    prompt_lengths, advantage = [len(p) for p in prompts], [float(advantages[i]) for i in indices]
    tensors = (padded, torch.tensor(prompt_lengths), torch.tensor(follows), ids, mask, behaviour, reference)
    return MicroBatch(tuple(indices), *(tensor.to(device) for tensor in (*tensors, torch.tensor(advantage))))
