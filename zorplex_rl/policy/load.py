"""Load a policy: the embedded one, a local folder, or a model of the hub.

    name ──► policy_folder ──► embedded, or trained from it ──► Qwen2, BytePairs (seconds sooner: without transformers)
                                        └── any other ────────► transformers' model and tokenizer

Either becomes a ``Policy``: a causal language model, its tokenizer with a chat template, and the
ids that end a text. Only safetensors and JSON are read, and no code of a folder runs.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import PolicyError

# Torch takes a second to load, and looking for a folder needs none.
if TYPE_CHECKING:
    import torch
    from jinja2 import Template
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zorplex_rl.policy.model import Qwen2

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded"
OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""The files that make texts of tokens."""
MAY_DIFFER = (
    "dtype", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "tie_word_embeddings", "transformers_version", "vocab_size",
)  # fmt: skip
"""Settings in which a model may differ from the embedded policy's and be a ``Qwen2`` of ours."""
TRIAL = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "What is 7?"}]
"""Messages that every chat template must take."""


@dataclass(slots=True)
class Policy:
    """A model in evaluation mode, its tokenizer, its name, and the token ids that end a text."""

    model: PreTrainedModel | Qwen2
    tokenizer: PreTrainedTokenizerBase | BytePairs
    name: str
    eos_ids: tuple[int, ...]


def load_policy(
    name: str = EMBEDDED, device: str | torch.device = "cpu", dtype: str = "float32", of_transformers: bool = False
) -> Policy:
    """Load ``name``: ``embedded``, a folder's path, or a hub id, cached or to be downloaded. The
    model is transformers' if it is ``of_transformers``, or of another family than ours. Raises
    PolicyError if there is no such policy, or if it cannot be used."""
    import torch

    folder = policy_folder(name)
    load = _load_with_transformers if of_transformers or not _is_ours(folder) else _load_ours
    try:
        model, tokenizer = load(folder, getattr(torch, dtype))
        prompt = str(tokenizer.apply_chat_template(TRIAL, tokenize=False, add_generation_prompt=True))
        if "7" not in tokenizer.decode(tokenizer(prompt)["input_ids"]):
            raise ValueError("without a tokenizer.json nothing is left of a prompt")
    except Exception as error:  # The libraries promise no narrower ones.
        said = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise PolicyError(
            f"policy {name!r} cannot be loaded ({said}); give a causal language model with a chat template"
        ) from error
    model.to(device).eval()
    _check_projection(name, model)
    return Policy(model, tokenizer, name, end_ids(model, tokenizer))


def policy_folder(name: str) -> Path:
    """Return the folder of policy ``name``, downloaded if it is a hub's. Raises PolicyError."""
    if name == EMBEDDED:
        return EMBEDDED_PATH
    path = Path(name).expanduser()
    if path.exists():
        if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
            raise PolicyError(
                f"policy {name!r} is no model folder: it needs a config.json and weights as safetensors; "
                "give one that save_pretrained wrote, of a run its folder 'policy'"
            )
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolicyError(
            f"policy {name!r} does not exist; give {EMBEDDED!r}, a folder or a hub id like 'Qwen/Qwen2.5-0.5B-Instruct'"
        )
    return _fetch(name)


