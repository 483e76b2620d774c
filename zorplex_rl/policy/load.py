"""Load a policy: the embedded one, a local folder, or a model of the hub.

All three become a ``Policy``: a causal language model, its tokenizer with a chat template, and the
ids that end a text. If a name is wrong, a ``PolicyError`` says so before anything slow starts.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zorplex_rl.errors import PolicyError
from zorplex_rl.policy.chat_template import run_template_apart
from zorplex_rl.policy.decoder import project
from zorplex_rl.policy.family import EMBEDDED_PATH, BytePairs, load_family
from zorplex_rl.policy.qwen2 import Qwen2, Settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken")
MOST_LAYERS = 1000
"""More than any model has. Each costs time and memory before its weights are looked for."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class Policy:
    """A model in evaluation mode, its tokenizer, its name, and the token ids that end a text."""

    model: PreTrainedModel | Qwen2
    tokenizer: PreTrainedTokenizerBase | BytePairs
    name: str
    eos_ids: tuple[int, ...]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause the collector, as ``services/probe.py`` does for an actor's imports: of what importing
    transformers makes nothing is garbage, and looking for some took a third of its 2.7 seconds."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_without_garbage_collection()
def load_policy(
    name: str = EMBEDDED, device: str | torch.device = "cpu", dtype: str = "float32", of_transformers: bool = False
) -> Policy:
    """Load ``name``: ``embedded``, a folder's path, or a hub id, cached or to be downloaded. The
    model is transformers' if it is ``of_transformers``, or of another family than ours. Raises
    PolicyError if there is no such policy, or if it is not a causal language model, has no chat
    template, too few embeddings for its tokenizer, or weights that are not finite."""
    source = check_policy(name)
    ours = None if of_transformers else load_family(source, device, DTYPES[dtype])
    model, tokenizer = ours or _load_with_transformers(name, source, device, dtype)
    _check_vocabulary(name, model.get_input_embeddings().weight.shape[0], tokenizer.get_vocab())
    # One pass over the memory of the device takes far less time than reading the weights from disk.
    for parameter, values in model.named_parameters():
        _check_finite(name, parameter, values)
    _check_projection(name, model)
    try:
        return Policy(model, tokenizer, name, end_ids(model, tokenizer))
    except TypeError as error:
        raise PolicyError(
            f"policy {name!r} has a generation_config.json whose eos_token_id is {model.generation_config.eos_token_id!r:.60}; "
            "expected a token id, or a list of them"
        ) from error


def _load_with_transformers(
    name: str, source: str, device: str | torch.device, dtype: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    # What is wrong is said below, in one sentence.
    logging.set_verbosity_error()
    # The folder may hold code of its own, and pickled weights, which run code too.
    safely: dict[str, Any] = {"trust_remote_code": False}
    # Whatever a file holds: the libraries promise no narrower exceptions.
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **safely)
    except Exception as error:
        raise PolicyError(f"policy {name!r} has no tokenizer that can be loaded: {_first_line(error)}") from error
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source, dtype=DTYPES[dtype], output_loading_info=True, use_safetensors=True, **safely
        )
    except Exception as error:
        # The library's own words are about a table of its own that nobody sees.
        of_other_sizes = "ignore_mismatched_sizes" in str(error)
        why = "they have other sizes than its config.json says" if of_other_sizes else _first_line(error)
        raise PolicyError(f"policy {name!r} has no weights that can be loaded: {why}") from error
    if missing := sorted(found["missing_keys"]):
        raise PolicyError(f"policy {name!r} lacks {len(missing)} weights, {missing[0]!r} first; download it again")
    # The embedded policy and its descendants have the template that the package ships.
    if tokenizer.chat_template != (EMBEDDED_PATH / "chat_template.jinja").read_text(encoding="utf-8"):
        run_template_apart(name, tokenizer)
    return model.to(device).eval(), tokenizer


