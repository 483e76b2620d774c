"""One way to load any policy; what cannot be loaded is one sentence, and nothing is unpickled."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from conftest import babbler

from zorplex_rl.cli.commands import main
from zorplex_rl.errors import PolicyError
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy, save_model
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.tokenizer import encode_prompt
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.specs import TASK_SPECS

pytestmark = pytest.mark.slow

ENV = Zorplex(seed=0)

# In the manner of Qwen2.5: a default system prompt, and whitespace control throughout.
QWEN_TEMPLATE = """{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful model.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
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


def refusal(name: object) -> str:
    """The message with which ``name`` is refused, checked to be one sentence that names it."""
    with pytest.raises(PolicyError) as refused:
        load_policy(str(name))
    message = str(refused.value)
    assert message.startswith(f"policy {str(name)!r} ") and "\n" not in message
    return message


def test_the_embedded_policy_loads_ready_to_act_and_is_small_enough_to_ship(embedded):
    assert not embedded.model.training and embedded.name == "embedded"
    assert 300_000 < embedded.model.num_parameters() < 1_500_000
    assert sum(file.stat().st_size for file in EMBEDDED_PATH.iterdir()) < 6e6
    assert embedded.tokenizer.eos_token_id in embedded.eos_ids
    prompt = embedded.tokenizer.decode(encode_prompt(embedded.tokenizer, ENV.task(0)))
    assert prompt.endswith("<|im_start|>assistant\n") and ENV.task(0).question in prompt


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_shaped_like_qwen_loads_from_a_path_and_rolls_out(qwen_folder, dtype):
    policy = load_policy(str(qwen_folder), dtype=dtype)
    assert (
        policy.model.lm_head.weight.data_ptr() != policy.model.model.embed_tokens.weight.data_ptr()
    )
    assert {parameter.dtype for parameter in policy.model.parameters()} == {getattr(torch, dtype)}
    assert policy.eos_ids == tuple(
        sorted((policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id))
    )
    requests = [
        RolloutRequest(task, seed) for seed, task in enumerate(ENV.tasks(tuple(TASK_SPECS), 16))
    ]
    episodes = rollout(policy, requests, ENV.execute, Sampling(max_tokens=40, slots=6))
    assert sum(episode.tool_calls for episode in episodes) > 5


def test_a_prompt_is_the_chat_templates_own_tokenization_with_the_tasks_system_prompt(qwen_folder):
    policy, task = load_policy(str(qwen_folder)), Zorplex(kinds=("recursive",)).task(3)
    messages = [
        {"role": "system", "content": task.system},
        {"role": "user", "content": task.question},
    ]
    direct = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert encode_prompt(policy.tokenizer, task) == list(direct)
    assert policy.tokenizer.decode(direct) == (
        f"<|im_start|>system\n{task.system}<|im_end|>\n<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_hub_model_in_the_local_cache_is_used_without_a_network(qwen_folder, hub_cache):
    model = hub_cache / "models--someone--qwen-small"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    shutil.copytree(qwen_folder, model / "snapshots" / ("0" * 40))
    policy = load_policy("someone/qwen-small")
    assert policy.name == "someone/qwen-small"
    assert policy.model.num_parameters() == load_policy(str(qwen_folder)).model.num_parameters()
    message = refusal("someone/who-is-not-cached")
    assert "network" in message and "embedded" in message


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer.json", "config.json", "a shard"])
def test_a_hub_model_that_is_in_the_cache_in_part_is_downloaded(
    qwen_folder, hub_cache, lost, monkeypatch
):
    snapshot = hub_cache / "models--someone--qwen-small" / "snapshots" / ("0" * 40)
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    shutil.copytree(qwen_folder, snapshot)
    shards = {"lm_head.weight": "model-1.safetensors", "model.norm.weight": "model-2.safetensors"}
    if lost == "a shard":
        (snapshot / "model.safetensors").rename(snapshot / "model-1.safetensors")
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    else:
        (snapshot / lost).unlink()
    message = refusal("someone/qwen-small")
    assert "neither in the local model cache nor can it be downloaded" in message

    def download(hub_id: str, allow_patterns: list[str]) -> str:
        shutil.copytree(qwen_folder, snapshot, dirs_exist_ok=True)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_policy("someone/qwen-small").name == "someone/qwen-small"


@pytest.mark.parametrize("name", ["/nowhere/at/all", "~/nowhere", "nowhere"])
def test_a_path_that_does_not_exist_is_said_to_not_exist(name):
    assert "does not exist" in refusal(name)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "safetensors"),
        ("chat_template.jinja", "chat_template"),
        ("tokenizer.json", "tokenizer.json"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused(broken, lost, named):
    (broken / lost).unlink()
    assert named in refusal(broken)


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ raise_exception('none') }}",
        "{{ cycler.__init__.__globals__.os.mkdir('sprung') }}",
    ],
)
def test_a_chat_template_that_fails_is_refused_and_reaches_nothing_outside(
    broken, template, monkeypatch
):
    monkeypatch.chdir(broken)
    (broken / "chat_template.jinja").write_text(template)
    refusal(broken)
    assert not (broken / "sprung").exists()


