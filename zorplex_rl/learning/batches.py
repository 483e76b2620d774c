"""Collate episodes into tensors: all texts of a micro-batch as a tree, each distinct prefix once.

    tree     prompt ─┬─ t₀ t₁ ─┬─ t₂ t₃      the model runs on these tokens (policy/decoder.py draws how)
                     │         └─ t₂
                     └─ t₀ t₁ t₂
    rows     │ t₀ t₁ t₂ t₃                   the responses; ``places`` says which token of the tree
    mask       1  1  0  1                    comes before each. 0 where injected or padding

Samples of a group share their prompt, which is often longer than the response, and begin alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.policy.decoder import TokenTree, divide, plant
from zorplex_rl.task.episode import Episode

Advantages = Sequence[float] | Sequence[Sequence[float]]
"""One for each episode, or a list for each with one for every token of its response."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B responses of up to T tokens, and the ``tree`` of their texts.

    Shapes: ids, mask, behaviour_logp, reference_logp [B, T]; advantage [B], or [B, T] if each token
    has its own; places [B, T]: where in the tree the token before is. ``episodes`` holds the index in
    the batch of each row's episode.
    """

    episodes: tuple[int, ...]
    tree: TokenTree
    places: Tensor
    ids: Tensor
    mask: Tensor
    behaviour_logp: Tensor
    reference_logp: Tensor
    advantage: Tensor


def collate(
    episodes: Sequence[Episode],
    advantages: Advantages,
    token_budget: int,
    reference_logprobs: Sequence[Sequence[float]] | None = None,
    device: torch.device | str = "cpu",
    part: tuple[int, int] = (0, 1),
) -> list[MicroBatch]:
    """Return micro-batches of ``episodes``, each of at most ``token_budget`` distinct tokens if it
    has more than one text; rows of advantage 0, without gradient, are in the last.

    ``reference_logprobs`` has a value for every token of each response. ``part`` (k, n) returns the
    k-th of n parts, as many micro-batches as in the others: so n processes can work through them in
    step.
    """
    which, parts = part
    batches = []
    for teaches in (True, False):
        chosen = [i for i in range(len(episodes)) if _is_any_nonzero(advantages[i]) == teaches]
        # Along groups, so that few prompts run in two parts.
        chosen.sort(key=lambda i: (episodes[i].prompt_ids, episodes[i].token_ids))
        cuts = [k * len(chosen) // parts for k in range(parts + 1)]
        planned = [_plan(episodes, chosen[a:b], token_budget) for a, b in pairwise(cuts)]
        own = planned[which]
        batches += [_micro_batch(indices, episodes, advantages, reference_logprobs, device) for indices in own]
        batches += [_idle_batch(teaches, device)] * (max(map(len, planned)) - len(own))
    return batches


def _plan(episodes: Sequence[Episode], chosen: Sequence[int], token_budget: int) -> list[list[int]]:
    """Return for each micro-batch the indices of its episodes, sorted."""
    return [[chosen[i] for i in tree] for tree in divide([_text(episodes[i]) for i in chosen], token_budget)]


def _text(episode: Episode) -> list[int]:
    """Return the tokens on which the model runs: after the last none is predicted."""
    return [*episode.prompt_ids, *episode.token_ids[:-1]]


def _idle_batch(teaches: bool, device: torch.device | str) -> MicroBatch:
    """Return a batch without an episode. Its gradient is 0."""
    row = torch.zeros(1, 1)
    tensors = (row.long(), row.long(), row, row, row, torch.tensor([float(teaches)]))
    return MicroBatch((), plant([[0]], device), *(tensor.to(device) for tensor in tensors))


def _micro_batch(
    indices: list[int],
    episodes: Sequence[Episode],
    advantages: Advantages,
    reference_logprobs: Sequence[Sequence[float]] | None,
    device: torch.device | str,
) -> MicroBatch:
    chosen = [episodes[i] for i in indices]
    tree = plant([_text(episode) for episode in chosen], device)
    before = [place[len(e.prompt_ids) - 1 :] for place, e in zip(tree.places, chosen, strict=True)]
    behaviour = _pad([episode.logprobs for episode in chosen], torch.float32)
    reference = [reference_logprobs[i] for i in indices] if reference_logprobs is not None else None
    tensors = (
        pad_sequence(before, batch_first=True),
        _pad([episode.token_ids for episode in chosen], torch.long),
        _pad([episode.sampled for episode in chosen], torch.float32),
        behaviour,
        torch.zeros_like(behaviour) if reference is None else _pad(reference, torch.float32),
        _to_tensor([advantages[i] for i in indices]),
    )
    return MicroBatch(tuple(indices), tree, *(tensor.to(device) for tensor in tensors))


def _is_any_nonzero(advantage: float | Sequence[float]) -> bool:
    return any(advantage) if isinstance(advantage, Sequence) else advantage != 0


def _to_tensor(advantages: Sequence[float | Sequence[float]]) -> Tensor:
    """Return ``advantages`` as [B], or padded as [B, T] if they are lists."""
    rows = [values for values in advantages if isinstance(values, Sequence)]
    return _pad(rows, torch.float32) if rows else torch.tensor(advantages, dtype=torch.float32)


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Return ``rows`` as one tensor, padded on the right with zeros."""
    return pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)