@torch.inference_mode()
def _check_projection(name: str, model: PreTrainedModel | Qwen2) -> None:
    """Raise PolicyError if ``model`` computes its logits in another way than ``project``."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    expected = model(input_ids=ids).logits
    found = project(model, model.base_model(input_ids=ids).last_hidden_state)
    if not torch.allclose(expected.float(), found.float(), atol=1e-3, rtol=1e-2, equal_nan=True):
        raise PolicyError(
            f"policy {name!r} is a {type(model).__name__}, whose output layer is not supported; use a Llama, Qwen or similar model"
        )


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
        reason = error.strerror if isinstance(error, OSError) else _first_line(error)
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
            f"policy {name!r} is not a causal language model but {found}; give one whose architecture ends in 'ForCausalLM'"
        )
    if not _has_chat_template(Path(source)):
        raise PolicyError(
            f"policy {name!r} has no chat template; use an instruction-tuned model or add chat_template.jinja to its folder"
        )
    _check_files(name, Path(source))
    entries = config.get("vocab_size")
    if isinstance(entries, int) and (tokenizer := fast_tokenizer(source)):
        _check_vocabulary(name, entries, tokenizer.get_vocab())
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


def save_model(model: PreTrainedModel | Qwen2, tokenizer: PreTrainedTokenizerBase | BytePairs, folder: Path) -> None:
    """Write ``model`` and ``tokenizer`` as a folder that ``load_policy`` reads. Raises OSError."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # The library makes these for their owner alone, whatever the umask says.
        shutil.copymode(folder / "config.json", file)


def check_weights(name: str, source: str) -> None:
    """Raise PolicyError if a weight in the files of the folder ``source`` is infinite or NaN.

    ``load_policy`` does its own check. This one is for a command that loads the policy in other
    processes and must know before it starts them. It reads every file once, tensor by tensor, which
    also puts the files into the page cache for those processes.
    """
    from safetensors import safe_open

    for file in sorted(Path(source).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for parameter in tensors.keys():  # noqa: SIM118, not a dict
                _check_finite(name, parameter, tensors.get_tensor(parameter))


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


def _check_vocabulary(name: str, embeddings: int, vocabulary: dict[str, int]) -> None:
    # Not its size: ids may have gaps.
    if (highest := max(vocabulary.values(), default=-1)) >= embeddings:
        raise PolicyError(
            f"policy {name!r} has {embeddings} embeddings, but its tokenizer goes up to id {highest}; use the tokenizer that it was trained "
            f"with, or resize its embeddings to {highest + 1}"
        )


def _check_finite(name: str, parameter: str, values: torch.Tensor) -> None:
    if not math.isfinite(largest_magnitude([values])):
        raise PolicyError(
            f"policy {name!r} has weights that are not finite numbers, {parameter!r} first; use an earlier checkpoint or download it again"
        )


@torch.no_grad()
def largest_magnitude(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest |value| in ``tensors``: NaN if there is one, 0.0 if empty. Reads once."""
    # Torch cannot compare floating-point numbers of eight bits.
    comparable = (t.float() if t.is_floating_point() and t.itemsize == 1 else t.detach() for t in tensors if t.numel())
    found = [bound.float() for values in comparable for bound in torch.aminmax(values)]
    # Python's max loses a NaN that is not the first value; torch's does not.
    return torch.stack(found).abs().max().item() if found else 0.0


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
            f"policy {name!r} has no {file.name} that can be read ({_first_line(error)}); download the model again"
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
            safe_open(file, framework="pt")
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


def end_ids(model: PreTrainedModel | Qwen2, tokenizer: PreTrainedTokenizerBase | BytePairs) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings and the tokenizer."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in (*ids, tokenizer.eos_token_id) if i is not None}))


def _first_line(error: BaseException) -> str:
    """Return what ``error`` says, or what its first line announces."""
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    said = f"{first} {others[0].strip()}" if others and first.endswith(":") else first
    return f"KeyError {said}" if isinstance(error, KeyError) else said
