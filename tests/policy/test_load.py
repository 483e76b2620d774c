"""One way to load any policy, and one sentence for each way in which a name can be wrong."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from conftest import babbler

from zorplex_rl.errors import PolicyError
from zorplex_rl.policy import chat_template
from zorplex_rl.policy.load import largest_magnitude, load_policy, save_model
from zorplex_rl.policy.model_folder import EMBEDDED_PATH
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.tool_loop import encode_prompt, prompt_of
from zorplex_rl.task.environment import Zorplex, kinds_of

ENV = Zorplex(seed=0)

# In the manner of Qwen2.5: a default system prompt, a branch for tools, and whitespace control
# throughout.
QWEN_TEMPLATE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful model.' }}
    {%- endif %}
    {{- '\\n\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful model.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@pytest.fixture(scope="module")
def qwen_folder(tokenizer, tmp_path_factory) -> Path:
    """A checkpoint shaped like Qwen2.5-Instruct's: tokenizer class, template, two end tokens,
    untied bfloat16."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = QWEN_TEMPLATE
    policy = babbler(tokenizer, dtype=torch.bfloat16)
    policy.model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    folder = tmp_path_factory.mktemp("models") / "qwen"
    save_model(policy.model, tokenizer, folder)
    return folder


@pytest.fixture
def broken(qwen_folder, tmp_path) -> Path:
    """A copy of the checkpoint for the test to spoil."""
    return Path(shutil.copytree(qwen_folder, tmp_path / "broken"))


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """An empty model cache, and a hub that cannot be reached."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put_in_cache(hub_cache: Path, hub_id: str, folder: Path, names: set[str] | None = None) -> None:
    model = hub_cache / f"models--{hub_id.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        if names is None or file.name in names:
            shutil.copy(file, snapshot)


def refusal(name: object) -> str:
    """The message with which ``name`` is refused, checked to be one sentence that names it."""
    with pytest.raises(PolicyError) as refused:
        load_policy(str(name))
    message = str(refused.value)
    assert message.startswith(f"policy {str(name)!r} ")
    assert "\n" not in message
    assert len(message) < 400 + len(str(name)), message
    return message


def test_the_embedded_policy_loads_ready_to_act(embedded):
    assert not embedded.model.training
    assert {parameter.dtype for parameter in embedded.model.parameters()} == {torch.float32}
    assert 300_000 < embedded.model.num_parameters() < 1_500_000
    assert embedded.model.device == torch.device("cpu")
    assert embedded.name == "embedded"
    assert embedded.tokenizer.eos_token_id in embedded.eos_ids
    prompt = embedded.tokenizer.decode(encode_prompt(embedded.tokenizer, ENV.tasks(("simple",), 1)[0]))
    assert prompt.endswith("<|im_start|>assistant\n")
    assert ENV.tasks(("simple",), 1)[0].question in prompt


def test_the_embedded_policy_is_small_enough_to_ship(embedded):
    assert sum(file.stat().st_size for file in EMBEDDED_PATH.iterdir()) < 6e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_policy_loads_in_the_dtype_that_is_asked_for(embedded, dtype):
    policy = load_policy("embedded", dtype=dtype)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_shaped_like_qwen_loads_from_a_path_and_rolls_out(qwen_folder, dtype):
    policy = load_policy(str(qwen_folder), dtype=dtype)
    assert policy.model.lm_head.weight.data_ptr() != policy.model.model.embed_tokens.weight.data_ptr()
    assert {parameter.dtype for parameter in policy.model.parameters()} == {getattr(torch, dtype)}
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(ENV.tasks(kinds_of("mix"), 16))]
    episodes = rollout(policy, requests, ENV.execute, Sampling(max_tokens=40, slots=6))
    assert sum(episode.tool_calls for episode in episodes) > 5


def test_both_end_tokens_of_a_qwen_checkpoint_end_a_text(qwen_folder):
    policy = load_policy(str(qwen_folder))
    assert set(policy.eos_ids) == {policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id}
    assert policy.tokenizer.eos_token_id != policy.tokenizer.pad_token_id


def test_the_tasks_system_prompt_takes_the_place_of_the_templates_own(qwen_folder):
    policy = load_policy(str(qwen_folder))
    task = Zorplex(hints=True, kinds=("compositional",)).task(0)
    assert policy.tokenizer.decode(encode_prompt(policy.tokenizer, task)) == (
        f"<|im_start|>system\n{task.system}<|im_end|>\n<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_prompt_is_the_chat_templates_own_tokenization(qwen_folder):
    policy, task = load_policy(str(qwen_folder)), ENV.tasks(("recursive",), 1, start=3)[0]
    messages = [{"role": "system", "content": task.system}, {"role": "user", "content": task.question}]
    direct = policy.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    assert encode_prompt(policy.tokenizer, task) == list(direct)


def test_a_home_relative_path_is_found(qwen_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(qwen_folder.parent))
    assert load_policy("~/qwen").model.num_parameters() > 0


def test_a_hub_model_in_the_local_cache_is_used_without_a_network(qwen_folder, hub_cache):
    put_in_cache(hub_cache, "someone/qwen-small", qwen_folder)
    policy = load_policy("someone/qwen-small")
    assert policy.name == "someone/qwen-small"
    assert policy.model.num_parameters() == load_policy(str(qwen_folder)).model.num_parameters()


def test_a_hub_model_that_can_not_be_reached_says_what_to_do(hub_cache):
    message = refusal("someone/who-is-not-cached")
    assert "network" in message
    assert "embedded" in message


@pytest.mark.parametrize("kept", [set(), {"config.json"}, {"tokenizer.json", "tokenizer_config.json"}])
def test_a_hub_model_of_which_only_a_part_is_cached_is_refused(qwen_folder, hub_cache, kept):
    put_in_cache(hub_cache, "someone/half", qwen_folder, kept)
    refusal("someone/half")


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "../nowhere/else", "~/nowhere", "nowhere", "a/b/c"])
def test_a_path_that_does_not_exist_is_said_to_not_exist(name):
    assert "does not exist" in refusal(name)


@pytest.mark.parametrize("name", ["some one/name", "org/na:me", "org/"])
def test_what_can_be_neither_a_path_nor_a_hub_id_is_refused(name, hub_cache):
    refusal(name)


def test_a_folder_without_a_configuration_is_no_model_folder(tmp_path):
    assert "config.json" in refusal(tmp_path)


def test_a_file_is_no_model_folder(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"123")
    refusal(tmp_path / "model.bin")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"architectures": 3}', "[" * 100_000])
def test_a_configuration_that_can_not_be_read_is_refused(broken, content):
    (broken / "config.json").write_text(content)
    refusal(broken)


def test_a_value_of_another_kind_is_named_and_what_is_wrong_with_it_is_said(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"vocab_size": float("nan")}))
    assert "field 'vocab_size': TypeError" in refusal(broken)
    (broken / "config.json").write_text(json.dumps(config | {"rope_parameters": {"rope_type": "own", "factor": 1}}))
    assert "KeyError 'own'" in refusal(broken)


def test_an_encoder_is_no_causal_language_model(tmp_path):
    from transformers import BertConfig, BertModel

    shape = {
        "vocab_size": 30,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    BertModel(BertConfig(**shape)).save_pretrained(tmp_path / "bert")
    message = refusal(tmp_path / "bert")
    assert "not a causal language model" in message
    assert "BertModel" in message


def test_an_unknown_architecture_is_refused(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps({**config, "model_type": "novel", "architectures": ["NovelForCausalLM"]})
    )
    refusal(broken)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "makes no prompt within 1 s",
        ),
        # One multiplication, which Python does not interrupt; and many, each of which takes twice
        # as long as the one before.
        ("{{ 10**(10**10) }}", "makes no prompt within 1 s"),
        (
            "{% set ns = namespace(x=99) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
            "makes no prompt within 1 s",
        ),
        ("{{ 'x' * 10**11 }}", "has a chat template that fails: MemoryError"),
        ("{{ 'x' * 1000000 }}", "makes 1,000,000 characters of a question of 9"),
    ],
)
def test_a_chat_template_without_an_end_is_refused(broken, template, said, monkeypatch):
    monkeypatch.setattr(chat_template, "TEMPLATE_SECONDS", 1.0)
    (broken / "chat_template.jinja").write_text(template)
    assert said in refusal(broken)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 10**(10**(10 if 'Count' in messages[1].content else 0)) }}", "makes no prompt within 1 s"),
        (
            "{{ messages[1].content * (10**6 if 'Count' in messages[1].content else 1) }}",
            "characters of a question of 6",
        ),
    ],
)
def test_a_chat_template_without_an_end_for_one_question_alone_is_refused_when_that_is_asked(
    broken, template, said, monkeypatch
):
    monkeypatch.setattr(chat_template, "TEMPLATE_SECONDS", 1.0)
    (broken / "chat_template.jinja").write_text(template)
    tokenizer = load_policy(str(broken)).tokenizer
    question, other = (
        [{"role": "system", "content": ""}, {"role": "user", "content": text}] for text in ("Count.", "1")
    )
    with pytest.raises(PolicyError, match=said):
        prompt_of(tokenizer, question)
    assert prompt_of(tokenizer, other) in ("10", "1")


def test_a_model_without_chat_template_is_refused(broken):
    (broken / "chat_template.jinja").unlink()
    assert "chat template" in refusal(broken)


def test_a_folder_without_tokenizer_is_refused(broken):
    for file in broken.glob("tokenizer*"):
        file.unlink()
    refusal(broken)


def test_a_tokenizer_that_can_not_be_read_is_refused(broken):
    (broken / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refusal(broken)


def test_a_folder_without_weights_is_refused(broken):
    (broken / "model.safetensors").unlink()
    assert "weights" in refusal(broken)


def test_weights_that_were_cut_off_are_refused(broken):
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "weights" in refusal(broken)


def test_weights_of_another_shape_are_refused(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "intermediate_size": 80}))
    assert "has no weights that can be loaded: they have other sizes than its config.json says" in refusal(broken)


@pytest.mark.parametrize("ends", [[[1]], "x", {"a": 1}])
def test_an_end_of_text_that_is_no_token_is_refused(broken, ends):
    (broken / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert "whose eos_token_id is" in refusal(broken)


@pytest.mark.parametrize("file", ["pickled.bin", "../model.safetensors", "/model.safetensors", "", 5])
def test_an_index_that_names_anything_but_safetensors_of_its_folder_is_refused(broken, file):
    (broken / "model.safetensors").rename(broken / "model-00001-of-00001.safetensors")
    (broken / "pickled.bin").write_bytes(b"")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": file}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "expected files of safetensors in its folder" in refusal(broken)
    (broken / "model.safetensors.index.json").write_text("{}")
    assert "expected files of safetensors in its folder" in refusal(broken)


def test_missing_weights_are_refused_and_not_made_up(broken):
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert "weights" in refusal(broken)


def test_fewer_embeddings_than_the_tokenizer_has_entries_are_refused_even_where_the_configuration_hides_them(broken):
    config = json.loads((broken / "config.json").read_text())
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    highest = max(tokenizer["model"]["vocab"].values(), default=0)
    added = {
        "id": config["vocab_size"] + 7,
        "content": "<|late|>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
    }
    tokenizer["added_tokens"].append(added | {"normalized": False, "special": True})
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert highest < config["vocab_size"]
    assert f"has {config['vocab_size']} embeddings, but its tokenizer goes up to id" in refusal(broken)


def test_an_empty_name_is_refused_even_in_the_folder_of_a_model(qwen_folder, monkeypatch):
    monkeypatch.chdir(qwen_folder)
    assert "is empty" in refusal("")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_in_bfloat16_too(broken, value):
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    assert weights["lm_head.weight"].dtype == torch.bfloat16
    weights["lm_head.weight"][3, 5] = value
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert "not finite numbers, 'lm_head.weight' first" in refusal(broken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_the_largest_magnitude_forgets_neither_infinity_nor_nan(dtype):
    values = torch.tensor([1.0, -3.0, 2.0])
    assert largest_magnitude([values.to(dtype), torch.zeros(0)]) == 3
    assert largest_magnitude([]) == 0
    for broken in (float("nan"), float("inf"), float("-inf")):
        found = largest_magnitude([torch.ones(2), torch.tensor([0.0, broken]).to(dtype), torch.ones(2)])
        assert found == abs(broken) or (found != found and broken != broken)