def _fetch(hub_id: str) -> Path:
    """Return a hub model's folder, from the cache or downloaded. Raises PolicyError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    files = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        with suppress(LocalEntryNotFoundError):
            return Path(snapshot_download(hub_id, allow_patterns=files, local_files_only=True))
        return Path(snapshot_download(hub_id, allow_patterns=files))
    except Exception as error:  # Many kinds, of the library and of the network below it.
        raise PolicyError(
            f"policy {hub_id!r} is neither in the local model cache nor can it be downloaded ({type(error).__name__}); "
            f"download it on a machine with a network, give its folder, or use {EMBEDDED!r}"
        ) from error


def _is_ours(folder: Path) -> bool:
    """Whether the policy in ``folder`` is the embedded one, or was trained from it."""
    same_texts = all(
        (folder / name).is_file() and (folder / name).read_bytes() == (EMBEDDED_PATH / name).read_bytes()
        for name in ("tokenizer.json", "chat_template.jinja")
    )
    if not same_texts:
        return False
    found, ours = (_read_json(path / "config.json") for path in (folder, EMBEDDED_PATH))
    if set(found.pop("layer_types", ())) != set(ours.pop("layer_types")):
        return False
    return found | {name: ours[name] for name in MAY_DIFFER} == ours


def _load_ours(folder: Path, dtype: torch.dtype) -> tuple[Qwen2, BytePairs]:
    import torch
    from safetensors.torch import load_file

    from zorplex_rl.policy.model import Qwen2

    config, generation = (SimpleNamespace(**_read_json(folder / f"{n}.json")) for n in ("config", "generation_config"))
    config.dtype = str(dtype).removeprefix("torch.")
    with torch.device("meta"):
        model = Qwen2(config, generation)
    # A copy: what the file's memory shows would change with the file.
    read = load_file(folder / "model.safetensors")
    weights = {name: value.to(dtype, copy=True) for name, value in read.items()}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.tie()
    return model, BytePairs()


def _load_with_transformers(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    for index in folder.glob("*.safetensors.index.json"):
        # The library would unpickle a file of another name.
        if not all(file.endswith(".safetensors") for file in _read_json(index)["weight_map"].values()):
            raise ValueError(f"its {index.name} names files that are no safetensors")
    # Of what importing transformers makes nothing is garbage, and looking for some takes a second.
    gc.disable()
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    finally:
        gc.enable()
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks weights, {missing[0]!r} first")
    return model, tokenizer


def _check_projection(name: str, model: PreTrainedModel | Qwen2) -> None:
    """Raise PolicyError if ``model`` computes its logits in another way than ``project``."""
    import torch

    from zorplex_rl.policy.decoder import project

    with torch.inference_mode():
        ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        expected = model(input_ids=ids).logits
        found = project(model, model.base_model(input_ids=ids).last_hidden_state)
    if not torch.allclose(expected.float(), found.float(), atol=1e-3, rtol=1e-2, equal_nan=True):
        raise PolicyError(
            f"policy {name!r} is a {type(model).__name__}, whose output layer is not supported; use a Llama, Qwen or similar model"
        )


def end_ids(model: PreTrainedModel | Qwen2, tokenizer: PreTrainedTokenizerBase | BytePairs) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings and the tokenizer."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in (*ids, tokenizer.eos_token_id) if i is not None}))


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


def token_counter(folder: Path) -> Callable[[str], int] | None:
    """Return what counts the tokens of a text, without torch; None if the model in ``folder`` has
    no tokenizer.json."""
    from tokenizers import Tokenizer

    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files in the model ``folder``."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


class BytePairs:
    """The tokenizer of the embedded policy: byte pairs, with the calls of transformers' that the
    package makes."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(EMBEDDED_PATH / "tokenizer.json"))
        names, vocabulary = _read_json(EMBEDDED_PATH / "tokenizer_config.json"), self.get_vocab()
        self.eos_token_id, self.pad_token_id = vocabulary[names["eos_token"]], vocabulary[names["pad_token"]]

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the ids of ``text``, as ``input_ids``. There are no special tokens to add."""
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ``ids``."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return self._tokenizer.get_vocab()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
    ) -> str | list[int]:
        """Return the prompt of ``messages`` or, with ``tokenize``, its ids."""
        text = _template().render(messages=messages, add_generation_prompt=add_generation_prompt)
        return self(text)["input_ids"] if tokenize else text

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of the tokenizer to ``folder``."""
        for name in OF_TOKENIZER:
            shutil.copyfile(EMBEDDED_PATH / name, folder / name)


@cache
def _template() -> Template:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = (EMBEDDED_PATH / "chat_template.jinja").read_text(encoding="utf-8")
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))
