"""Collate episodes into tensors: all texts of a micro-batch as a tree, each distinct prefix once.

    tree     prompt ─┬─ t₀ t₁ ─┬─ t₂ t₃      the model runs on these tokens (policy/decoder.py draws how)
                     │         └─ t₂
                     └─ t₀ t₁ t₂
    rows     │ t₀ t₁ t₂ t₃                   the responses; ``before`` says which token of the tree
    mask       1  1  0  1                    comes before each. 0 where injected or padding

Samples of a group share their prompt, which is often longer than the response, and begin alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.policy.decoder import TokenTree, build_tree, split_by_budget
from zorplex_rl.task.episode import Episode

Advantages = Sequence[float] | Sequence[Sequence[float]]
"""One for each episode, or a list for each with one for every token of its response."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B responses of up to T tokens, and the tree of their texts."""

    episodes: tuple[int, ...]
    """For each row, the index of its episode in the batch."""
    tree: TokenTree
    """The tokens on which the model runs."""
    before: Tensor
    """Which token of the tree comes before each token [B, T]: its logits predict that one."""
    ids: Tensor
    """The tokens [B, T]."""
    mask: Tensor
    """1.0 where a token was sampled, 0.0 where it was injected or is padding [B, T]."""
    behaviour_logp: Tensor
    """log μ of each sampled token [B, T]."""
    reference_logp: Tensor
    """log π of the starting policy [B, T]; zeros without a KL penalty."""
    advantage: Tensor
    """Of each episode [B], or of each token [B, T]."""


def collate(
    episodes: Sequence[Episode],
    advantages: Advantages,
    token_budget: int,
    reference_logprobs: Sequence[Sequence[float]] | None = None,
    device: torch.device | str = "cpu",
    part: tuple[int, int] = (0, 1),
) -> list[MicroBatch]:
    """Return micro-batches of ``episodes``. One of several texts has at most ``token_budget`` distinct
    tokens. Episodes of advantage 0, which have no gradient, are in the last ones.

    ``reference_logprobs`` has a value for every token of each response. ``part`` (k, n) asks for the
    k-th of n parts. All have the same number of micro-batches, so n processes work in step.
    """
    rank, ranks = part
    batches = []
    for teaches in (True, False):
        chosen = [i for i in range(len(episodes)) if _is_any_nonzero(advantages[i]) == teaches]
        # Group by group, so that few prompts run in two parts.
        chosen.sort(key=lambda i: (episodes[i].prompt_ids, episodes[i].token_ids))
        cuts = [k * len(chosen) // ranks for k in range(ranks + 1)]
        plans = []
        for start, end in pairwise(cuts):
            plans.append(_plan(episodes, chosen[start:end], token_budget))
        for indices in plans[rank]:
            batches.append(
                _micro_batch(
                    indices,
                    episodes,
                    advantages,
                    reference_logprobs,
                    device,
                )
            )
        idle = max(map(len, plans)) - len(plans[rank])
        batches += [_idle_batch(teaches, device)] * idle
    return batches


def _plan(
    episodes: Sequence[Episode],
    chosen: Sequence[int],
    token_budget: int,
) -> list[list[int]]:
    """Return the sorted indices of each micro-batch's episodes."""
    texts = [_text(episodes[i]) for i in chosen]
    trees = split_by_budget(texts, token_budget)
    return [[chosen[i] for i in tree] for tree in trees]


def _text(episode: Episode) -> list[int]:
    """Return the tokens on which the model runs: all but the last, after which none is predicted."""
    return [*episode.prompt_ids, *episode.token_ids[:-1]]


def _idle_batch(teaches: bool, device: torch.device | str) -> MicroBatch:
    """Return a batch without an episode. Its gradient is 0."""
    zero = torch.zeros(1, 1, device=device)
    return MicroBatch(
        episodes=(),
        tree=build_tree([[0]], device),
        before=zero.long(),
        ids=zero.long(),
        mask=zero,
        behaviour_logp=zero,
        reference_logp=zero,
        advantage=torch.tensor([float(teaches)], device=device),
    )


def _micro_batch(
    indices: list[int],
    episodes: Sequence[Episode],
    advantages: Advantages,
    reference_logprobs: Sequence[Sequence[float]] | None,
    device: torch.device | str,
) -> MicroBatch:
    chosen = [episodes[i] for i in indices]
    tree = build_tree([_text(episode) for episode in chosen], device)
    before = []
    for token_index, episode in zip(tree.token_index, chosen, strict=True):
        before.append(token_index[len(episode.prompt_ids) - 1 :])
    behaviour = _pad([episode.logprobs for episode in chosen])
    reference = torch.zeros_like(behaviour)
    if reference_logprobs is not None:
        reference = _pad([reference_logprobs[i] for i in indices])
    return MicroBatch(
        episodes=tuple(indices),
        tree=tree,
        before=pad_sequence(before, batch_first=True).to(device),
        ids=_pad([episode.token_ids for episode in chosen], torch.long).to(device),
        mask=_pad([episode.sampled for episode in chosen]).to(device),
        behaviour_logp=behaviour.to(device),
        reference_logp=reference.to(device),
        advantage=_to_tensor([advantages[i] for i in indices]).to(device),
    )


def _is_any_nonzero(advantage: float | Sequence[float]) -> bool:
    return any(advantage) if isinstance(advantage, Sequence) else advantage != 0


def _to_tensor(advantages: Sequence[float | Sequence[float]]) -> Tensor:
    """Return ``advantages`` as [B], or padded as [B, T] if they are lists."""
    rows = [values for values in advantages if isinstance(values, Sequence)]
    return _pad(rows) if rows else torch.tensor(advantages, dtype=torch.float32)


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``rows`` as one tensor, padded on the right with zeros."""
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, batch_first=True)
