"""Load a policy: the embedded one, a local folder, or a model of the hub.

    name ──► policy_folder ──► of the Llama family ──► Model, BytePairs (seconds sooner: without transformers)
                                        └── any other ─► transformers' model and tokenizer

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

    from zorplex_rl.policy.model import Model

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded"
OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""The files that make texts of tokens."""
LONGEST_CHECKED = 2048
"""Longest text on which a model is checked: those of a run are shorter."""
TRIAL = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "What is 7?"}]
"""Messages that every chat template must take."""


@dataclass(slots=True)
class Policy:
    """A model in evaluation mode, its tokenizer, its name, and the token ids that end a text."""

    model: PreTrainedModel | Model
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

    from zorplex_rl.policy.model import Model

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
    if not isinstance(model, Model):
        _check_paths(name, model)
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
    """Whether ``Model`` and ``BytePairs`` can read ``folder``."""
    from zorplex_rl.policy.model import is_of_the_family

    has_texts = (folder / "tokenizer.json").is_file() and _template_of(folder) is not None
    return has_texts and is_of_the_family(_read_json(folder / "config.json"))


def _load_ours(folder: Path, dtype: torch.dtype) -> tuple[Model, BytePairs]:
    import torch
    from safetensors.torch import load_file

    from zorplex_rl.policy.model import Model

    settings = _read_json(folder / "config.json") | {"dtype": str(dtype).removeprefix("torch.")}
    file = folder / "generation_config.json"
    generation = _read_json(file) if file.is_file() else {"eos_token_id": settings.get("eos_token_id")}
    with torch.device("meta"):
        model = Model(SimpleNamespace(**settings), SimpleNamespace(**generation))
    # A copy: what the file's memory shows would change with the file.
    weights = {
        name: value.to(dtype, copy=True)
        for part in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(part).items()
        if "rotary_emb" not in name
    }
    if settings.get("tie_word_embeddings"):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.tie()
    return model, BytePairs(folder)


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


def _check_paths(name: str, model: PreTrainedModel | Model) -> None:
    """Raise PolicyError if sampler or trainer compute other log-probs with ``model`` than its plain
    ``forward``: on a short text, and on one that is longer than its window of attention."""
    import torch

    from zorplex_rl.policy.decoder import Decoder, SlotCache, plant, prefill, project, states_of

    window = getattr(model.config, "sliding_window", None) or 0
    for length in [16] + [window + 8] * (0 < window <= LONGEST_CHECKED):
        text = [7919 * i % min(1000, model.config.vocab_size) for i in range(length)]
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([text], device=model.device)).logits[0].float()
            tree = plant([[text, [*text[: length // 2], 1]]], model.device)
            trained = project(model, states_of(model, tree))[0, :length]
            ((snapshot, first),) = prefill(model, [text[:-1]])
            slots = SlotCache(model, 1, length)
            slots.put(0, snapshot)
            last = Decoder(model)(slots.begin_step([length - 1], [text[-1:]]), slots)
        found = torch.cat((trained, first[None], last.float()))
        off = (torch.cat((expected, expected[-2:])).log_softmax(-1) - found.log_softmax(-1)).abs().max().item()
        # Not finite logits are noticed when they are drawn from.
        if off > (1e-3 if model.dtype == torch.float32 else 0.2):
            raise PolicyError(
                f"policy {name!r} is a {type(model).__name__}, with which sampling and training would compute other "
                f"log-probs than the model itself (off by {off:.2g}); use a Llama, Qwen or similar model"
            )


def end_ids(model: PreTrainedModel | Model, tokenizer: PreTrainedTokenizerBase | BytePairs) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings and the tokenizer."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in (*ids, tokenizer.eos_token_id) if i is not None}))


def save_model(model: PreTrainedModel | Model, tokenizer: PreTrainedTokenizerBase | BytePairs, folder: Path) -> None:
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


class BytePairs:
    """The tokenizer of a folder's ``tokenizer.json``, with the calls of transformers' that the
    package makes."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._folder = folder
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._names = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in _read_json(folder / "tokenizer_config.json").items()
            if name in ("bos_token", "eos_token", "pad_token", "unk_token") and token
        }
        ids = {name: self._tokenizer.token_to_id(token) for name, token in self._names.items()}
        self.eos_token_id, self.pad_token_id = ids.get("eos_token"), ids.get("pad_token")

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the ids of ``text``, as ``input_ids``."""
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
        source = _template_of(self._folder)
        assert source is not None, "the folder has a chat template"
        text = _compiled(source).render(messages=messages, add_generation_prompt=add_generation_prompt, **self._names)
        return self(text, add_special_tokens=False)["input_ids"] if tokenize else text

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of the tokenizer to ``folder``."""
        for name in OF_TOKENIZER:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def _template_of(folder: Path) -> str | None:
    """Return the chat template of ``folder``, if it has one."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    found = _read_json(settings).get("chat_template") if settings.is_file() else None
    return found if isinstance(found, str) else None


@cache
def _compiled(source: str) -> Template:
    import json

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))
