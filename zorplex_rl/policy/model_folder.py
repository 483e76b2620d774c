"""What the files of a model's folder say, without torch: its settings, and where its weights are.

    config.json                     settings; what a Llama or a Qwen leaves out has the default of transformers
    model.safetensors.index.json    names the files of the weights, if there are several
    model.safetensors               all weights, if that index or one of its files is missing

Other files of weights (an adapter, an older copy) are not part of the model. A folder with only an
adapter names its model in ``adapter_config.json`` (lora.py).
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

FAMILY = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Kinds of model that ``model.py`` computes, with their names in transformers."""
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
    """Return the first of the files ``names``, and of the weights, that is not in ``folder``; else ""."""
    weights = weight_files(folder) or [folder / "model.safetensors"]
    for file in (*map(folder.joinpath, names), *weights):
        if not file.is_file():
            return file.name
    return ""


def adapter_folder(name: str) -> Path | None:
    """Return the folder ``name`` if it has an adapter and no model."""
    folder = Path(name).expanduser()
    has_adapter = (folder / ADAPTER_CONFIG).is_file()
    has_model = (folder / "config.json").is_file()
    return folder if has_adapter and not has_model else None


def base_name(name: str) -> str:
    """Return the name of the model to which the adapter in folder ``name`` belongs; of a model, ``name``."""
    adapter = adapter_folder(name)
    if adapter is None:
        return name
    return str(read_json(adapter / ADAPTER_CONFIG)["base_model_name_or_path"])


@cache
def digest_of(folder: Path) -> str:
    """Return a digest of the weights in ``folder``, by which an adapter recognises its model."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the model's weights. Raises ValueError if one is not a safetensors file."""
    whole = folder / "model.safetensors"
    parts = []
    if (folder / INDEX).is_file():
        names = {*read_json(folder / INDEX)["weight_map"].values()}
        parts = [folder / name for name in sorted(names)]
        if any(file.suffix != ".safetensors" for file in parts):
            raise ValueError(f"its {INDEX} names files that are not safetensors")
    if parts and all(map(Path.is_file, parts)):
        return parts
    return [whole] if whole.is_file() else parts


def weight_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor. Raises ValueError if a file is damaged or was cut off."""
    shapes: dict[str, list[int]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    shapes[name] = tensors.get_slice(name).get_shape()
        except SafetensorError as error:
            raise ValueError(f"its {file.name} is damaged: {error}") from error
    return shapes


def read_json(file: Path) -> dict[str, Any]:
    """Return the settings in ``file``. Raises ValueError if it has none."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"its {file.name} is not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"its {file.name} has no settings but a {type(settings).__name__}")
    return settings


def read_config(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` says. Raises ValueError if it leaves out what the model is."""
    config = read_json(folder / "config.json")
    sizes = SIZES if config.get("model_type") in FAMILY else ()
    for name in ("model_type", *sizes):
        if not config.get(name):
            raise ValueError(f"its config.json names no {name}")
    return config


def read_generation(folder: Path) -> dict[str, Any]:
    """Return the settings in ``generation_config.json``; without that file, the ids that end a text."""
    file = folder / "generation_config.json"
    if file.is_file():
        return read_json(file)
    return {"eos_token_id": read_config(folder).get("eos_token_id")}


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config`` of a Llama or a Qwen with the settings that a file may leave out."""
    kind = config["model_type"]
    heads = config["num_attention_heads"]
    complete = {
        "architectures": [FAMILY[kind]],
        "head_dim": 128 if kind == "qwen3" else config["hidden_size"] // heads,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    for name, value in config.items():
        if value is not None or name not in complete:
            complete[name] = value
    return complete | {"rope_parameters": rope_of(config), "sliding_window": None}


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of ``config``'s rotation. As in transformers, ``rope_scaling``, which people
    add by hand, counts before ``rope_parameters``. Other parameters may stand outside of both."""
    rope = {"rope_theta": config.get("rope_theta", 10000.0)}
    rope |= config.get("rope_scaling") or config.get("rope_parameters") or {}
    for name in ("partial_rotary_factor", "original_max_position_embeddings"):
        if name in config:
            rope[name] = config[name]
    kind = rope.pop("type", "default")
    return {"rope_type": kind} | rope
