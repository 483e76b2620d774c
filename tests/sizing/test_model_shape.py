"""How many parameters a policy has, whatever its family: exactly those of the model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.model_shape import ModelShape, shape_of

COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
SMALL = {
    "qwen2": COMMON | {"tie_word_embeddings": True},
    "llama": COMMON | {"attention_bias": True, "mlp_bias": True},
    "qwen3": COMMON | {"head_dim": 24},
    "qwen3_moe": COMMON | EXPERTS | {"num_experts": 8},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 128},
    "opt": COMMON | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gemma3": {"text_config": COMMON | {"head_dim": 16}, "vision_config": {"num_hidden_layers": 1}},
}


@pytest.mark.parametrize("family", SMALL)
def test_the_parameters_are_those_of_the_model_itself_in_every_family(family, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL[family]))
    model.save_pretrained(tmp_path)
    shape = shape_of(tmp_path)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.table == model.get_input_embeddings().weight.numel()
    assert (shape.layers, shape.hidden, shape.heads) == (3, 64, 4)
    assert shape.tied == (
        model.get_output_embeddings().weight is model.get_input_embeddings().weight
    )
    assert bool(shape.unknown) == (family not in ("qwen2", "llama", "qwen3"))


@pytest.mark.parametrize(
    "shape",
    [
        ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=500),
        ModelShape(
            layers=3, hidden=48, heads=6, kv_heads=1, intermediate=100, vocabulary=333, tied=False
        ),
        ModelShape(
            layers=1, hidden=64, heads=4, kv_heads=4, intermediate=128, vocabulary=77, head_size=32
        ),
    ],
)
def test_the_formula_counts_the_parameters_of_a_qwen2(shape, tmp_path):
    from zorplex_rl.course.nb10 import make_model

    make_model(shape, tmp_path)
    assert shape_of(tmp_path).counted == shape.parameters


def test_where_sizes_differ_from_layer_to_layer_the_largest_counts(tmp_path):
    sizes = COMMON | {"model_type": "gemma3n_text", "intermediate_size": [96, 96, 128]}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert shape_of(tmp_path).intermediate == 128


def test_a_shape_needs_no_torch():
    program = (
        "import sys; from pathlib import Path; from zorplex_rl.sizing.model_shape import shape_of; "
        f"shape_of(Path({str(EMBEDDED_PATH)!r})); assert not {{'torch', 'transformers'}} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
