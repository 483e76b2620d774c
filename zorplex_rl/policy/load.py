"""Load a policy: the embedded one, a local folder, or a model of the hub.

All three become a ``Policy``: a causal language model, its tokenizer with a chat template, and the
ids that end a text. If a name is wrong, a ``PolicyError`` says so before anything slow starts.
"""

from __future__ import annotations

import gc
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
from zorplex_rl.policy.family import BytePairs, load_family
from zorplex_rl.policy.model_folder import EMBEDDED, EMBEDDED_PATH, check_policy, check_vocabulary, first_line
from zorplex_rl.policy.qwen2 import Qwen2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
    check_vocabulary(name, model.get_input_embeddings().weight.shape[0], tokenizer.get_vocab())
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
        raise PolicyError(f"policy {name!r} has no tokenizer that can be loaded: {first_line(error)}") from error
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source, dtype=DTYPES[dtype], output_loading_info=True, use_safetensors=True, **safely
        )
    except Exception as error:
        # The library's own words are about a table of its own that nobody sees.
        of_other_sizes = "ignore_mismatched_sizes" in str(error)
        why = "they have other sizes than its config.json says" if of_other_sizes else first_line(error)
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


def end_ids(model: PreTrainedModel | Qwen2, tokenizer: PreTrainedTokenizerBase | BytePairs) -> tuple[int, ...]:
    """Return the ids that end a text, from the model's generation settings and the tokenizer."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in (*ids, tokenizer.eos_token_id) if i is not None}))
