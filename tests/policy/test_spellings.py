"""Where ours loads a model, its logits are those of transformers for the same folder: for every family,
and however ``config.json`` and the files of weights say what is meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from zorplex_rl.cli.commands import main
from zorplex_rl.errors import ConfigError, PolicyError
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy, save_model
from zorplex_rl.policy.model import Model
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.sizing.model_shape import shape_of
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

FAMILIES = ("llama", "qwen2", "qwen3")
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 533, "eos_token_id": 530, "pad_token_id": 531, "bos_token_id": None, "max_position_embeddings": 4096,
    "initializer_range": 0.1,
}  # fmt: skip
TEXT = torch.tensor([[7919 * i % 533 for i in range(40)]])
STEEP, FLAT = (
    {"rope_theta": 5e5, "rope_type": "default"},
    {"rope_theta": 1e4, "rope_type": "default"},
)
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LONG = {
    "rope_type": "longrope", "factor": 4.0, "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 2048,
}  # fmt: skip
LEFT_OUT = object()

SPELLINGS = {
    "as saved": {},
    "rope_scaling, default": {"rope_parameters": STEEP, "rope_scaling": {"rope_type": "default"}},
    "rope_scaling, linear": {"rope_parameters": STEEP, "rope_scaling": LINEAR},
    "rope_scaling, linear, theta beside": {"rope_parameters": STEEP, "rope_scaling": LINEAR, "rope_theta": 2e4},
    "rope_scaling, type": {"rope_parameters": FLAT, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "rope_scaling, llama3": {"rope_parameters": STEEP, "rope_scaling": LLAMA_3 | {"rope_theta": 3e4}},
    "rope_scaling, llama3, its length beside": {"rope_scaling": LLAMA_3, "original_max_position_embeddings": 128},
    "rope_scaling, null": {"rope_parameters": STEEP, "rope_scaling": None},
    "rope_scaling, empty": {"rope_parameters": STEEP, "rope_scaling": {}},
    "the old way": {"rope_parameters": LEFT_OUT, "rope_theta": 5e5, "rope_scaling": LINEAR},
    "no rope": {"rope_parameters": LEFT_OUT},
    "theta beside rope_parameters": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
    "theta nowhere": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "no rms_norm_eps": {"rms_norm_eps": LEFT_OUT},
    "only sizes": dict.fromkeys(
        ("rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings",
         "max_position_embeddings", "layer_types", "architectures", "dtype", "use_sliding_window", "sliding_window"),
        LEFT_OUT,
    ),
}  # fmt: skip
OTHERS = {
    "yarn": {"rope_parameters": STEEP, "rope_scaling": YARN},
    "dynamic": {"rope_parameters": STEEP, "rope_scaling": DYNAMIC},
    "longrope": {"rope_parameters": STEEP, "rope_scaling": LONG},
    "llama3's length left out": {
        "rope_scaling": {k: v for k, v in LLAMA_3.items() if not k.startswith("orig")}
    },
}


@pytest.fixture
def saved(tmp_path):
    """A function that saves a tiny random model with a changed ``config.json``. Returns its folder."""

    def save(family: str, changes: dict | None = None, **shape) -> Path:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**SHAPE | {"model_type": family, "head_dim": 16} | shape)
        )
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                torch.nn.init.normal_(parameter, 0.5, 0.2)
        folder = Path(shutil.copytree(EMBEDDED_PATH, tmp_path / "policy"))
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text()) | (changes or {})
        config = {name: value for name, value in config.items() if value is not LEFT_OUT}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return save


def compare(folder: Path, is_ours: bool = True) -> None:
    """Check that our logits of 40 tokens are those that transformers computes from ``folder``."""
    policy = load_policy(str(folder))
    assert isinstance(policy.model, Model) == is_ours
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        found, expected = (model(input_ids=TEXT).logits for model in (policy.model, theirs))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_says_what_it_says_to_transformers(family, spelling, saved):
    compare(saved(family, SPELLINGS[spelling]))


@pytest.mark.parametrize("spelling", OTHERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rotation_that_ours_does_not_compute_is_left_to_transformers(family, spelling, saved):
    compare(saved(family, OTHERS[spelling]), is_ours=False)


@pytest.mark.parametrize("family", [*FAMILIES, "mistral"])
def test_policy_show_names_an_architecture_that_the_config_leaves_out(family, saved, capsys):
    assert main(["policy", "show", str(saved(family, {"architectures": LEFT_OUT}))]) == 0
    assert f"architecture  {family.title()}ForCausalLM: 2 layers of 64" in capsys.readouterr().out


def change(folder: Path, file: str = "model.safetensors", **changes: torch.Tensor | None) -> None:
    """Change tensors in a file of weights; None takes one out."""
    weights = {**load_file(folder / file), **changes}
    save_file(
        {name: value for name, value in weights.items() if value is not None},
        folder / file,
        {"format": "pt"},
    )


@pytest.mark.parametrize("family", [*FAMILIES, "mistral"])
def test_an_output_layer_in_the_file_counts_more_than_settings_that_tie_it(family, saved):
    folder = saved(family, {"tie_word_embeddings": True}, tie_word_embeddings=False)
    is_ours = family in FAMILIES
    compare(folder, is_ours)
    policy = load_policy(str(folder))
    table, output = (
        part.weight for part in (policy.model.model.embed_tokens, policy.model.lm_head)
    )
    assert table is not output and not torch.equal(table, output)
    # What is saved is what was loaded.
    again = folder.with_name("again")
    save_model(policy.model, policy.tokenizer, again)
    compare(again, is_ours)
    assert torch.equal(load_policy(str(again)).model.lm_head.weight, output)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_alike_are_tied_and_either_name_will_do(family, saved):
    folder = saved(family, tie_word_embeddings=True)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    for named in ({"lm_head.weight": table.clone()}, {"model.embed_tokens.weight": None}):
        change(folder, **named)
        compare(folder)
        model = load_policy(str(folder)).model
        assert (
            model.config.tie_word_embeddings
            and model.lm_head.weight is model.model.embed_tokens.weight
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_too_many_is_left_out_and_one_too_few_is_named(family, saved):
    folder = saved(family)
    change(
        folder,
        **{
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
            "model.layers.7.extra": torch.ones(3),
        },
    )
    compare(folder)
    change(folder, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(PolicyError, match=r"model.layers.1.mlp.up_proj.weight"):
        load_policy(str(folder))


@pytest.mark.parametrize("stray", ["model_old.safetensors", "adapter_model.safetensors"])
@pytest.mark.parametrize("family", [*FAMILIES, "mistral"])
@pytest.mark.parametrize("shards", [1, 2])
def test_other_files_of_weights_beside_the_models_are_not_read(family, stray, shards, saved):
    folder = saved(family)
    if shards > 1:
        into_shards(folder)
    counted = shape_of(folder)
    other = {"model.norm.weight": torch.full((64,), 9.0), "stranger": torch.ones(3)}
    save_file(other, folder / stray, {"format": "pt"})
    assert shape_of(folder) == counted
    compare(folder, is_ours=family != "mistral")


def into_shards(folder: Path) -> None:
    """Write the weights of ``folder`` as several files with an index."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1


