"""Load the embedded policy, and what was trained from it, without transformers.

folder ──► the embedded policy's own tokenizer and template, a plain Qwen2? ──► Qwen2, BytePairs
                 └── no, or its files do not fit together: None, and transformers reads it
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zorplex_rl.policy.model_folder import EMBEDDED_PATH
from zorplex_rl.policy.qwen2 import Qwen2, Settings

if TYPE_CHECKING:
    from jinja2 import Template

OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""The files that make texts of tokens."""
EXPECTED = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "use_sliding_window": False,
}
"""Entries of ``config.json`` without which a model is not plain."""
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
LARGEST_HEAD = 1024
"""Numbers for each of a head's angles are made before the weights are looked at."""


class BytePairs:
    """The tokenizer of the embedded policy: byte pairs, with the calls of transformers' that the
    package makes."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(EMBEDDED_PATH / "tokenizer.json"))
        names = json.loads((EMBEDDED_PATH / "tokenizer_config.json").read_text(encoding="utf-8"))
        vocabulary = self.get_vocab()
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


def load_family(source: str, device: str | torch.device, dtype: torch.dtype) -> tuple[Qwen2, BytePairs] | None:
    """Load the model folder ``source`` if it is of the embedded policy's family, else return None,
    also if something is wrong with it: transformers says what."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(source)
    try:
        if _what_makes_texts(folder) != _what_makes_texts(EMBEDDED_PATH):
            return None
        config, generation = (_settings(folder / f"{name}.json") for name in ("config", "generation_config"))
        if not _is_plain(config) or [path.name for path in folder.glob("*.safetensors")] != ["model.safetensors"]:
            return None
        config.dtype = str(dtype).removeprefix("torch.")
        with torch.device("meta"):
            model = Qwen2(config, generation)
        read = load_file(folder / "model.safetensors")
        if _shapes(read) != _shapes(dict(model.named_parameters())):
            return None
        # A copy: what the file's memory shows would change with the file.
        own = {name: value.to(dtype, copy=True) for name, value in read.items()}
        model.load_state_dict(own, strict=False, assign=True)
        model.tie()
        return model.to(device).eval(), BytePairs()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError):
        return None


def _what_makes_texts(folder: Path) -> tuple[bytes, bytes, dict[str, object]]:
    tokenizer, config, template = ((folder / name).read_bytes() for name in OF_TOKENIZER)
    # Transformers 5.24 also writes where it had read it.
    said = {name: value for name, value in json.loads(config).items() if name not in ("is_local", "local_files_only")}
    return tokenizer, template, said


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _settings(file: Path) -> Settings:
    return Settings(**json.loads(file.read_text(encoding="utf-8")))


def _is_plain(config: Settings) -> bool:
    found = config.to_dict()
    return (
        found.keys() <= _settings(EMBEDDED_PATH / "config.json").to_dict().keys()
        and all(found.get(name) == value for name, value in EXPECTED.items())
        and all(type(found.get(name)) is int and found[name] > 0 for name in SIZES)
        and found["hidden_size"] % (2 * found["num_attention_heads"]) == 0
        and found["num_attention_heads"] % found["num_key_value_heads"] == 0
        and set(found.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and (found.get("rope_parameters") or {}).get("rope_type") == "default"
        and found["hidden_size"] <= LARGEST_HEAD * found["num_attention_heads"]
        and found.get("pad_token_id") in range(found["vocab_size"])
        and isinstance(found.get("tie_word_embeddings"), bool)
        and isinstance(found.get("rms_norm_eps"), float)
    )
