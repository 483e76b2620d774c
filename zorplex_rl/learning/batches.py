"""Collate episodes into tensors: responses in rows of similar length, and each distinct prompt once.

prompts   p₀ p₁ p₂            one row for each distinct prompt
rows      │ t₀ t₁ t₂ t₃       the responses; ``follows`` says which prompt each continues
mask        1  1  0  1        0 where injected or padding

The samples of a group share their prompt, which is often longer than the response. Running the prompt once for all of them halves the work of a
training step, forward and backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.task.episode import Episode

PADDING = 1.35
"""Padding may make a row this many times as long. Beyond that, another micro-batch is cheaper."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B responses of up to T tokens that follow G prompts of up to P tokens. Both are padded on the right.

    Shapes: prompts [G, P], prompt_lengths [G], follows [B]; ids, mask, behaviour_logp, reference_logp [B, T]; advantage [B]. ``episodes`` holds the
    index in the batch of each row's episode.
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
    """Split responses of ``lengths`` into micro-batches of similar lengths. Returns the indices of each.

    A micro-batch has at least one row, and at most ``token_budget`` padded tokens if it has more. Each row counts with its prompt, because the
    prompt's keys and values are copied for each row.

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
    """Return the micro-batches of ``episodes``. Rows with advantage 0 get micro-batches of their own, because they have no gradient.

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
    chosen = [episodes[i] for i in indices]
    row_prompts = [tuple(episode.prompt_ids) for episode in chosen]
    prompts = list(dict.fromkeys(row_prompts))
    behaviour = _pad([episode.logprobs for episode in chosen], torch.float32)
    reference = [reference_logprobs[i] for i in indices] if reference_logprobs is not None else None
    tensors = (
        _pad(prompts, torch.long),
        torch.tensor([len(prompt) for prompt in prompts]),
        torch.tensor([prompts.index(prompt) for prompt in row_prompts]),
        _pad([episode.token_ids for episode in chosen], torch.long),
        _pad([episode.sampled for episode in chosen], torch.float32),
        behaviour,
        torch.zeros_like(behaviour) if reference is None else _pad(reference, torch.float32),
        torch.tensor([float(advantages[i]) for i in indices]),
    )
    return MicroBatch(tuple(indices), *(tensor.to(device) for tensor in tensors))


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Return ``rows`` as one tensor, padded on the right with zeros."""
    return pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)
