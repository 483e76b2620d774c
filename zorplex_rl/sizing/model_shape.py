"""Find the shape of any policy, for ``sizing.py``.

    Qwen2 and Llama     from config.json, by the formulas of ``ModelShape``; without torch
    any other family    the model itself on torch's meta device, where it takes no memory: its parameters are counted

The number of parameters is exact for every family. What depends on the run (activations, cache,
seconds) is computed as for a Llama of the same sizes; ``ModelShape.unknown`` says in which way the
family differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zorplex_rl.errors import PolicyError
from zorplex_rl.sizing.sizing import ModelShape

SIZES = "num_hidden_layers hidden_size num_attention_heads num_key_value_heads intermediate_size vocab_size head_dim".split()


def shape_of(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``. Raises PolicyError if there is none."""
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
    sizes = [config[name] for name in SIZES if config.get(name) is not None]
    return more is not None and not any(map(config.get, more)) and all(type(size) is int and size > 0 for size in sizes)


def _counted(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``, made without memory and counted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from zorplex_rl.policy.load import MOST_LAYERS

    logging.set_verbosity_error()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.num_hidden_layers > MOST_LAYERS:
            raise ValueError(f"it has {config.num_hidden_layers} layers, more than any model")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # The library raises nothing narrower.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PolicyError(
            f"policy {str(folder)!r} has a config.json of which transformers makes no model ({reason}); "
            f"give one of a model that it knows"
        ) from error
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings()
    heads = getattr(config, "num_attention_heads", None) or 1
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        intermediate=_intermediate(config),
        vocabulary=len(inputs),
        tied=outputs is None or outputs.weight is inputs,
        head_size=getattr(config, "head_dim", None) or 0,
        counted=sum(parameter.numel() for parameter in model.parameters()),
        largest=max(parameter.numel() for parameter in model.parameters()),
        unknown=tuple(_differences(config)),
    )


def _intermediate(config: Any) -> int:
    """Return the width of a token between two attentions, of experts those it is sent to."""
    names = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    whole = next((size for name in names if (size := getattr(config, name, None))), 4 * config.hidden_size)
    if not (chosen := getattr(config, "num_experts_per_tok", None)):
        return whole
    each = getattr(config, "moe_intermediate_size", None) or whole
    shared = getattr(config, "shared_expert_intermediate_size", None) or each * (
        getattr(config, "n_shared_experts", None) or 0
    )
    return chosen * each + shared


def _differences(config: Any) -> list[str]:
    """Return what ``sizing.py`` does not know of a model of ``config``."""
    kinds = set(getattr(config, "layer_types", None) or ())
    found = [f"activations, cache and seconds are those of a Llama of the same sizes, not of a {config.model_type}"]
    if chosen := getattr(config, "num_experts_per_tok", None):
        found.append(
            f"of the experts the {chosen} that a token is sent to count as one dense layer; what the routing keeps is left out"
        )
    if getattr(config, "kv_lora_rank", None):
        found.append("its attention keeps something else than keys and values of every head")
    if getattr(config, "sliding_window", None) and (not kinds or any("sliding" in kind for kind in kinds)):
        found.append("some layers attend to a window only: the cache is reserved whole, the activations are fewer")
    if not getattr(config, "num_attention_heads", None) or any(
        word in kind for kind in kinds for word in ("linear", "mamba", "recurrent", "conv")
    ):
        found.append("what layers without attention keep between two tokens is left out")
    return found
