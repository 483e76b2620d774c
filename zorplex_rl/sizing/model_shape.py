"""The shape of a model, and finding that of any policy.

    Qwen2 and Llama     from config.json, by the formulas of ``ModelShape``; without torch
    any other family    the model itself on torch's meta device, where it takes no memory: its parameters are counted

The number of parameters is exact for every family. What depends on the run (activations, cache,
seconds) is computed as for a Llama of the same sizes; ``ModelShape.unknown`` says in which way the
family differs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from zorplex_rl.errors import PolicyError

SIZES = "num_hidden_layers hidden_size num_attention_heads intermediate_size vocab_size".split()
MAY_BE_ABSENT = "num_key_value_heads head_dim".split()
CHOSEN = "num_experts_per_tok moe_topk top_k_experts".split()
"""How many experts a token is sent to, as families call it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Qwen2 or Llama model, for memory and time. ``head_size`` 0 means hidden / heads.

    >>> ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936).parameters
    494032768
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = True
    head_size: int = 0
    attention_bias: bool = True
    """Biases of the query, key and value projections: Qwen2 has them, Llama has none."""
    counted: int = 0
    """Counted parameters of another family; 0 is as the formulas say."""
    largest: int = 0
    """Parameters of its largest tensor; 0 likewise. Experts may all be in one."""
    unknown: tuple[str, ...] = ()
    """In which ways a model of another family differs from what is computed here."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the shape in a model's ``config.json``. Raises KeyError for another family."""
        heads = config["num_attention_heads"]
        kind = config.get("model_type")
        return cls(
            config["num_hidden_layers"],
            config["hidden_size"],
            heads,
            config.get("num_key_value_heads") or heads,
            config["intermediate_size"],
            config["vocab_size"],
            # What transformers assumes where the file does not say.
            bool(config.get("tie_word_embeddings", kind not in ("qwen2", "llama"))),
            config.get("head_dim") or 0,
            bool(config.get("attention_bias", kind == "qwen2")),
        )

    def as_config(self) -> dict[str, Any]:
        """Return the arguments of transformers' ``Qwen2Config`` for this shape."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 32768,
        } | ({"head_dim": self.head_size} if self.head_size else {})

    @property
    def attention(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def keys(self) -> int:
        """Width of all key heads together; the values have the same."""
        return self.kv_heads * (self.head_size or self.hidden // self.heads)

    @property
    def table(self) -> int:
        """Parameters of the embedding table."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        attention = self.hidden * (2 * self.attention + 2 * self.keys)
        bias = self.attention + 2 * self.keys if self.attention_bias else 0
        return attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters, tied weights counted once."""
        return self.counted or self.layers * self.layer + self.hidden + self.tables

    @property
    def tables(self) -> int:
        """Parameters of embedding table and output layer, which are one if they are tied."""
        return self.table * (1 if self.tied else 2)

    @property
    def copied_keys(self) -> int:
        """Width of the keys in attention: copied per query head; a single key head needs none."""
        return self.attention if self.heads > self.kv_heads > 1 else self.keys


def shape_of(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``. Raises PolicyError if there is none."""
    config = None
    try:
        config = json.loads((folder / "config.json").read_text())
        if _has_formula(config):
            return ModelShape.of(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        pass  # transformers knows what is wrong with it.
    return _counted(folder)


def _has_formula(config: Mapping[str, Any]) -> bool:
    """Whether the formulas hold for a model of ``config``: a plain Qwen2 or Llama."""
    more = {"qwen2": ("use_sliding_window",), "llama": ("attention_bias", "mlp_bias")}.get(config.get("model_type", ""))
    sizes = [config.get(name) for name in SIZES] + [config[n] for n in MAY_BE_ABSENT if config.get(n) is not None]
    return more is not None and not any(map(config.get, more)) and all(type(size) is int and size > 0 for size in sizes)


def _counted(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``, made without memory and counted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config = whole.get_text_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(whole, trust_remote_code=False)
        return _shape_of(model, config)
    except Exception as error:  # The library raises nothing narrower.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PolicyError(
            f"policy {str(folder)!r} has a config.json of which transformers makes no model ({reason}); "
            f"give one of a model that it knows"
        ) from error


def _shape_of(model: Any, config: Any) -> ModelShape:
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings()
    heads = _size(config, "num_attention_heads") or 1
    has_experts = any(word in name for name, _ in model.named_parameters() for word in ("expert", ".router.", "moe"))
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads") or heads,
        intermediate=_intermediate(config, has_experts),
        vocabulary=len(inputs),
        tied=outputs is None or outputs.weight is inputs,
        head_size=_size(config, "head_dim") or 0,
        counted=sum(parameter.numel() for parameter in model.parameters()),
        largest=max(parameter.numel() for parameter in model.parameters()),
        unknown=tuple(_differences(config, has_experts)),
    )


def _size(config: Any, *names: str) -> int | None:
    """Return the first of the sizes ``names`` that ``config`` has; of one that differs from layer
    to layer, the largest."""
    for name in names:
        try:
            found = getattr(config, name, None)
        except RuntimeError:  # The library does not say which layer's it would be.
            found = [getattr(layer, name, None) for layer in config.per_layer_config]
        if found := max((size for size in found if size), default=None) if isinstance(found, list) else found:
            return found
    return None


def _intermediate(config: Any, has_experts: bool) -> int:
    """Return the width of all that a token goes through between two attentions: of experts, those
    that it is sent to."""
    whole = _size(config, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size") or 4 * config.hidden_size
    if not (has_experts and (chosen := _size(config, *CHOSEN))):
        return whole
    each = _size(config, "moe_intermediate_size") or whole
    shared = _size(config, "shared_expert_intermediate_size") or each * (_size(config, "n_shared_experts") or 0)
    return chosen * each + shared


def _differences(config: Any, has_experts: bool) -> list[str]:
    """Return what ``memory.py`` does not know of a model of ``config``."""
    kinds = set(getattr(config, "layer_types", None) or ())
    found = [f"activations, cache and seconds are those of a Llama of the same sizes, not of a {config.model_type}"]
    if has_experts:
        chosen = _size(config, *CHOSEN)
        counted = (
            f"the {chosen} that a token is sent to count"
            if chosen
            else "to how many a token is sent is not known: one counts"
        )
        found.append(f"of the experts {counted} as one dense layer; what the routing keeps is left out")
    if getattr(config, "is_heterogeneous", False) or isinstance(getattr(config, "intermediate_size", 0), list):
        found.append("its layers differ in size: each counts as the largest")
    if _size(config, "kv_lora_rank"):
        found.append("its attention keeps something else than keys and values of every head")
    if _size(config, "sliding_window") and (not kinds or any("sliding" in kind for kind in kinds)):
        found.append("some layers attend to a window only: the cache is reserved whole, the activations are fewer")
    if not _size(config, "num_attention_heads") or any(
        word in kind for kind in kinds for word in ("linear", "mamba", "recurrent", "conv")
    ):
        found.append("what layers without attention keep between two tokens is left out")
    return found
