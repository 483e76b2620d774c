"""Collate episodes into tensors: responses in rows of similar length, each distinct prompt once.

prompts   p₀ p₁ p₂            one row for each distinct prompt
rows      │ t₀ t₁ t₂ t₃       the responses; ``follows`` says which prompt each continues
mask        1  1  0  1        0 where injected or padding

Samples of a group share their prompt, often longer than the response. Running it once for all
halves the work of a training step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.task.episode import Episode

Advantages = Sequence[float] | Sequence[Sequence[float]]
"""One for each episode, or a list for each with one for every token of its response."""
PADDING = 1.35  # as many times as long padding may make a row; beyond that a new batch is cheaper


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B responses of up to T tokens after G prompts of up to P tokens, both padded on the right.

    Shapes: prompts [G, P], prompt_lengths [G], follows [B]; ids, mask, behaviour_logp,
    reference_logp [B, T]; advantage [B], or [B, T] if each token has its own. ``episodes`` holds
    the index in the batch of each row's episode.
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


def split_by_tokens(
    lengths: Sequence[int], token_budget: int, prompt_length: int = 0, parts: int = 1
) -> list[list[int]]:
    """Split ``lengths`` into micro-batches of similar lengths. Returns the indices of each.

    A micro-batch has at least one row, and at most ``token_budget`` padded tokens if it has more.
    Each row counts with its prompt, because the prompt's keys and values are copied for each row.
    If every micro-batch is to be cut into ``parts``, this holds for each part.

    >>> split_by_tokens([10, 30, 9, 10, 8], token_budget=30)
    [[4, 2, 0], [3], [1]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longest = lengths[index]
        rows = -(-(len(batches[-1]) + 1) // parts) if batches else 1
        if (
            not batches
            or (rows > 1 and rows * (prompt_length + longest) > token_budget)
            or longest > PADDING * lengths[batches[-1][0]]
        ):
            batches.append([])
        batches[-1].append(index)
    return batches


def collate(
    episodes: Sequence[Episode],
    advantages: Advantages,
    token_budget: int,
    reference_logprobs: Sequence[Sequence[float]] | None = None,
    device: torch.device | str = "cpu",
    part: tuple[int, int] = (0, 1),
) -> list[MicroBatch]:
    """Return micro-batches of ``episodes``; rows of advantage 0, without gradient, are in the last.

    ``reference_logprobs`` has a value for every token of each response. ``part`` (k, n) returns the
    k-th of n parts of every micro-batch; one without rows computes something all the same, so that
    n processes can work through their parts in step.
    """
    which, parts = part
    longest_prompt = max((len(episode.prompt_ids) for episode in episodes), default=0)
    batches = []
    for teaches in (True, False):
        chosen = [i for i in range(len(episodes)) if _is_any_nonzero(advantages[i]) == teaches]
        lengths = [len(episodes[i].token_ids) for i in chosen]
        for rows in split_by_tokens(lengths, token_budget, longest_prompt, parts):
            indices = [chosen[i] for i in rows]
            if parts > 1:
                # Cut along groups, if possible: a prompt runs once in each part with its responses.
                indices.sort(key=lambda i: episodes[i].prompt_ids)
                indices = indices[which * len(indices) // parts : (which + 1) * len(indices) // parts]
            of_rows = indices, episodes, advantages, reference_logprobs, device
            batches.append(_micro_batch(*of_rows) if indices else _idle_batch(teaches, device))
    return batches


def _idle_batch(teaches: bool, device: torch.device | str) -> MicroBatch:
    """Return a batch without an episode. Its gradient is 0."""
    prompt, row, advantage = torch.zeros(1, 1).long(), torch.zeros(1, 2), torch.tensor([float(teaches)])
    tensors = (prompt, torch.tensor([1]), torch.tensor([0]), row.long(), row, row, row, advantage)
    return MicroBatch((), *(tensor.to(device) for tensor in tensors))


def _micro_batch(
    indices: list[int],
    episodes: Sequence[Episode],
    advantages: Advantages,
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
        _to_tensor([advantages[i] for i in indices]),
    )
    return MicroBatch(tuple(indices), *(tensor.to(device) for tensor in tensors))


def _is_any_nonzero(advantage: float | Sequence[float]) -> bool:
    return any(advantage) if isinstance(advantage, Sequence) else advantage != 0


def _to_tensor(advantages: Sequence[float | Sequence[float]]) -> Tensor:
    """Return ``advantages`` as [B], or padded as [B, T] if they are lists."""
    rows = [values for values in advantages if isinstance(values, Sequence)]
    return _pad(rows, torch.float32) if rows else torch.tensor(advantages, dtype=torch.float32)


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Return ``rows`` as one tensor, padded on the right with zeros, of at least two columns: so all
    ranks of a sharded learner run the model equally often."""
    padded = pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)
    return padded if padded.shape[1] > 1 else torch.nn.functional.pad(padded, (0, 1))
