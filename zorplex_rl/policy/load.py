"""Load a policy: the embedded one, a local folder, or a model of the hub.

    name ──► policy_folder ─┬─► tokenizer.json, chat template ──► FastTokenizer
                            ├─► weights of the Llama family ────► Model (seconds sooner: without transformers)
                            └─► any other weights ──────────────► transformers' model

A ``Policy`` is a causal language model, its tokenizer with a chat template, and the ids that end a
text. Only safetensors, JSON and the template are read. No code of a folder runs.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zorplex_rl.config import Config
from zorplex_rl.errors import PolicyError
from zorplex_rl.policy import smollm2
from zorplex_rl.policy.model_folder import (
    ADAPTER_CONFIG,
    INDEX,
    adapter_folder,
    digest_of,
    missing_file,
    read_config,
    read_generation,
    read_json,
    weight_files,
    weight_shapes,
)
from zorplex_rl.policy.tokenizer import (
    TRIAL,
    FastTokenizer,
    end_of_turn,
)

# Torch takes a second to load, and finding a folder does not need it.
if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from zorplex_rl.policy.model import Model
    from zorplex_rl.policy.tokenizer import Tokenizer

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded"
EMBEDDINGS = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


@dataclass(slots=True)
class Policy:
    """A causal language model with a chat template."""

    model: PreTrainedModel | Model
    """In evaluation mode."""
    tokenizer: Tokenizer
    name: str
    eos_ids: tuple[int, ...]
    """The token ids that end a text."""


def load_policy(
    name: str = EMBEDDED,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    template_arguments: str = "",
    of_transformers: bool = False,
    lora_rank: int = 0,
) -> Policy:
    """Load ``name``: ``embedded``, the folder of a model or of an adapter, or a hub id, which is downloaded
    unless it is cached. The model is transformers' own with ``of_transformers``, or if our ``Model`` does
    not compute its family. With a ``lora_rank`` it is adapted, else an adapter is merged into it. Raises
    PolicyError if there is no such policy, or if it cannot be used."""
    import torch

    from zorplex_rl.policy.model import Model, is_of_the_family
    from zorplex_rl.policy.self_check import check_paths

    folder = whole_folder(name)
    tokenizer = load_tokenizer(name, folder, template_arguments)
    with _as_policy_error(name):
        is_ours = not of_transformers and is_of_the_family(read_config(folder))
        load = _load_ours if is_ours else _load_with_transformers
        model = load(folder, getattr(torch, dtype))
        add_adapter(model, name, folder, lora_rank)
    model.to(device).eval()
    if not isinstance(model, Model):
        check_paths(name, model)
    return Policy(model, tokenizer, name, end_ids(model, tokenizer))


def load_tokenizer(
    name: str,
    folder: Path,
    template_arguments: str = "",
) -> FastTokenizer:
    """Return the tokenizer of policy ``name`` in ``folder``, without torch. Raises PolicyError if there
    is none, or if its chat template does not show a system prompt and a question."""
    with _as_policy_error(name):
        tokenizer = FastTokenizer(folder, template_arguments)
        prompt = str(
            tokenizer.apply_chat_template(TRIAL, tokenize=False, add_generation_prompt=True)
        )
        end_of_turn(tokenizer)
        config = read_config(folder)
        rows = (config.get("text_config") or config).get("vocab_size")
        highest = max((len(tokenizer) - 1, *tokenizer.added_tokens_decoder))
    if rows and highest >= rows:
        raise PolicyError(
            f"policy {name!r} has a tokenizer with ids up to {highest}, "
            f"but a model of {rows} tokens, 0 to {rows - 1}; "
            "give the tokenizer that belongs to it, or enlarge it: resize_token_embeddings"
        )
    for message in TRIAL:
        if message["content"] not in prompt:
            raise PolicyError(
                f"policy {name!r} has a chat template that drops what the {message['role']} says, "
                "which the policy must read; mend its chat_template.jinja"
            )
    return tokenizer


@contextmanager
def _as_policy_error(name: str) -> Iterator[None]:
    """Turn what a library raises for the files of ``name`` into a PolicyError."""
    try:
        yield
    except Exception as error:
        # The libraries promise no narrower kinds.
        message = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise PolicyError(
            f"policy {name!r} cannot be loaded ({message}); "
            "give a causal language model with a chat template and weights as safetensors, "
            "in a folder that save_pretrained wrote, of a run its folder 'policy'"
        ) from error


def policy_folder(name: str) -> Path:
    """Return the folder of policy ``name``. Downloads a hub's. Raises PolicyError."""
    folder = _find(name)
    with _as_policy_error(name):
        if missing := missing_file(folder, "config.json"):
            raise FileNotFoundError(f"it has no {missing}")
    return folder


def whole_folder(name: str) -> Path:
    """Return the folder of policy ``name``. Raises PolicyError, also for damaged settings or weights."""
    folder = policy_folder(name)
    with _as_policy_error(name):
        read_config(folder)
        read_generation(folder)
        weight_shapes(folder)
    return folder


