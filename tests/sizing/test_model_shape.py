"""How many parameters a policy has, whatever its family: exactly those of the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, PolicyError
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing import memory
from zorplex_rl.sizing.fit import check_fit, run_bytes
from zorplex_rl.sizing.model_shape import shape_of
from zorplex_rl.sizing.workload import Workload

COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
SMALL = {
    "qwen2": {},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 16},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 6, "shared_expert_intermediate_size": 48, **EXPERTS},
    "qwen3": {"head_dim": 24},
    "qwen3_moe": {"num_experts": 8, **EXPERTS},
    "phi": {},
    "phi3": {},
    "gpt_neox": {},
    "starcoder2": {},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 128},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gemma2": {"head_dim": 16},
    "olmo2": {},
    "deepseek_v3": {"kv_lora_rank": 16, "q_lora_rank": 24, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                    "first_k_dense_replace": 1, **EXPERTS},
}  # fmt: skip
PUBLISHED = {
    "gpt2": ({}, 124_439_808),
    "gpt_neox": ({}, 20_554_567_680),  # GPT-NeoX-20B
    "phi": ({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32}, 2_779_683_840),  # Phi-2
    "starcoder2": ({}, 3_030_371_328),  # StarCoder2-3B
    "mixtral": ({}, 46_702_792_704),  # Mixtral-8x7B
    "qwen3_moe": (
        {"num_hidden_layers": 48, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 6144, "moe_intermediate_size": 768},
        30_532_122_624,  # Qwen3-30B-A3B
    ),
    "qwen2": (
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
        494_032_768,  # Qwen2.5-0.5B
    ),
}  # fmt: skip


def folder_of(path, family: str, settings: dict):
    """A model folder without weights."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **settings)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return path, config


@pytest.mark.parametrize("family", SMALL)
def test_the_parameters_are_those_of_the_model_itself_in_every_family(family, tmp_path):
    from transformers import AutoModelForCausalLM

    path, config = folder_of(tmp_path / "model", family, COMMON | SMALL[family] if family != "gpt2" else SMALL[family])
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(path)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.table == model.get_input_embeddings().weight.numel()
    assert bool(shape.unknown) == (family != "qwen2")
    if shape.unknown:
        assert f"not of a {family}" in shape.unknown[0]
        assert any("experts" in said for said in shape.unknown) == ("num_experts_per_tok" in config.to_dict())
        assert any("window" in said for said in shape.unknown) == (family in ("mistral", "gemma2"))


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_parameters_of_a_published_model_are_the_published_ones(family, tmp_path):
    settings, published = PUBLISHED[family]
    path, _ = folder_of(tmp_path / "model", family, settings)
    shape = shape_of(path)
    assert shape.parameters == published
    work = Workload(dtype="bfloat16")
    update = memory.trainer_memory(shape, work).phases["update"]
    assert (update["weights"], update["moments"]) == (2 * published, 8 * published)


def test_a_token_of_a_mixture_of_experts_takes_the_activations_of_those_that_it_is_sent_to(tmp_path):
    few, many = (
        shape_of(folder_of(tmp_path / str(n), "qwen3_moe", COMMON | EXPERTS | {"num_experts": n})[0]) for n in (4, 16)
    )
    assert few.intermediate == many.intermediate == 64
    assert many.parameters > 2 * few.parameters and many.largest == 16 * (2 * 32) * 64


GEMMA = {"head_dim": 16, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300}


@pytest.mark.parametrize(
    ("family", "settings", "sizes"),
    [
        ("gemma3n_text", {"intermediate_size": [96, 96, 128], "activation_sparsity_pattern": [0.0] * 3, "laurel_rank": 8,
                          "layer_types": ["full_attention"] * 3}, (128, 16)),
        ("gemma4_text", {"global_head_dim": 32, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
         (96, 32)),
    ],
)  # fmt: skip
def test_of_sizes_that_differ_from_layer_to_layer_the_largest_counts_and_that_is_said(
    family, settings, sizes, tmp_path
):
    transformers = pytest.importorskip("transformers")
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    path, config = folder_of(tmp_path / "model", family, COMMON | GEMMA | settings)
    shape = shape_of(path)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (shape.intermediate, shape.head_size) == sizes
    assert "its layers differ in size: each counts as the largest" in shape.unknown


def test_a_model_that_also_sees_has_the_shape_of_its_language_model(tmp_path):
    path, _ = folder_of(tmp_path / "model", "gemma3", {"text_config": COMMON | {"head_dim": 16}})
    assert shape_of(path).layers == 3


@pytest.mark.parametrize("size", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"])
def test_a_size_that_is_null_is_refused(size, tmp_path):
    path, config = folder_of(tmp_path / "model", "qwen2", COMMON)
    (path / "config.json").write_text(json.dumps(config.to_dict() | {size: None}, default=str))
    with pytest.raises(PolicyError, match="of which transformers makes no model"):
        shape_of(path)


def test_a_plain_qwen2_needs_no_torch(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys; from zorplex_rl.cli import size; "
        f"from pathlib import Path; size._read_shape(Path({str(EMBEDDED_PATH)!r})); "
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "config",
    [{}, {"model_type": "nothing"}, {"model_type": "qwen2", "hidden_size": "x"}, {"model_type": "llama", "hidden_size": -4},
     []],
)  # fmt: skip
def test_a_configuration_of_no_model_is_refused_in_one_sentence(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="of which transformers makes no model") as error:
        shape_of(tmp_path)
    assert "\n" not in str(error.value)


def test_size_says_what_it_does_not_know_of_a_family(tmp_path, capsys):
    path, config = folder_of(tmp_path / "model", "gpt2", SMALL["gpt2"] | {"vocab_size": 533})
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    for file in EMBEDDED_PATH.iterdir():
        if file.name.startswith(("tokenizer", "chat")):
            shutil.copy(file, path)
    capsys.readouterr()
    assert main(["size", "--policy", str(path), "--no-time"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not known: activations, cache and seconds are those of a Llama of the same sizes, not of a gpt2" in said


def test_slots_that_stay_empty_are_counted_because_their_cache_is_reserved():
    shape, config = shape_of(EMBEDDED_PATH), Config()
    work = replace(Workload.of(config, 60), response=8)
    within, beyond = (memory.generator_memory(shape, replace(work, slots=slots)) for slots in (64, 100_000))
    # However short the answers. Rows of [4 layers, keys and values, 2 heads of 32 numbers] for 160
    # tokens; the evaluation has a cache of its own.
    row = 4 * 4 * 2 * 64 * 160
    assert (within.reserved, beyond.reserved) == (0, row * (100_000 - 64 + 100_000 - config.eval_tasks))
    assert beyond.on_gpu() > beyond.reserved


def test_a_cache_larger_than_the_machine_is_refused_with_the_slots_that_fit():
    shape, config = shape_of(EMBEDDED_PATH), Config(slots=100_000)
    with pytest.raises(
        ConfigError, match=r"this run needs about .* GB of main memory, .*; it would fit with --slots \d+$"
    ) as error:
        check_fit(shape, config, 60, 8, 24 * 10**9)
    slots = int(str(error.value).rpartition(" ")[2])
    advised = config.changed(slots=slots)
    assert run_bytes(shape, Workload.of(advised, 60), advised) <= 24 * 10**9
