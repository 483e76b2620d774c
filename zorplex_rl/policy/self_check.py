"""Check once that sampler and trainer compute what a transformers model itself computes.

A generic short cut is silently wrong for a model that scales its embeddings, attends only to a window,
or rotates keys in another way in long texts. So log-probs are compared with the model's plain
``forward``, on a short text and on texts beyond such a limit. Tests compare our own model.
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
"""Longest text on which a model is checked: texts of a run are shorter."""


def check_paths(name: str, model: PreTrainedModel) -> None:
    """Raise PolicyError if sampler or trainer cannot run ``model``, or compute other log-probs than its
    plain ``forward``: on a short text, and on texts beyond its limits."""
    window, turn = borders(model)
    allowed = 1e-3 if model.dtype == torch.float32 else 0.2
    lengths = [length for length in (16, window + 8, turn + 1) if 16 <= length <= LONGEST_CHECKED]
    try:
        off = max(_difference(model, length) for length in lengths)
    except Exception as error:
        # The model's own code raises it, for instance if its layers keep another kind of cache.
        why = " ".join(f"fail: {type(error).__name__} {error}".split())[:200]
    else:
        # Logits that are not finite are noticed when a token is drawn from them.
        if not off > allowed:
            return
        why = f"would compute other log-probs than the model itself, off by {off:.2g}"
    raise PolicyError(
        f"policy {name!r} is a {type(model).__name__}, with which sampling and training {why}; "
        "use a Llama, Qwen or similar model"
    )


def _difference(model: PreTrainedModel, length: int) -> float:
    """Return how far log-probs of sampler and trainer are from those of the plain ``forward``."""
    tokens = min(1000, model.config.vocab_size)
    text = [7919 * i % tokens for i in range(length)]
    with torch.inference_mode():
        ids = torch.tensor([text], device=model.device)
        expected = model(input_ids=ids).logits[0].float()
        # As the trainer does: in a tree with another text.
        branch = [*text[: length // 2], 1]
        tree = build_tree([text, branch], model.device)
        trained = project(model, states_of(model, tree))[:length]
        # As the sampler does: all but the last token, then this one.
        ((snapshot, first),) = prefill(model, [text[:-1]])
        slots = SlotCache(model, 1, length)
        slots.put(0, snapshot)
        step = slots.begin_step([length - 1], [text[-1:]])
        last = Decoder(model)(step, slots)
    computed = torch.cat((trained, first[None], last.float()))
    expected = torch.cat((expected, expected[-2:]))
    difference = expected.log_softmax(-1) - computed.log_softmax(-1)
    return difference.abs().max().item()
