"""What the files of a model's folder say, without torch: its settings, and where its weights are.

    config.json                     settings; those that a Llama or a Qwen leaves out are transformers' defaults
    model.safetensors.index.json    names the files of the weights, if they are several
    model.safetensors               all weights, if that index is not there, or its files are not

Other files of weights (an adapter, an older copy) are no part of the model. A folder that has only an
adapter names the model that it belongs to in ``adapter_config.json`` (lora.py).
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

FAMILY = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Kinds of model that ``model.py`` computes, with transformers' names."""
INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def missing_file(folder: Path, *names: str) -> str:
    """Return which of the files ``names``, or of the weights, is not in ``folder``; "" if all are there."""
    weights = weight_files(folder) or [folder / "model.safetensors"]
    needed = [*(folder / name for name in names), *weights]
    return next((file.name for file in needed if not file.is_file()), "")


def adapter_folder(name: str) -> Path | None:
    """Return the folder ``name`` if it has an adapter and no model."""
    folder = Path(name).expanduser()
    has_only_adapter = (folder / ADAPTER_CONFIG).is_file() and not (
        folder / "config.json"
    ).is_file()
    return folder if has_only_adapter else None


@cache
def digest_of(folder: Path) -> str:
    """Return a digest of the weights in ``folder``: by it an adapter knows its model again."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the model's weights. Raises ValueError if one would have to be unpickled."""
    whole = folder / "model.safetensors"
    parts = []
    if (folder / INDEX).is_file():
        names = {*read_json(folder / INDEX)["weight_map"].values()}
        parts = [folder / name for name in sorted(names)]
        if not all(name.endswith(".safetensors") for name in names):
            raise ValueError(f"its {INDEX} names files that are no safetensors")
    if parts and all(file.is_file() for file in parts):
        return parts
    return [whole] if whole.is_file() else parts


def weight_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor. Raises ValueError if a file is damaged or was cut off."""
    shapes: dict[str, list[int]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"its {file.name} is damaged: {error}") from error
    return shapes


def read_json(file: Path) -> dict[str, Any]:
    """Return the settings in ``file``. Raises ValueError if there are none."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"its {file.name} is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"its {file.name} has no settings but a {type(settings).__name__}")
    return settings


def read_config(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` says. Raises ValueError if it does not say what is computed."""
    config = read_json(folder / "config.json")
    required = ("model_type", *(SIZES if config.get("model_type") in FAMILY else ()))
    if lacking := [name for name in required if not config.get(name)]:
        raise ValueError(f"its config.json names no {lacking[0]}")
    return config


def read_generation(folder: Path) -> dict[str, Any]:
    """Return the settings in ``generation_config.json`` or, without that file, which ids end a text."""
    file = folder / "generation_config.json"
    return (
        read_json(file)
        if file.is_file()
        else {"eos_token_id": read_config(folder).get("eos_token_id")}
    )


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config`` of a Llama or a Qwen with the settings that a file may leave out."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    defaults = {
        "architectures": [FAMILY[kind]],
        "head_dim": 128 if kind == "qwen3" else config["hidden_size"] // heads,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    given = {
        name: value for name, value in config.items() if value is not None or name not in defaults
    }
    return defaults | given | {"rope_parameters": rope_of(config), "sliding_window": None}


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of ``config``'s rotation. As for transformers ``rope_scaling``, which people
    add by hand, counts before ``rope_parameters``; what neither says may stand beside them."""
    rope = {"rope_theta": config.get("rope_theta", 10000.0)}
    rope |= config.get("rope_scaling") or config.get("rope_parameters") or {}
    beside = ("partial_rotary_factor", "original_max_position_embeddings")
    rope |= {name: config[name] for name in beside if name in config}
    kind = rope.pop("type", "default")
    return {"rope_type": kind} | rope
