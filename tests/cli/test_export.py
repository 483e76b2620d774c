"""``zorplex-rl export``: what plain transformers makes of the folder, without this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from runs import final_weights, same_weights
from safetensors.torch import load_file

from zorplex_rl.cli.commands import main
from zorplex_rl.policy.load import load_policy, save_model
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Environment, Zorplex

pytestmark = pytest.mark.slow

TASKS = Zorplex(seed=5).tasks(("simple", "compositional", "multi_step"), 3, "held_out")
TOKENS = 40
PLAIN = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "zorplex_rl":
            raise ImportError("zorplex_rl is not here")
sys.meta_path.insert(0, Absent())
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, tokens = sys.argv[1], int(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
texts = []
for system, question in json.load(sys.stdin):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, max_new_tokens=tokens)
    texts.append(tokenizer.decode(out[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))
print(json.dumps({"texts": texts, "dtype": str(model.dtype), "zorplex": "zorplex_rl" in sys.modules}))
"""


class NoTools(Environment):
    """Reads no call and no answer, so that a text goes on as ``generate`` continues it."""

    tools = ()

    def find_answer(self, text):
        return None


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_transformers_writes_the_same_greedy_texts_as_the_package(tmp_path, sync_run, dtype):
    path = shutil.copytree(sync_run.path, tmp_path / "run")
    policy = load_policy(str(sync_run.policy), dtype=dtype)
    save_model(policy.model, policy.tokenizer, path / "policy")
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    prompts = json.dumps([(task.system, task.question) for task in TASKS])
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path / "model"), str(TOKENS)], input=prompts, capture_output=True, text=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sampling, environment = Sampling(temperature=0.0, max_tokens=TOKENS, slots=1), NoTools()
    requests = [RolloutRequest(task) for task in TASKS]
    ours = rollout(policy, requests, environment.execute, sampling, environment=environment)
    assert found == {
        "texts": [episode.text for episode in ours],
        "dtype": f"torch.{dtype}",
        "zorplex": False,
    }
    assert same_weights(load_file(tmp_path / "model" / "model.safetensors"), final_weights(path))


def test_a_checkpoint_is_exported_like_a_policy_and_its_files_may_be_read_alike(
    sync_run, tmp_path, capsys
):
    run = str(sync_run.path)
    for step in ("4", "2"):
        assert main(["export", run, "--to", str(tmp_path / step), "--step", step]) == 0
    last, middle = (load_file(tmp_path / step / "model.safetensors") for step in ("4", "2"))
    assert same_weights(last, final_weights(sync_run.path)) and not same_weights(middle, last)
    assert main(["export", run, "--to", str(tmp_path / "3"), "--step", "3"]) == 2
    assert "[2, 4]" in capsys.readouterr().err
    assert main(["export", run, "--to", str(tmp_path / "2")]) == 2
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["2", "4"]
    for folder in (sync_run.policy, tmp_path / "4", sync_run.newest_checkpoint()):
        assert len({file.stat().st_mode for file in folder.rglob("*") if file.is_file()}) == 1
        assert folder.stat().st_mode == (tmp_path / "4").stat().st_mode


def test_sampling_settings_of_a_model_are_left_out_and_a_run_without_a_policy_names_its_checkpoints(
    sync_run, tmp_path, capsys
):
    path = shutil.copytree(sync_run.path, tmp_path / "run")
    settings = path / "policy" / "generation_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"repetition_penalty": 5.0, "top_k": 1})
    )
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    written = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert written.keys() == {"eos_token_id", "pad_token_id", "do_sample"}
    shutil.rmtree(path / "policy")
    assert main(["export", str(path), "--to", str(tmp_path / "other")]) == 2
    assert "[2, 4]" in capsys.readouterr().err
