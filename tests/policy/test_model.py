"""The model and the tokenizer of the embedded policy's family: what transformers makes of the same
folder, bit for bit, and without importing it."""

from __future__ import annotations

import copy
import json
import pickle
import random
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.decoder import GrowingCache, fills
from zorplex_rl.policy.load import EMBEDDED_PATH, BytePairs, Policy, _is_ours, load_policy, save_model
from zorplex_rl.policy.model import Qwen2
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

SAME_OPERATIONS = transformers.__version__ == "5.24.0"
"""Whether this is the version that the model was written beside: another one may add in another order."""


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Compare bit for bit, or closely where transformers may compute in another order."""
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert torch.equal(ours, theirs) or not SAME_OPERATIONS


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def both(request) -> tuple[Policy, Policy]:
    """The embedded policy, by ``load_policy`` and by transformers."""
    ours, theirs = (load_policy(dtype=request.param, of_transformers=way) for way in (False, True))
    for parameter in theirs.model.parameters():
        # Its values lie in a mapped file. At an address with another remainder of 64 the last bit of
        # a product may differ.
        parameter.data = parameter.data.clone()
    return ours, theirs


def test_the_embedded_policy_is_loaded_and_sampled_without_importing_transformers():
    program = (
        "import sys; from zorplex_rl.policy.load import load_policy; from zorplex_rl.policy.rollout import *; "
        "from zorplex_rl.task.environment import Zorplex; world = Zorplex(0); "
        "rollout(load_policy(), [RolloutRequest(world.tasks(('simple',), 1)[0])], world.execute, Sampling()); "
        "print({'transformers', 'scipy'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def test_both_have_the_same_weights_in_the_same_order(both):
    ours, theirs = (policy.model for policy in both)
    assert isinstance(ours, Qwen2) and type(theirs).__name__ == "Qwen2ForCausalLM"
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(p.requires_grad and p.dtype == ours.dtype for p in ours.parameters())
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert ours.num_parameters() == theirs.num_parameters()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("seen", [0, 33])
@pytest.mark.parametrize("padding", ["none said", "none", "some"])
def test_logits_are_the_same_behind_a_cache_and_with_padding(both, batch, length, seen, padding):
    found = []
    for policy, cache in zip(both, (GrowingCache(), DynamicCache()), strict=True):
        torch.manual_seed(batch + length + seen)
        model = policy.model
        with torch.inference_mode():
            if seen:
                model.base_model(input_ids=torch.randint(500, (batch, seen)), **fills(model.base_model, cache))
            real = torch.ones(batch, seen + length, dtype=torch.bool)
            if padding == "some":
                real[0, : (seen + length) // 2] = False
            mask = {} if padding == "none said" else {"attention_mask": real}
            ids = torch.randint(500, (batch, length))
            logits = model(input_ids=ids, **mask, **fills(model, cache)).logits
        rows = real[:, seen:]  # Behind padding alone there is nothing to attend to.
        found.append((logits[rows], *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))))
    for pair in zip(*found, strict=True):
        agree(*pair)


def test_gradients_and_a_training_step_are_the_same(both):
    world, found = Zorplex(3), []
    for policy in both:
        policy = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.name, policy.eos_ids)
        tasks = [task for task in world.tasks(("compositional",), 3) for _ in range(4)]
        requests = [RolloutRequest(task, seed=index) for index, task in enumerate(tasks)]
        episodes = rollout(policy, requests, world.execute, Sampling(max_tokens=48))
        learner = Learner(policy, LearnerConfig(learning_rate=1e-3, updates_per_batch=2, warmup_steps=1), decay_steps=9)
        metrics = learner.step(episodes, [(-1.0) ** index for index in range(12)])
        found.append(
            ([e.token_ids for e in episodes], metrics["loss"], [p.detach() for p in policy.model.parameters()])
        )
    (our_ids, our_loss, ours), (their_ids, their_loss, theirs) = found
    assert our_ids == their_ids
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    for pair in zip(ours, theirs, strict=True):
        agree(*pair)


def test_ids_prompts_and_texts_are_the_same(both):
    ours, theirs = (policy.tokenizer for policy in both)
    assert isinstance(ours, BytePairs)
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
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    for _ in range(200):
        ids = draw.choices(range(len(theirs)), k=20)
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(theirs)
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id)
    for content in ("1 + 1", "{{ 7 * 7 }}\n", " <b>\n\n"):
        messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": content}]
        for asked in ({"tokenize": False}, {"tokenize": False, "add_generation_prompt": True}, {"return_dict": False}):
            assert ours.apply_chat_template(messages, **asked) == theirs.apply_chat_template(messages, **asked)
    assert pickle.loads(pickle.dumps(ours)).decode([5, 6, 7]) == ours.decode([5, 6, 7])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_policy_is_of_the_family_and_both_read_it(tmp_path, dtype):
    ours = load_policy(dtype=dtype)
    with torch.no_grad():
        ours.model.model.norm.weight.mul_(1.5)
    save_model(ours.model, ours.tokenizer, tmp_path)
    again, theirs = (load_policy(str(tmp_path), dtype=dtype, of_transformers=way) for way in (False, True))
    assert isinstance(again.model, Qwen2) and again.eos_ids == ours.eos_ids
    for pair in zip(again.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(*pair)
    assert theirs.tokenizer.get_vocab() == ours.tokenizer.get_vocab()
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    # What transformers writes is of the family, too.
    (tmp_path / "theirs").mkdir()
    save_model(theirs.model, theirs.tokenizer, tmp_path / "theirs")
    assert isinstance(load_policy(str(tmp_path / "theirs")).model, Qwen2)


def test_a_loaded_policy_does_not_change_with_its_file(tmp_path):
    ours = load_policy()
    save_model(ours.model, ours.tokenizer, tmp_path)
    again = load_policy(str(tmp_path)).model
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * (tmp_path / "model.safetensors").stat().st_size)
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), ours.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
        {"hidden_act": "gelu"},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"head_dim": 64},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_model_that_is_not_plainly_the_same_is_left_to_transformers(tmp_path, changed):
    folder = shutil.copytree(EMBEDDED_PATH, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert _is_ours(folder)
    (folder / "config.json").write_text(json.dumps(config | changed))
    assert not _is_ours(folder)


def test_another_tokenizer_or_template_is_left_to_transformers(tmp_path):
    folder = shutil.copytree(EMBEDDED_PATH, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[1].content }}")
    assert not isinstance(load_policy(str(folder)).model, Qwen2)
