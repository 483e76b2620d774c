"""Look at the files of a policy before anything slow starts: whether they are there, whole and a
causal language model with a chat template. Needs no torch, which takes a second to load.

    embedded, a folder or a hub id ──► check_policy ──► the folder, or one sentence: a PolicyError
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import PolicyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig

    from zorplex_rl.policy.qwen2 import Settings

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken")
MOST_LAYERS = 1000
"""More than any model has. Each costs time and memory before its weights are looked for."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


def check_policy(name: str) -> str:
    """Check the files of policy ``name``. Returns the argument for ``from_pretrained``. Loads no
    weights and no tokenizer, so it is quick. Raises PolicyError, too."""
    if name == EMBEDDED:
        return str(EMBEDDED_PATH)
    if not name.strip():
        raise PolicyError(f"policy {name!r} is empty; give {EMBEDDED!r}, the folder of a model or a hub id")
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise PolicyError(
            f"policy {name[:60]!r} cannot be looked at ({reason}); give {EMBEDDED!r} or the folder of a model"
        ) from error
    if exists:
        if not (path / "config.json").is_file():
            raise PolicyError(
                f"policy {name!r} is no model folder: it has no config.json; give a folder that save_pretrained wrote"
            )
    elif name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolicyError(
            f"policy {name!r} does not exist; give {EMBEDDED!r}, an existing folder or a hub id like 'Qwen/Qwen2.5-0.5B-Instruct'"
        )
    source = str(path) if exists else _fetch(name)
    config = _read_json(name, Path(source) / "config.json")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise PolicyError(
            f"policy {name!r} has a config.json whose 'architectures' is {architectures!r}; expected a list"
        )
    if setting := too_many_layers(config):
        raise PolicyError(
            f"policy {name!r} has a config.json whose {setting!r} is above {MOST_LAYERS}; use a smaller model"
        )
    for setting in ("attn_implementation", "_attn_implementation"):
        if "/" in str(config.get(setting, "")):
            raise PolicyError(
                f"policy {name!r} has a config.json whose {setting!r} is code to be downloaded; remove this entry"
            )
    if not any(str(a).endswith(("ForCausalLM", "LMHeadModel")) for a in architectures):
        found = ", ".join(map(str, architectures)) or config.get("model_type", "an unknown model")
        raise PolicyError(
            f"policy {name!r} is not a causal language model but {found}; "
            "give one whose architecture ends in 'ForCausalLM', or of a run its folder 'policy'"
        )
    if not _has_chat_template(Path(source)):
        raise PolicyError(
            f"policy {name!r} has no chat template; use an instruction-tuned model or add chat_template.jinja to its folder"
        )
    _check_files(name, Path(source))
    entries = config.get("vocab_size")
    if isinstance(entries, int) and (tokenizer := fast_tokenizer(source)):
        check_vocabulary(name, entries, tokenizer.get_vocab())
    return source


def too_many_layers(config: object) -> str | None:
    """Return the setting of ``config``, or of a configuration within it, that is above
    MOST_LAYERS. transformers makes a list as long before it makes a model."""
    left = [config]
    while left:
        if isinstance(found := left.pop(), dict):
            for setting in LAYERS:
                if isinstance(layers := found.get(setting), int) and layers > MOST_LAYERS:
                    return setting
            left += found.values()
    return None


def positions_of(config: PretrainedConfig | Settings | str) -> int | None:
    """Return how many tokens a model of ``config`` (or its folder) can read, or None if unknown."""
    found = _read_json(config, Path(config) / "config.json") if isinstance(config, str) else config.to_dict()
    positions = found.get("max_position_embeddings") or found.get("n_positions")
    return positions if isinstance(positions, int) else None


def fast_tokenizer(source: str) -> Tokenizer | None:
    """Return the tokenizer in ``source`` without importing transformers, or None."""
    from tokenizers import Tokenizer

    file = Path(source) / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # The library raises nothing narrower. ``load_policy`` reports a broken file later.
        return None


def token_count(tokenizer: Tokenizer, text: str) -> int:
    """Return the number of tokens of ``text``, without special tokens around it."""
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def check_vocabulary(name: str, embeddings: int, vocabulary: dict[str, int]) -> None:
    # Not its size: ids may have gaps.
    if (highest := max(vocabulary.values(), default=-1)) >= embeddings:
        raise PolicyError(
            f"policy {name!r} has {embeddings} embeddings, but its tokenizer goes up to id {highest}; use the tokenizer that it was trained "
            f"with, or resize its embeddings to {highest + 1}"
        )


def weight_bytes(source: str) -> int:
    """Return the bytes of the weight files in the model folder ``source``."""
    return sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    tokenizer_config = folder / "tokenizer_config.json"
    return tokenizer_config.is_file() and bool(_read_json(folder.name, tokenizer_config).get("chat_template"))


def _read_json(name: str, file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``. Raises PolicyError if there is none."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            f"policy {name!r} has no {file.name} that can be read ({first_line(error)}); download the model again"
        ) from error
    if not isinstance(content, dict):
        raise PolicyError(f"policy {name!r} has a {file.name} that is no JSON object; download the model again")
    return content


def _check_files(name: str, folder: Path) -> None:
    """Raise PolicyError if tokenizer or weights in ``folder`` are missing or cut off."""
    from safetensors import SafetensorError, safe_open

    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise PolicyError(f"policy {name!r} has no tokenizer; add its tokenizer.json to the folder")
    if not weight_bytes(str(folder)):
        pickled = " but pickled ones, which can run code when they are read" if any(folder.glob("*.bin")) else ""
        raise PolicyError(f"policy {name!r} has no weights{pickled}; add its model.safetensors to the folder")
    for index in folder.glob("*.index.json"):
        names = _read_json(name, index).get("weight_map")
        for file in names.values() if isinstance(names, dict) else [names]:
            # The library would unpickle another kind of file.
            if not (isinstance(file, str) and file.endswith(".safetensors") and (folder / file).parent == folder):
                raise PolicyError(
                    f"policy {name!r} has an {index.name} that names {file!r:.60}; expected files of safetensors in its folder"
                )
    for file in folder.glob("*.safetensors"):
        try:
            safe_open(file, framework="np")
        except (SafetensorError, OSError) as error:
            raise PolicyError(
                f"policy {name!r} has weights that were cut off, {file.name}; download it again"
            ) from error


def _fetch(hub_id: str) -> str:
    """Return a hub model's folder, from the cache or downloaded. Raises PolicyError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        return snapshot_download(hub_id, allow_patterns=files, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        return snapshot_download(hub_id, allow_patterns=files)
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise PolicyError(
            f"policy {hub_id!r} is neither in the local model cache nor can it be downloaded ({type(error).__name__}); "
            f"download it on a machine with a network, give its folder, or use {EMBEDDED!r}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return what ``error`` says, or what its first line announces."""
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    said = f"{first} {others[0].strip()}" if others and first.endswith(":") else first
    return f"KeyError {said}" if isinstance(error, KeyError) else said
