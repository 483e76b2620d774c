"""Load a policy: the embedded one, a local folder, or a model of the hub.

    name ──► policy_folder ─┬─► tokenizer.json, chat template ──► BytePairs
                            ├─► weights of the Llama family ────► Model (seconds sooner: without transformers)
                            └─► any other weights ──────────────► transformers' model

A ``Policy`` is a causal language model, its tokenizer with a chat template, and the ids that end a
text. Only safetensors, JSON and the template are read, and no code of a folder runs.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import PolicyError
from zorplex_rl.policy import smollm2
from zorplex_rl.policy.model_folder import (
    INDEX,
    missing_file,
    read_config,
    read_generation,
    read_json,
    weight_files,
    weight_shapes,
)

# Torch takes a second to load, and looking for a folder needs none.
if TYPE_CHECKING:
    import torch
    from jinja2 import Template
    from tokenizers import AddedToken
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zorplex_rl.policy.model import Model

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded"
LONGEST_CHECKED = 2048
"""Longest text on which a model is checked: those of a run are shorter."""
EMBEDDINGS, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
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
    name: str = EMBEDDED, device: str | torch.device = "cpu", dtype: str = "float32", template_arguments: str = "",
    of_transformers: bool = False,
) -> Policy:  # fmt: skip
    """Load ``name``: ``embedded``, a folder's path, or a hub id, cached or to be downloaded. The
    model is transformers' if it is ``of_transformers``, or of another family than ours. Raises
    PolicyError if there is no such policy, or if it cannot be used."""
    import torch

    from zorplex_rl.policy.model import Model, is_of_the_family

    folder = whole_folder(name)
    tokenizer = load_tokenizer(name, folder, template_arguments)
    with _refused(name):
        is_ours = not of_transformers and is_of_the_family(read_config(folder))
        model = (_load_ours if is_ours else _load_with_transformers)(folder, getattr(torch, dtype))
    model.to(device).eval()
    if not isinstance(model, Model):
        _check_paths(name, model)
    return Policy(model, tokenizer, name, end_ids(model, tokenizer))


def load_tokenizer(name: str, folder: Path, template_arguments: str = "") -> BytePairs:
    """Return the tokenizer of policy ``name`` in ``folder``, without torch. Raises PolicyError if
    there is none, or no chat template that shows a system prompt and a question."""
    with _refused(name):
        tokenizer = BytePairs(folder, template_arguments)
        prompt = str(tokenizer.apply_chat_template(TRIAL, tokenize=False, add_generation_prompt=True))
        end_of_turn(tokenizer)
        config = read_config(folder)
        rows = (config.get("text_config") or config).get("vocab_size")
        highest = max((len(tokenizer) - 1, *tokenizer.added_tokens_decoder))
    if rows and highest >= rows:
        raise PolicyError(
            f"policy {name!r} has a tokenizer with ids up to {highest}, but a model of {rows} tokens, 0 to {rows - 1}; "
            "give the tokenizer that belongs to it, or enlarge it: resize_token_embeddings"
        )
    if lost := [message["role"] for message in TRIAL if message["content"] not in prompt]:
        raise PolicyError(
            f"policy {name!r} has a chat template that drops what the {lost[0]} says, which the policy must read; "
            "mend its chat_template.jinja"
        )
    return tokenizer


@contextmanager
def _refused(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # The libraries promise no narrower ones.
        said = " ".join(f"{type(error).__name__} {error}".split())[:300]
        if "strftime_now" in said:
            said = "its chat template reads the clock, strftime_now, so the prompts would change from day to day"
        raise PolicyError(
            f"policy {name!r} cannot be loaded ({said}); give a causal language model with a chat template and weights "
            "as safetensors, in a folder that save_pretrained wrote, of a run its folder 'policy'"
        ) from error


def policy_folder(name: str) -> Path:
    """Return the folder of policy ``name``, downloaded if it is a hub's. Raises PolicyError."""
    folder = _find(name)
    with _refused(name):
        if lost := missing_file(folder, "config.json"):
            raise FileNotFoundError(f"it has no {lost}")
    return folder


