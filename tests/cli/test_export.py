"""``zorplex-rl export``: what plain transformers makes of the folder, without this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from runs import SMALL, final_weights, same_weights, train_here
from safetensors.torch import load_file

from zorplex_rl.cli.commands import main
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Environment, Zorplex

pytestmark = pytest.mark.slow

TASKS = Zorplex(seed=5).tasks(("simple", "compositional", "multi_step"), 6, "held_out")
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

    def find_answer(self, text):
        return None


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def run(request, tmp_path_factory, sync_run):
    path = tmp_path_factory.mktemp(request.param) / "run"
    if request.param == "float32":
        # A copy: these tests change it.
        shutil.copytree(sync_run.path, path)
    else:
        train_here(SMALL.changed(dtype=request.param), path)
    return path, request.param


def texts_of_plain_transformers(folder) -> dict:
    prompts = json.dumps([(task.system, task.question) for task in TASKS])
    found = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder), str(TOKENS)], input=prompts, capture_output=True, text=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"}, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_who_may_read_one_file_of_a_policy_or_a_checkpoint_may_read_all(run, tmp_path):
    path, _ = run
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    newest = max((path / "checkpoints").iterdir())
    for folder in (path / "policy", tmp_path / "model", newest):
        assert len({file.stat().st_mode for file in folder.rglob("*") if file.is_file()}) == 1
        assert folder.stat().st_mode == tmp_path.joinpath("model").stat().st_mode


def test_plain_transformers_writes_the_same_greedy_texts_as_the_package(run, tmp_path):
    path, dtype = run
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    found = texts_of_plain_transformers(tmp_path / "model")
    policy = load_policy(str(path / "policy"), dtype=dtype)
    sampling, environment = Sampling(temperature=0.0, max_tokens=TOKENS, slots=1), NoTools()
    ours = rollout(
        policy, [RolloutRequest(task) for task in TASKS], environment.execute, sampling, environment=environment
    )
    assert found["zorplex"] is False and found["dtype"] == f"torch.{dtype}"
    if dtype == "float32":
        assert found["texts"] == [episode.text for episode in ours]
    else:
        # Two ways to compute the same in bfloat16 may differ where two tokens are almost equally
        # likely.
        assert sum(a == b.text for a, b in zip(found["texts"], ours, strict=True)) >= len(TASKS) - 1
    assert same_weights(load_file(tmp_path / "model" / "model.safetensors"), final_weights(path))


def test_sampling_settings_of_a_model_are_left_out(run, tmp_path):
    path, _ = run
    settings = path / "policy" / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"repetition_penalty": 5.0, "top_k": 1}))
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text()).keys() == {
        "eos_token_id", "pad_token_id", "do_sample",
    }  # fmt: skip


def test_a_checkpoint_can_be_exported(run, tmp_path, capsys):
    path, _ = run
    assert main(["export", str(path), "--to", str(tmp_path / "last"), "--step", "4"]) == 0
    assert main(["export", str(path), "--to", str(tmp_path / "middle"), "--step", "2"]) == 0
    last, middle = (load_file(tmp_path / name / "model.safetensors") for name in ("last", "middle"))
    assert same_weights(last, final_weights(path)) and not same_weights(middle, last)
    assert {values.dtype for values in middle.values()} == {next(iter(last.values())).dtype}
    assert main(["export", str(path), "--to", str(tmp_path / "third"), "--step", "3"]) == 2
    assert "no checkpoint of step 3" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()


def test_nothing_is_overwritten_and_what_is_no_run_is_refused(run, tmp_path, capsys):
    path, _ = run
    (tmp_path / "taken").mkdir()
    assert main(["export", str(path), "--to", str(tmp_path / "taken")]) == 2
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "new")]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_a_run_without_a_finished_policy_names_its_checkpoints(run, tmp_path, capsys):
    path, _ = run
    (path / "policy").rename(path / "away")
    try:
        assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 2
    finally:
        (path / "away").rename(path / "policy")
    assert "no finished policy; give the --step of a checkpoint: 2, 4" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