def test_weights_that_were_cut_off_or_are_missing_are_refused_and_not_made_up(broken):
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in refusal(broken)
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refusal(broken)


CUT = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
]
DAMAGES = {
    **{f"{file}, cut": lambda folder, file=file: cut(folder / file) for file in CUT},
    **{
        f"{file} is {text!r}": lambda folder, file=file, text=text: (folder / file).write_text(text)
        for file in CUT
        for text in ("{", "[]", "", "null", "version https://git-lfs.github.com/spec/v1\n", "\0")
    },
    **{
        f"config.json is {text}": lambda folder, text=text: (folder / "config.json").write_text(
            text
        )
        for text in ("{}", '{"model_type": null}', '{"model_type": "qwen2"}')
    },
    "config.json in Latin-1": lambda folder: (folder / "config.json").write_bytes(
        b'{"model_type": "\xe9"}'
    ),
    **{
        f"no {file}": lambda folder, file=file: (folder / file).unlink()
        for file in ("config.json", "model.safetensors")
    },
    "an index of nothing": lambda folder: index(folder, "{}"),
    "an index that is cut": lambda folder: index(folder, '{"weight_map": {'),
    "an index of a file that is not there": lambda folder: index(
        folder, '{"weight_map": {"lm_head.weight": "a.safetensors"}}'
    ),
    "an index of pickles": lambda folder: index(
        folder, '{"weight_map": {"lm_head.weight": "pytorch_model.bin"}}'
    ),
}


def cut(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])


def index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize("damage", DAMAGES)
def test_train_and_size_say_of_a_damaged_folder_what_policy_show_says(
    broken, damage, capsys, tmp_path
):
    DAMAGES[damage](broken)
    said = []
    for command in ("policy show", "size --policy", f"train --out {tmp_path / 'run'} --policy"):
        assert main([*command.split(), str(broken)]) in (1, 2)
        said.append(capsys.readouterr().err)
    assert said == [f"zorplex-rl: {refusal(broken)}\n"] * 3
    if damage.startswith(("config.json", "model.safetensors")):
        assert damage.split()[0].strip(",") in said[0]
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_with_more_ids_than_the_model_has_embeddings_is_refused(broken):
    settings = json.loads((broken / "tokenizer.json").read_text())
    added = {
        "content": "<new>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    size = json.loads((broken / "config.json").read_text())["vocab_size"]
    settings["added_tokens"].append(added | {"id": size})
    (broken / "tokenizer.json").write_text(json.dumps(settings))
    assert f"ids up to {size}, but a model of {size} tokens" in refusal(broken)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize(
    "named", ["model.safetensors.index.json", "pytorch_model.bin.index.json", None]
)
def test_pickled_weights_are_never_read(broken, named, monkeypatch):
    """Neither alone, nor as what an index names, beside weights that are none."""
    trap = broken / "sprung"
    (broken / "model.safetensors").rename(broken / "other.safetensors")
    (broken / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trap)))
    if named:
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
        (broken / named).write_text(json.dumps(index))
    monkeypatch.setattr(torch, "load", lambda *_, **__: trap.touch())
    for of_transformers in (False, True):
        with suppress(PolicyError):
            load_policy(str(broken), of_transformers=of_transformers)
    assert not trap.exists()
