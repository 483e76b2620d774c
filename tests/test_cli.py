"""Whatever is wrong with what was asked for is said in one sentence, with exit code 2, and nothing is started or written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from runs import SMALL, as_flags

from zorplex_rl.cli import main
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run_folder import RunFolder


def refused(capsys, tmp_path, *arguments: str) -> str:
    """The one sentence with which ``zorplex-rl`` refuses ``arguments``."""
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1, output.err
    assert sorted(tmp_path.rglob("*")) == before
    assert not torch.distributed.is_initialized()
    return output.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "sudoku"], "'sudoku'; expected one of simple, compositional, multi_step, recursive, mix"),
        (["--difficulty", "brutal"], "'brutal'"),
        (["--loss", "sgd"], "'sgd'"),
        (["--mode", "both"], "'both'"),
        (["--transport", "pigeon"], "'pigeon'"),
        (["--steps", "0"], "--steps is 0; it must be 1 or more"),
        (["--steps", "-3"], "--steps is -3"),
        (["--group-size", "0"], "--group-size is 0"),
        (["--prompts-per-step", "-1"], "--prompts-per-step is -1"),
        (["--slots", "0"], "--slots is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--generators", "0"], "--generators is 0"),
        (["--eval-tasks", "0"], "--eval-tasks is 0"),
        (["--max-lag", "-1"], "--max-lag is -1; it must be 0 or more"),
        (["--tool-latency", "-0.1"], "--tool-latency is -0.1"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["--temperature", "0"], "--temperature is 0"),
        (["--loss", "grpo", "--group-size", "1"], "--group-size is 1, but --loss grpo"),
        (["--loss", "dapo", "--group-size", "1"], "or --loss reinforce"),
        (["--generators", "9"], "use at most 8"),
        (["--curriculum", "--task", "simple"], "only one"),
        (["--policy", "no/such/folder/here"], "does not exist"),
        (["--policy", "nobody/nothing"], "neither in the local model cache nor can it be downloaded"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(capsys, tmp_path, flags, said):
    assert said in refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), *flags)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("command", ["train", "eval"])
def test_cuda_is_refused_where_there_is_none(capsys, tmp_path, command):
    assert "no CUDA device; use --device auto or cpu" in refused(capsys, tmp_path, command, "--device", "cuda")


def test_a_model_that_is_no_causal_lm_is_refused(capsys, tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    said = refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), "--policy", str(tmp_path / "bert"))
    assert "not a causal language model but BertModel" in said


def test_a_model_without_a_chat_template_is_refused(capsys, tmp_path):
    shutil.copytree(EMBEDDED_PATH, tmp_path / "mute")
    (tmp_path / "mute" / "chat_template.jinja").unlink()
    said = refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), "--policy", str(tmp_path / "mute"))
    assert "has no chat template" in said


def test_a_run_folder_that_exists_is_not_touched(capsys, tmp_path):
    (tmp_path / "run").mkdir()
    assert "exists already" in refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"))


def test_a_place_that_cannot_be_written_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, tmp_path, "train", "--out", str(tmp_path / "file" / "run"))


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path):
    from zorplex_rl.errors import ConfigError

    with pytest.raises(ConfigError, match="MB are needed; free some space or choose another --out"):
        RunFolder.create(tmp_path / "deep" / "run", SMALL, bytes_needed=1 << 60)
    assert not (tmp_path / "deep").exists()


def test_resuming_needs_a_run_folder_with_a_checkpoint_and_the_same_configuration(capsys, tmp_path):
    assert "no config.json" in refused(capsys, tmp_path, "train", "--resume", str(tmp_path / "nowhere"))
    folder = RunFolder.create(tmp_path / "run", SMALL)
    assert "no checkpoint" in refused(capsys, tmp_path, "train", "--resume", str(folder.path))
    folder.finish_checkpoint(folder.begin_checkpoint(2), {"step": 2})
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--learning-rate", "0.5")
    assert "--learning-rate" in said
    assert "≠ 0.5" in said
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--out", str(tmp_path / "other"))
    assert "exclude each other" in said


def test_an_unknown_command_is_refused(capsys, tmp_path):
    assert "no command 'trian'" in refused(capsys, tmp_path, "trian")
    assert "no command" in refused(capsys, tmp_path, "policy", "destroy")
    assert "no benchmark 'speed'; expected all or one of" in refused(capsys, tmp_path, "bench", "speed")


def test_eval_writes_accuracy_outcomes_turns_calls_and_latency_of_all_four_kinds(capsys, tmp_path):
    target = tmp_path / "report.json"
    assert main(["eval", "--tasks", "16", "--json", str(target)]) == 0
    assert "recursive" in capsys.readouterr().out
    report = json.loads(target.read_text())
    assert [task["name"].split(":")[0] for task in report["tasks"]] == [
        "simple",
        "compositional",
        "multi_step",
        "recursive",
    ]
    for task in report["tasks"]:
        assert 0 <= task["accuracy"] <= 1
        assert sum(task["outcomes"].values()) == pytest.approx(1)
        assert {"turns", "tool_calls", "seconds_median", "seconds_p95"} <= task.keys()


def test_policy_show_says_what_the_embedded_policy_is(capsys):
    assert main(["policy", "show", "--tasks", "8"]) == 0
    shown = capsys.readouterr().out
    assert "Qwen2ForCausalLM" in shown
    assert "parameters" in shown
    assert "multi_step" in shown


def test_every_flag_of_a_configuration_is_on_the_command_line(capsys):
    import tyro

    from zorplex_rl.cli import Train

    config = replace(SMALL, loss="tis", hints=True, tool_latency=0.25)
    assert tyro.cli(Train, args=as_flags(config)).config == config


def test_importing_the_package_loads_neither_torch_nor_monarch():
    program = "import sys, zorplex_rl; zorplex_rl.get_spec('simple'); print({'torch', 'monarch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
