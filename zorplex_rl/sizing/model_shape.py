"""Find the shape of any policy, for ``sizing.py``.

    Qwen2 and Llama     from config.json, by the formulas of ``ModelShape``; without torch
    any other family    the model itself on torch's meta device, where it takes no memory: its parameters are counted

The number of parameters is exact for every family. What depends on the run (activations, cache,
seconds) is computed as for a Llama of the same sizes; ``ModelShape.unknown`` says in which way the
family differs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zorplex_rl.errors import PolicyError
from zorplex_rl.sizing.sizing import ModelShape

SIZES = "num_hidden_layers hidden_size num_attention_heads intermediate_size vocab_size".split()
MAY_BE_ABSENT = "num_key_value_heads head_dim".split()
CHOSEN = "num_experts_per_tok moe_topk top_k_experts".split()
"""How many experts a token is sent to, as families call it."""


def shape_of(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``. Raises PolicyError if there is none."""
    config = None
    try:
        config = json.loads((folder / "config.json").read_text())
        if _has_formula(config):
            return ModelShape.of(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        pass  # transformers knows what is wrong with it.
    return _counted(folder, config)


def _has_formula(config: Mapping[str, Any]) -> bool:
    """Whether the formulas hold for a model of ``config``: a plain Qwen2 or Llama."""
    more = {"qwen2": ("use_sliding_window",), "llama": ("attention_bias", "mlp_bias")}.get(config.get("model_type", ""))
    sizes = [config.get(name) for name in SIZES] + [config[n] for n in MAY_BE_ABSENT if config.get(n) is not None]
    return more is not None and not any(map(config.get, more)) and all(type(size) is int and size > 0 for size in sizes)


def _counted(folder: Path, read: object) -> ModelShape:
    """Return the shape of the model in ``folder``, made without memory and counted. ``read`` is
    what its config.json holds, as far as it could be read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from zorplex_rl.policy.model_folder import MOST_LAYERS, too_many_layers

    logging.set_verbosity_error()
    try:
        if setting := too_many_layers(read):
            raise ValueError(f"its {setting!r} is above {MOST_LAYERS}")
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config = whole.get_text_config()
        if config.num_hidden_layers > MOST_LAYERS:
            raise ValueError(f"it has {config.num_hidden_layers} layers, more than any model")
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
    """Return what ``sizing.py`` does not know of a model of ``config``."""
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
