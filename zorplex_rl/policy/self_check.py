"""Check once that sampler and trainer compute what a model of transformers computes itself.

A generic short cut is silently wrong where a model scales its embeddings, sees only a window, or turns
its keys otherwise in long texts. So log-probs are compared with the model's plain ``forward``, on a
short text and on texts across its borders. Our own model is compared by tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zorplex_rl.errors import PolicyError
from zorplex_rl.policy.decoder import (
    Decoder,
    SlotCache,
    borders,
    build_tree,
    prefill,
    project,
    states_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONGEST_CHECKED = 2048
"""Longest text on which a model is checked: those of a run are shorter."""


def check_paths(name: str, model: PreTrainedModel) -> None:
    """Raise PolicyError if sampler or trainer cannot run ``model``, or compute other log-probs than
    its plain ``forward``: on a short text, and on texts across its borders."""
    window, turn = borders(model)
    allowed = 1e-3 if model.dtype == torch.float32 else 0.2
    try:
        lengths = (16, window + 8, turn + 1)
        off = max(
            _difference(model, length) for length in lengths if 16 <= length <= LONGEST_CHECKED
        )
    except (
        Exception
    ) as error:  # The model's own code raises it, for instance where layers have another memory.
        why = " ".join(f"fail: {type(error).__name__} {error}".split())[:200]
    else:
        # Not finite logits are noticed when they are drawn from.
        if not off > allowed:
            return
        why = f"would compute other log-probs than the model itself, off by {off:.2g}"
    raise PolicyError(
        f"policy {name!r} is a {type(model).__name__}, with which sampling and training {why}; "
        "use a Llama, Qwen or similar model"
    )


def _difference(model: PreTrainedModel, length: int) -> float:
    """Return how far log-probs of sampler and trainer are from those of the plain ``forward``."""
    text = [7919 * i % min(1000, model.config.vocab_size) for i in range(length)]
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([text], device=model.device)).logits[0].float()
        tree = build_tree([text, [*text[: length // 2], 1]], model.device)
        trained = project(model, states_of(model, tree))[:length]
        ((snapshot, first),) = prefill(model, [text[:-1]])
        slots = SlotCache(model, 1, length)
        slots.put(0, snapshot)
        last = Decoder(model)(slots.begin_step([length - 1], [text[-1:]]), slots)
    found = torch.cat((trained, first[None], last.float()))
    return (
        (torch.cat((expected, expected[-2:])).log_softmax(-1) - found.log_softmax(-1))
        .abs()
        .max()
        .item()
    )