@pytest.mark.parametrize("of_transformers", [False, True])
def test_the_files_of_an_index_count_if_all_are_there(of_transformers, saved):
    folder = saved("llama")
    expected = load_policy(str(folder)).model.state_dict()
    shutil.copy(folder / "model.safetensors", folder / "kept")
    into_shards(folder)
    shutil.copy(folder / "kept", folder / "model.safetensors")
    change(folder, **{"model.norm.weight": torch.full((64,), 9.0)})
    found = load_policy(str(folder), of_transformers=of_transformers).model.state_dict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # A folder that was written again in one file has the old index.
    next(folder.glob("model-*.safetensors")).unlink()
    found = load_policy(str(folder), of_transformers=of_transformers).model.state_dict()
    assert (found["model.norm.weight"] == 9).all()
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"it has no model-0000\d-of-0000\d.safetensors"):
        load_policy(str(folder), of_transformers=of_transformers)


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "kernels-community/flash-attn2"},
        {"_attn_implementation": "kernels-community/flash-attn2"},
        {"attn_implementation": "flash_attention_2"},
        {"transformers_weights": "adapter_model.bin"},
        {"auto_map": {"AutoModelForCausalLM": "someone/else--code.Model"}},
    ],
    ids=lambda asked: "=".join(map(str, next(iter(asked.items())))),
)
def test_no_setting_makes_transformers_fetch_code_or_unpickle(asked, saved):
    folder = saved("mistral", asked)
    (folder / "adapter_model.bin").write_bytes(b"no weights")
    model = load_policy(str(folder)).model
    assert model.config._attn_implementation == "sdpa"
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


def test_an_adapter_beside_the_model_is_not_put_on_it(saved):
    folder = saved("mistral")
    save_file(
        {"base_model.model.lm_head.lora_A.weight": torch.ones(2, 64)},
        folder / "adapter_model.safetensors",
    )
    adapter = {
        "peft_type": "LORA",
        "r": 2,
        "target_modules": ["lm_head"],
        "base_model_name_or_path": "someone/else",
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    stored = load_file(folder / "model.safetensors")
    assert load_policy(str(folder)).model.state_dict().keys() == stored.keys()


@pytest.mark.parametrize("border", [96, 2500])
def test_a_long_rope_is_not_sampled_across_its_border(border, saved):
    """There transformers turns all keys otherwise, and those of its cache not."""
    scaling = LONG | {"long_factor": [4.0] * 8, "original_max_position_embeddings": border}
    folder = saved("phi3", rope_parameters=FLAT | scaling, original_max_position_embeddings=border)
    if border < 2048:
        with pytest.raises(
            PolicyError, match="is a Phi3.*, with which sampling and training would compute other"
        ):
            load_policy(str(folder))
        return
    compare(folder, is_ours=False)
    world = Zorplex(0)
    with pytest.raises(ConfigError, match=f"reads at most {border}"):
        rollout(
            load_policy(str(folder)),
            [RolloutRequest(world.task(0))],
            world.execute,
            Sampling(max_tokens=border),
        )