def whole_folder(name: str) -> Path:
    """Return the folder of policy ``name``, whose settings and weights were found to be whole. Raises PolicyError."""
    folder = policy_folder(name)
    with _refused(name):
        read_config(folder)
        read_generation(folder)
        weight_shapes(folder)
    return folder


def _find(name: str) -> Path:
    if name == EMBEDDED:
        return EMBEDDED_PATH
    if name == smollm2.NAME:
        if not smollm2.cached().is_dir():
            raise PolicyError(f"policy {name!r} is not on this machine yet; run `zorplex-rl policy get {name}`")
        return smollm2.cached()
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolicyError(
            f"policy {name!r} does not exist; give {EMBEDDED!r}, a folder or a hub id like 'Qwen/Qwen2.5-0.5B-Instruct'"
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
        if lost := missing_file(folder, "config.json", "tokenizer.json"):
            raise FileNotFoundError(lost)
    except Exception as error:  # Many kinds, of the library and of the network below it.
        raise PolicyError(
            f"policy {hub_id!r} is neither in the local model cache nor can it be downloaded ({type(error).__name__}); "
            f"download it on a machine with a network, give its folder, or use {EMBEDDED!r}"
        ) from error
    return folder


def _load_ours(folder: Path, dtype: torch.dtype) -> Model:
    import torch
    from safetensors.torch import load_file

    from zorplex_rl.policy.model import Model

    settings = read_config(folder) | dict.fromkeys(("dtype", "torch_dtype"), str(dtype).split(".")[1])
    with torch.device("meta"):
        model = Model(SimpleNamespace(**settings), SimpleNamespace(**read_generation(folder)))
    known = model.state_dict()
    # A copy: what the file's memory shows would change with the file.
    weights: dict[str, Any] = {
        name: value.to(dtype, copy=True)
        for file in weight_files(folder)
        for name, value in load_file(file).items()
        if name in known
    }
    if model.config.tie_word_embeddings:
        weights = {EMBEDDINGS: weights.get(OUTPUT), OUTPUT: weights.get(EMBEDDINGS)} | weights
        table, output = weights[EMBEDDINGS], weights[OUTPUT]
        # Layers that differ in the file are two, whatever the settings say.
        model.config.tie_word_embeddings = model.model.tied = table is output or torch.equal(table, output)
    model.load_state_dict(weights, assign=True)
    model.tie()
    return model


def _load_with_transformers(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # With these it would run a hub's code, or read other files.
    unset = dict.fromkeys(("attn_implementation", "_attn_implementation", "transformers_weights"))
    with TemporaryDirectory() as place:
        seen = Path(place)
        (seen / "config.json").write_text(json.dumps(read_config(folder) | unset))
        for file in (*weight_files(folder), folder / INDEX, folder / "generation_config.json"):
            (seen / file.name).symlink_to(file.resolve())
        model, found = AutoModelForCausalLM.from_pretrained(
            seen, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks weights, {missing[0]!r} first")
    return model


def _check_paths(name: str, model: PreTrainedModel) -> None:
    """Raise PolicyError if sampler or trainer cannot run ``model``, or compute other log-probs than
    its plain ``forward``: on a short text, and on texts across its borders."""
    import torch

    from zorplex_rl.policy.decoder import borders

    window, turn = borders(model)
    allowed = 1e-3 if model.dtype == torch.float32 else 0.2
    try:
        lengths = (16, window + 8, turn + 1)
        off = max(_difference(model, length) for length in lengths if 16 <= length <= LONGEST_CHECKED)
    except Exception as error:  # The model's own code raises it, for instance where layers have another memory.
        why = " ".join(f"fail: {type(error).__name__} {error}".split())[:200]
    else:
        # Not finite logits are noticed when they are drawn from.
        if not off > allowed:
            return
        why = f"would compute other log-probs than the model itself, off by {off:.2g}"
    raise PolicyError(
        f"policy {name!r} is a {type(model).__name__}, with which sampling and training {why}; "
        "use a Llama, Qwen or similar model"
    )


def _difference(model: PreTrainedModel, length: int) -> float:
    """Return how far log-probs of sampler and trainer are from those of the plain ``forward``."""
    import torch

    from zorplex_rl.policy.decoder import Decoder, SlotCache, build_tree, prefill, project, states_of

    text = [7919 * i % min(1000, model.config.vocab_size) for i in range(length)]
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([text], device=model.device)).logits[0].float()
        tree = build_tree([text, [*text[: length // 2], 1]], model.device)
        trained = project(model, states_of(model, tree))[:length]
        ((snapshot, first),) = prefill(model, [text[:-1]])
        slots = SlotCache(model, 1, length)
        slots.put(0, snapshot)
        last = Decoder(model)(slots.begin_step([length - 1], [text[-1:]]), slots)
    found = torch.cat((trained, first[None], last.float()))
    return (torch.cat((expected, expected[-2:])).log_softmax(-1) - found.log_softmax(-1)).abs().max().item()


def end_ids(model: PreTrainedModel | Model, tokenizer: PreTrainedTokenizerBase | BytePairs) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings, the tokenizer and its
    chat template."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in (*ids, tokenizer.eos_token_id, end_of_turn(tokenizer)) if i is not None}))


def end_of_turn(tokenizer: PreTrainedTokenizerBase | BytePairs) -> int | None:
    """Return the control token that the chat template puts after an answer, if it puts one."""
    said = "It is 7."
    text = tokenizer.apply_chat_template([*TRIAL, {"role": "assistant", "content": said}], tokenize=False)
    after = tokenizer(str(text).rpartition(said)[2].lstrip(), add_special_tokens=False)["input_ids"]
    token = tokenizer.added_tokens_decoder.get(after[0]) if after else None
    return after[0] if token and token.special else None


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files in the model ``folder``."""
    return sum(file.stat().st_size for file in weight_files(folder))


def save_model(model: PreTrainedModel | Model, tokenizer: PreTrainedTokenizerBase | BytePairs, folder: Path) -> None:
    """Write ``model`` and ``tokenizer`` as a folder that ``load_policy`` reads. Raises OSError."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(folder)) from error
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # The library makes these for their owner alone, whatever the umask says.
        shutil.copymode(folder / "config.json", file)


class BytePairs:
    """The tokenizer of a folder's ``tokenizer.json``, with the calls of transformers' that the
    package makes. Its chat template begins by setting ``template_arguments``, also when saved."""

    def __init__(self, folder: Path, template_arguments: str = "") -> None:
        from tokenizers import Tokenizer

        self._folder = folder
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        given = "".join(f"{{% set {each} %}}" for each in template_arguments.split(",") if each)
        self._template = given + _template_of(folder)
        self.added_tokens_decoder: dict[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        self._names = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in read_json(folder / "tokenizer_config.json").items()
            if name in ("bos_token", "eos_token", "pad_token", "unk_token") and token
        }
        ids = {name: self._tokenizer.token_to_id(token) for name, token in self._names.items()}
        self.eos_token_id = ids.get("eos_token")
        self.pad_token_id = ids.get("pad_token")

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        """Return the ids of ``text``, as ``input_ids``; control tokens in it are split as text is, or
        recognised."""
        self._tokenizer.encode_special_tokens = split_special_tokens
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
        """Return the prompt of ``messages`` or, with ``tokenize``, its ids. A template that refuses a
        system prompt gets it at the beginning of the first question."""
        from jinja2 import TemplateError

        settings = {"add_generation_prompt": add_generation_prompt, "tools": None, "documents": None, **self._names}
        try:
            text = _compiled(self._template).render(messages=messages, **settings)
        except TemplateError:
            system, question, *others = messages
            asked = {**question, "content": f"{system['content']}\n\n{question['content']}"}
            text = _compiled(self._template).render(messages=[asked, *others], **settings)
        return self(text, add_special_tokens=False)["input_ids"] if tokenize else text

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of the tokenizer to ``folder``."""
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self._folder / name, folder / name)
        (folder / "chat_template.jinja").write_text(self._template, encoding="utf-8")


def _template_of(folder: Path) -> str:
    """Return the chat template of ``folder``. Raises ValueError if it has none."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    found = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # Several, by name.
        found = next((each["template"] for each in found if each["name"] == "default"), None)
    if found is None:
        raise ValueError("it has no chat_template")
    return found


@cache
def _compiled(source: str) -> Template:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag that marks what a model writes. For a prompt it is only its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    extensions = [loopcontrols, Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)
