"""Episodes become tensors: right-padded rows, packed into micro-batches that hold a bounded number of tokens.

row      prompt p₀ p₁ p₂ | response t₀ t₁ t₂ t₃ | padding
target                     t₀ t₁ t₂ t₃            position i is predicted from position i − 1
mask                       1  1  0  1             0 where injected
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.task.episode import Episode


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that go through the model together. T is the longest row less one: the number of predicted positions.

    ids [B, T + 1]; behaviour_logp, mask, reference_logp [B, T]; advantage [B]. ``episodes`` says which of the batch they are.
    """

    episodes: tuple[int, ...]
    ids: Tensor
    mask: Tensor
    behaviour_logp: Tensor
    reference_logp: Tensor
    advantage: Tensor


def split_by_tokens(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of ``lengths`` in micro-batches of at most ``token_budget`` padded tokens, each of at least one row; like lengths go together.

    >>> split_by_tokens([10, 4, 5, 10], token_budget=20)
    [[1, 2], [0, 3]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > token_budget:
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
    """The micro-batches of ``episodes``. ``reference_logprobs`` has one value for every token of each response, like ``Episode.logprobs``."""
    lengths = [len(e.prompt_ids) + len(e.token_ids) for e in episodes]
    return [
        _micro_batch(indices, episodes, advantages, reference_logprobs, device)
        for indices in split_by_tokens(lengths, token_budget)
    ]


def _micro_batch(
    indices: list[int],
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    reference_logprobs: Sequence[Sequence[float]] | None,
    device: torch.device | str,
) -> MicroBatch:
    width = max(len(episodes[i].prompt_ids) + len(episodes[i].token_ids) for i in indices)
    ids = torch.zeros(len(indices), width, dtype=torch.long)
    mask, behaviour, reference = torch.zeros(3, len(indices), width - 1)
    for row, index in enumerate(indices):
        episode = episodes[index]
        start, end = len(episode.prompt_ids), len(episode.prompt_ids) + len(episode.token_ids)
        ids[row, :end] = torch.tensor(episode.prompt_ids + episode.token_ids)
        mask[row, start - 1 : end - 1] = torch.tensor(episode.sampled, dtype=torch.float32)
        behaviour[row, start - 1 : end - 1] = torch.tensor(episode.logprobs)
        if reference_logprobs is not None:
            reference[row, start - 1 : end - 1] = torch.tensor(reference_logprobs[index])
    advantage = torch.tensor([float(advantages[index]) for index in indices])
    tensors = (tensor.to(device) for tensor in (ids, mask, behaviour, reference, advantage))
    return MicroBatch(tuple(indices), *tensors)
