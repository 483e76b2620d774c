"""The models of the Llama family and their tokenizers: what transformers makes of the same folder,
without importing it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from zorplex_rl.policy.decoder import build_tree, states_of
from zorplex_rl.policy.load import EMBEDDED_PATH, Policy, load_policy, save_model
from zorplex_rl.policy.model import BLOCK, Model, is_of_the_family
from zorplex_rl.policy.tokenizer import FastTokenizer

pytestmark = pytest.mark.slow

SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 533, "eos_token_id": 530, "pad_token_id": 531, "bos_token_id": None,
    "max_position_embeddings": 512, "initializer_range": 0.1,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "llama": {"model_type": "llama"},
    "llama, tied, with biases": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama 3": {"model_type": "llama", "rope_parameters": LLAMA_3},
    "llama, stretched": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3, heads of 128": {"model_type": "qwen3"},
}


@pytest.fixture(params=MODELS)
def both(request, tmp_path) -> tuple[Policy, Policy]:
    """A tiny random model of each kind, in two files, by ``load_policy`` and by transformers."""
    torch.manual_seed(0)
    given = SHAPE | MODELS[request.param]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given))
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    folder = shutil.copytree(EMBEDDED_PATH, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    return load_policy(str(folder)), load_policy(str(folder), of_transformers=True)


def test_logits_and_gradients_are_those_of_transformers(both):
    ours, theirs = (policy.model for policy in both)
    assert isinstance(ours, Model) and not isinstance(theirs, Model)
    assert {name for name, _ in ours.named_parameters()} == {
        name for name, _ in theirs.named_parameters()
    }
    assert ours.num_parameters() == theirs.num_parameters()
    ids, found = torch.randint(500, (3, 90)), []
    for model in (ours, theirs):
        logits = model(input_ids=ids).logits
        logits.log_softmax(-1)[..., 7].mean().backward()
        found.append(
            (logits, {name: parameter.grad for name, parameter in model.named_parameters()})
        )
    (our_logits, our_gradients), (their_logits, their_gradients) = found
    torch.testing.assert_close(our_logits, their_logits, atol=1e-5, rtol=1e-5)
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], atol=1e-5, rtol=1e-4)


def test_a_tree_gives_each_text_the_states_that_it_has_alone(both):
    ours, theirs = (policy.model for policy in both)
    long = [7 * i % 500 for i in range(BLOCK)]
    texts = sorted(
        [
            [5, 6, 7, 8],
            [5, 6, 9],
            [5, 6, 7, 10, 11, 12],
            [5, 6],
            [400, 6],
            [400, *long, 3],
            [400, *long, 4],
        ]
    )
    for model in (ours, theirs):
        with torch.inference_mode():
            tree = build_tree(texts)
            states = states_of(model, tree)
            for text, place in zip(texts, tree.token_index, strict=True):
                alone = model.base_model(torch.tensor([text])).last_hidden_state[0]
                torch.testing.assert_close(states[place], alone, atol=1e-5, rtol=1e-5)
    assert len(tree.ids) == 4 + 3 + 1 + 2 + BLOCK + 2


def test_the_embedded_policy_is_loaded_and_sampled_without_importing_transformers():
    program = (
        "import sys, zorplex_rl.learning.learner; from zorplex_rl.policy.load import load_policy; from zorplex_rl.policy.rollout import *; "
        "from zorplex_rl.task.environment import Zorplex; world = Zorplex(0); "
        "rollout(load_policy(), [RolloutRequest(world.tasks(('simple',), 1)[0])], world.execute, Sampling()); "
        "print({'transformers', 'scipy', 'sympy', 'torch.distributed.tensor'} & sys.modules.keys())"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
        == "set()\n"
    )


def test_ids_prompts_and_texts_are_the_same():
    ours, theirs = FastTokenizer(EMBEDDED_PATH), AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    draw, letters = random.Random(0), "abz AZ019 \t\n[]<>|:+-=.é你ß😀'\"‍"
    texts = [
        "",
        "<|im_start|>user\n<|im_end|>",
        "LOOKUP[splork] -> 42\n",
        *("".join(draw.choices(letters, k=40)) for _ in range(200)),
    ]
    for text in texts:
        ids = ours(text, add_special_tokens=False)["input_ids"]
        assert ids == theirs(text, add_special_tokens=False)["input_ids"] == ours(text)["input_ids"]
        assert ours(text, split_special_tokens=True) == {
            "input_ids": theirs(text, split_special_tokens=True)["input_ids"]
        }
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )
    for _ in range(200):
        ids = draw.choices(range(len(theirs)), k=20)
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(theirs)
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id)
    for content in ("1 + 1", "{{ 7 * 7 }}\n", " <b>\n\n"):
        messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": content}]
        for asked in ({"tokenize": False}, {"tokenize": False, "add_generation_prompt": True}):
            assert ours.apply_chat_template(messages, **asked) == theirs.apply_chat_template(
                messages, **asked
            )
        assert ours.apply_chat_template(messages) == theirs.apply_chat_template(
            messages, return_dict=False
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_policy_is_of_the_family_and_both_read_it(tmp_path, dtype):
    ours = load_policy(dtype=dtype)
    with torch.no_grad():
        ours.model.model.norm.weight.mul_(1.5)
    save_model(ours.model, ours.tokenizer, tmp_path)
    again, theirs = (
        load_policy(str(tmp_path), dtype=dtype, of_transformers=way) for way in (False, True)
    )
    assert isinstance(again.model, Model) and again.eos_ids == ours.eos_ids
    for pair in zip(again.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(*pair)
    assert theirs.tokenizer.get_vocab() == ours.tokenizer.get_vocab()
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    # What transformers writes is of the family, too.
    (tmp_path / "theirs").mkdir()
    save_model(theirs.model, theirs.tokenizer, tmp_path / "theirs")
    assert isinstance(load_policy(str(tmp_path / "theirs")).model, Model)


def test_a_loaded_policy_does_not_change_with_its_file(tmp_path):
    ours = load_policy()
    save_model(ours.model, ours.tokenizer, tmp_path)
    again = load_policy(str(tmp_path)).model
    (tmp_path / "model.safetensors").write_bytes(
        b"\xff" * (tmp_path / "model.safetensors").stat().st_size
    )
    assert all(
        torch.equal(*pair) for pair in zip(again.parameters(), ours.model.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}},
        {"hidden_act": "gelu"},
        {
            "layer_types": [
                "full_attention",
                "sliding_attention",
                "full_attention",
                "full_attention",
            ]
        },
        {"model_type": "gemma"},
        {"use_sliding_window": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_model_that_ours_does_not_compute_is_left_to_transformers(changed):
    config = json.loads((EMBEDDED_PATH / "config.json").read_text())
    assert is_of_the_family(config)
    assert not is_of_the_family(config | changed)