def _find(name: str) -> Path:
    if name == EMBEDDED:
        return EMBEDDED_PATH
    if name == smollm2.NAME:
        if not smollm2.cached().is_dir():
            raise PolicyError(
                f"policy {name!r} is not on this machine yet; run `zorplex-rl policy get {name}`"
            )
        return smollm2.cached()
    path = Path(name).expanduser()
    if adapter := adapter_folder(name):
        return _find(read_json(adapter / ADAPTER_CONFIG)["base_model_name_or_path"])
    if path.exists():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolicyError(
            f"policy {name!r} does not exist; "
            f"give {EMBEDDED!r}, a folder or a hub id like 'Qwen/Qwen2.5-0.5B-Instruct'"
        )
    return _fetch(name)


def _fetch(hub_id: str) -> Path:
    """Return a hub model's folder, from the cache or downloaded. Raises PolicyError."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
        if isinstance(cached, str) and not missing_file(Path(cached).parent, "tokenizer.json"):
            return Path(cached).parent
        files = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
        folder = Path(snapshot_download(hub_id, allow_patterns=files))
        # Without a network the library returns what there is.
        if missing := missing_file(folder, "config.json", "tokenizer.json"):
            raise FileNotFoundError(missing)
    except Exception as error:
        # Many kinds, from the library and from the network below it.
        raise PolicyError(
            f"policy {hub_id!r} is neither in the local model cache "
            f"nor can it be downloaded ({type(error).__name__}); "
            f"download it on a machine with a network, give its folder, or use {EMBEDDED!r}"
        ) from error
    return folder


def _load_ours(folder: Path, dtype: torch.dtype) -> Model:
    import torch
    from safetensors.torch import load_file

    from zorplex_rl.policy.model import Model

    settings = read_config(folder)
    settings["dtype"] = settings["torch_dtype"] = str(dtype).removeprefix("torch.")
    with torch.device("meta"):
        model = Model(SimpleNamespace(**settings), SimpleNamespace(**read_generation(folder)))
    known = model.state_dict()
    weights: dict[str, Any] = {}
    for file in weight_files(folder):
        for name, value in load_file(file).items():
            if name in known:
                # A copy: the file's memory would change with the file.
                weights[name] = value.to(dtype, copy=True)
    if model.config.tie_word_embeddings:
        weights.setdefault(EMBEDDINGS, weights.get(OUTPUT))
        weights.setdefault(OUTPUT, weights[EMBEDDINGS])
        table = weights[EMBEDDINGS]
        output = weights[OUTPUT]
        # Layers that differ in the file are two, whatever the settings say.
        is_tied = table is output or torch.equal(table, output)
        model.config.tie_word_embeddings = model.model.tied = is_tied
    model.load_state_dict(weights, assign=True)
    model.tie()
    return model


def _load_with_transformers(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # With these settings it would run a hub's code, or read other files.
    unset = dict.fromkeys(("attn_implementation", "_attn_implementation", "transformers_weights"))
    with TemporaryDirectory() as place:
        visible = Path(place)
        (visible / "config.json").write_text(json.dumps(read_config(folder) | unset))
        for file in (*weight_files(folder), folder / INDEX, folder / "generation_config.json"):
            (visible / file.name).symlink_to(file.resolve())
        model, report = AutoModelForCausalLM.from_pretrained(
            visible,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks weights, {missing[0]!r} first")
    return model


def load_policy_of(config: Config, device: str | torch.device = "cpu") -> Policy:
    """Load the policy of a run of ``config``."""
    return load_policy(
        config.policy,
        device,
        config.dtype,
        config.template_arguments,
        lora_rank=config.lora_rank,
    )


def add_adapter(
    model: PreTrainedModel | Model,
    name: str,
    folder: Path,
    rank: int,
) -> None:
    """Put an adapter beside ``model``, whose weights are in ``folder``: the one in the folder ``name``,
    merged into the model if ``rank`` is 0; else a new one of ``rank``, if it is above 0."""
    from zorplex_rl.policy.lora import adapt, load_adapter, merge

    adapter = adapter_folder(name)
    if adapter is None:
        if rank:
            adapt(model, rank)
        return
    settings = read_json(adapter / ADAPTER_CONFIG)
    if rank not in (0, settings["r"]):
        raise ValueError(
            f"its adapter has rank {settings['r']}; "
            f"give --lora-rank {settings['r']}, or 0 to merge it"
        )
    load_adapter(model, adapter, settings, digest_of(folder))
    if rank == 0:
        merge(model)


def end_ids(model: PreTrainedModel | Model, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings, the tokenizer and its
    chat template."""
    ids = {tokenizer.eos_token_id, end_of_turn(tokenizer)}
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, list) else [configured])
    return tuple(sorted(i for i in ids if i is not None))


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files in the model ``folder``."""
    return sum(file.stat().st_size for file in weight_files(folder))


def save_model(
    model: PreTrainedModel | Model,
    tokenizer: Tokenizer,
    folder: Path,
) -> None:
    """Write ``model`` and ``tokenizer`` as a folder that ``load_policy`` reads. Raises OSError."""
    from safetensors import SafetensorError

    from zorplex_rl.policy.lora import merged_weights

    try:
        model.save_pretrained(folder, state_dict=merged_weights(model))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(folder)) from error
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # The library lets only their owner read these, whatever the umask says.
        shutil.copymode(folder / "config.json", file)
