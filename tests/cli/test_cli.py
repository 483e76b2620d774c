"""Whatever is wrong with what was asked for is said in one sentence, with exit code 2, and nothing
is started or written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch
from runs import SMALL, as_flags, state_at

from zorplex_rl.cli.commands import Commands, main
from zorplex_rl.cli.flags import parse_command
from zorplex_rl.config import Config, TaskName
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.policy.warmstart import WarmStart
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
        (["--update", "never"], "--update: 'never'; expected one of groups, in-flight; see zorplex-rl train --help"),
        (["--mode", "sync"], "no flag --mode; "),
        (["--transport", "pigeon"], "'pigeon'"),
        (["--steps", "0"], "--steps is 0; it must be 1 or more"),
        (["--steps", "-3"], "--steps is -3"),
        (["--group-size", "0"], "--group-size is 0"),
        (["--prompts-per-step", "-1"], "--prompts-per-step is -1"),
        (["--slots", "0"], "--slots is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--generators", "0"], "--generators is 0"),
        (["--eval-tasks", "0"], "--eval-tasks is 0"),
        (["--group-size", "9" * 20], "--group-size is 99999999999999999999; it must be 1000000 or less"),
        (["--generators", "1000000", "--prompts-per-step", "1000000"], "it must be 1000 or less"),
        (["--steps", "9" * 4000], "--steps is a number of more than 20 digits; it must be 1000000000 or less"),
        (["--max-lag", "-1"], "--max-lag is -1; it must be 0 or more"),
        (["--tool-latency", "-0.1"], "--tool-latency is -0.1"),
        (["--learning-rate", "nan"], "--learning-rate is nan; it must be a finite number"),
        (["--learning-rate", "inf"], "--learning-rate is inf; it must be a finite number"),
        (["--learning-rate", "1e39"], "--learning-rate is 1e+39; it must be 1e+30 or less"),
        (["--temperature", "0"], "--temperature is 0.0; it must be 0.01 or more"),
        (["--temperature", "1e-9"], "--temperature is 1e-09; it must be 0.01 or more"),
        (["--tool-latency", "1e9"], "it must be 3600 or less"),
        (["--tool-latency-variation", "1e200"], "it must be 1000 or less"),
        (["--curriculum-threshold", "1.5"], "it must be 1 or less"),
        (["--seed", str(2**63)], "it must fit into 64 bits"),
        (["--max-tokens", "1"], "the shortest answer with its tool calls takes 20 tokens; use 21 or more"),
        (
            ["--max-tokens", "1000"],
            "the policy reads at most 1024 tokens, and prompts take 32 of them; use 992 or less",
        ),
        (["--max-turns", "1"], "the shortest answer takes 3, one more than its tool calls; use 3 or more"),
        (["--task", "simple", "--max-turns", "1"], "the shortest answer takes 2"),
        (["--lerning-rate", "1"], "no flag --lerning-rate; did you mean --learning-rate?"),
        (["--learning_rte=1"], "no flag --learning_rte; did you mean --learning-rate?"),
        (["--no-hintz"], "no flag --no-hintz; did you mean --no-hints?"),
        (["--zzz"], "no flag --zzz; see zorplex-rl train --help"),
        (["stray"], "'stray' belongs to no flag"),
        (["--hints", "maybe"], "'maybe' belongs to no flag"),
        (["--steps", "many"], "--steps: 'many' is not a whole number; see zorplex-rl train --help"),
        (["--steps", "1.5"], "'1.5' is not a whole number"),
        (["--steps"], "issing value for argument '--steps'; see zorplex-rl train --help"),
        (["--learning-rate", "fast"], "'fast' is not a number"),
        (["--policy", ""], "--policy: it is empty; expected a text"),
        (["--resume", ""], "--resume: it is empty; expected a path"),
        (["--resume="], "--resume: it is empty; expected a path"),
        (["--resume"], "issing value for argument '--resume'"),
        (["--policy", "x" * 300], "cannot be looked at (File name too long)"),
        (["--resume", "x" * 300], "cannot be looked at (File name too long)"),
        (["--clip-low", "0"], "--clip-low is 0.0; it must be above 0"),
        (["--clip-low", "1.5"], "a ratio cannot fall by more than 1"),
        (["--clip-high", "nan"], "--clip-high is nan"),
        (["--truncation", "inf", "--loss", "tis"], "--truncation is inf"),
        (["--truncation", "2"], "--truncation is a setting of tis, decoupled_ppo, dppo, and --loss is grpo"),
        (
            ["--clip-low", "0.1", "--loss", "reinforce"],
            "--clip-low is a setting of grpo, dapo, gspo, maxrl, cispo, decoupled_ppo",
        ),
        (["--max-grad-norm", "0"], "--max-grad-norm is 0.0; it must be above 0"),
        (["--weight-decay", "inf"], "--weight-decay is inf"),
        (["--warmup-steps", "-1"], "--warmup-steps is -1; it must be 0 or more"),
        (["--loss", "grpo", "--group-size", "1"], "--group-size is 1, but --loss grpo"),
        (["--loss", "dapo", "--group-size", "1"], "or --loss reinforce"),
        (["--generators", "9"], "use at most 8"),
        (["--curriculum", "--task", "simple"], "only one"),
        (["--policy", "no/such/folder/here"], "does not exist"),
        (["--policy", "nobody/nothing"], "neither in the local model cache nor can it be downloaded"),
        *(
            ([f"--{name.replace('_', '-')}", value], "must be a finite number")
            for name, default in Config().settings().items()
            if isinstance(default, float)
            for value in ("nan", "inf", "-inf")
        ),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(capsys, tmp_path, flags, said):
    assert said in refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), *flags)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("eval --temperature inf", "--temperature is inf"),
        ("eval --temperature nan", "--temperature is nan"),
        ("eval --temperature 1e-9", "it must be 0 (greedy), or 0.01 or more"),
        ("eval --temperature -1", "it must be 0 (greedy), or 0.01 or more"),
        ("eval --tempurature 1", "did you mean --temperature?"),
        ("eval --tasks 0", "--tasks is 0"),
        ("eval --tasks 1000000000000", "--tasks is 1000000000000; it must be 1000000 or less"),
        ("eval --tasks 1.5", "'1.5' is not a whole number"),
        ("eval --seed 1e3", "'1e3' is not a whole number"),
        ("eval --seed 99999999999999999999", "must fit into 64 bits"),
        ("eval --max-tokens 1", "takes 13 tokens"),
        ("eval --max-turns 1", "--max-turns is 1"),
        ("eval --policy ''", "--policy: it is empty"),
        ("eval --json ''", "--json: it is empty"),
        ("eval --json .", "--json '.' cannot be written (Is a directory)"),
        ("eval --json /proc/no", "cannot be written"),
        ("eval --json no/such/file", "cannot be written (No such file or directory)"),
        ("train --out ''", "--out: it is empty"),
        ("policy build --out ''", "--out: it is empty"),
        ("policy build --out .", "--out '.' exists already"),
        ("policy build --out /proc/no/such", "cannot be written"),
        ("policy build --steps 0", "--steps is 0"),
        ("policy build --steps x", "'x' is not a whole number"),
        ("policy build --seed 99999999999999999999", "must fit into 64 bits"),
        ("policy show --policy ''", "--policy: it is empty"),
        ("policy show --tasks 0", "--tasks is 0"),
        ("bench --nam all", "no flag --nam"),
        ("bench --name all", "no flag --name; see zorplex-rl bench --help"),
        ("bench ''", "it is empty"),
        ("bench all of", "'of' belongs to no flag"),
    ],
)
def test_every_argument_of_every_command_is_checked_before_any_work(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, tmp_path, *shlex.split(arguments))


def test_an_evaluation_leaves_its_file_alone_until_it_has_something_to_write(capsys, tmp_path):
    (tmp_path / "report.json").write_text("the last one")
    refused(capsys, tmp_path, "eval", "--json", str(tmp_path / "report.json"), "--policy", "no/such/policy")
    assert (tmp_path / "report.json").read_text() == "the last one"


def test_the_version_is_that_of_the_package(capsys):
    import importlib.metadata

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"zorplex-rl {importlib.metadata.version('zorplex-rl')}\n"


@pytest.mark.parametrize("command", ["--version", "--help", "train --help"])
@pytest.mark.parametrize("where", ["| true", ">&-"])
def test_an_output_that_nobody_reads_is_no_mistake(command, where):
    program = shlex.join([sys.executable, "-m", "zorplex_rl"])
    done = subprocess.run(
        ["bash", "-c", f"{program} {command} {where}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_command_starts_has_standard_files_also_where_its_own_are_closed():
    # As a process of Monarch's begins.
    child = "import sys; sys.stdin.read(); sys.stdout.reconfigure(line_buffering=True); sys.stderr.write('')"
    program = f"""if True:
        import subprocess, sys
        from zorplex_rl.__main__ import main
        sys.argv[1:] = ["--version"]
        main()
        raise SystemExit(subprocess.run([sys.executable, "-c", {child!r}]).returncode)
    """
    assert subprocess.run(["bash", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, program]).returncode == 0


def test_a_command_that_has_used_monarch_ends_before_the_interpreter_is_taken_apart():
    """On the way out Monarch's threads would end it with SIGABRT, now and then."""
    program = """if True:
        import atexit, os, sys, types
        from zorplex_rl import __main__

        class TakenApart:
            def __del__(self):
                os.abort()

        sys.modules["monarch"], kept = types.ModuleType("monarch"), TakenApart()
        __main__.main = lambda: 3 if atexit.register(print, "cleaned up") else 0
        __main__.program()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "cleaned up\n", "")


def test_an_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zorplex_rl", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "zorplex-rl: the output could not be written (No space left on device)\n",
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_of_an_output_lacks_is_written_in_ascii(encoding, tmp_path):
    # A path may hold bytes that are no text in any encoding.
    commands = [
        "train --help",
        "eval --help",
        "eval --task sudoku–… ",
        f"status {tmp_path}/\udcff",
        "train --resume é→",
    ]
    for arguments in commands:
        done = subprocess.run(
            [sys.executable, "-m", "zorplex_rl", *arguments.split()],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
        )
        assert b"Traceback" not in done.stderr, done.stderr
        said = (done.stdout + done.stderr).decode(encoding)
        assert done.returncode == (0 if "--help" in arguments else 2), said
        assert encoding == "utf-8" or "sudoku" not in arguments or "'sudoku-...'" in said
        assert "→" in said if encoding == "utf-8" and "→" in arguments else "→" not in said or encoding == "utf-8"


def test_help_is_no_mistake(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert "--learning-rate FLOAT" in capsys.readouterr().out


def test_limits_that_shut_out_a_part_of_the_tasks_are_said(capsys, tmp_path):
    assert main(["eval", "--tasks", "1", "--max-turns", "4", "--json", str(tmp_path / "report.json")]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        "of the recursive:easy tasks cannot be answered within --max-tokens 96 and --max-turns 4; 37 and 5 would do"
        in said
    )


@pytest.mark.parametrize(
    "flags", [["--task", task] for task in get_args(TaskName)] + [["--task", "mix", "--curriculum"]]
)
def test_the_default_limits_are_enough_for_every_task(capsys, tmp_path, flags):
    # What is refused comes after the limits have been looked at.
    (tmp_path / "run").mkdir()
    assert "exists already" in refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), *flags)


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


def damaged(folder: Path, change) -> Path:
    """The embedded policy, with its weights as ``change`` leaves them."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(EMBEDDED_PATH, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("command", ["train --out run", "eval", "policy show"])
def test_a_policy_whose_weights_are_not_finite_is_refused(capsys, tmp_path, monkeypatch, command, value):
    monkeypatch.chdir(tmp_path)
    folder = damaged(tmp_path / "broken", lambda weights: weights["model.norm.weight"].__setitem__(-1, value))
    said = refused(capsys, tmp_path, *command.split(), "--policy", str(folder))
    assert "has weights that are not finite numbers, 'model.norm.weight' first" in said


@pytest.mark.parametrize("command", ["train --out run", "eval", "policy show"])
def test_a_policy_with_fewer_embeddings_than_its_tokenizer_has_entries_is_refused(
    capsys, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)

    def shorten(weights):
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:500].clone()

    folder = damaged(tmp_path / "short", shorten)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 500}))
    said = refused(capsys, tmp_path, *command.split(), "--policy", str(folder))
    assert "has 500 embeddings, but its tokenizer goes up to id 532" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "is a list; expected a JSON object"),
        ("null", "is null; expected a JSON object"),
        ("3", "is 3; expected a JSON object"),
        ('"x"', "is 'x'; expected a JSON object"),
        ("{", "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
        ('{"steps": "many"}', "the configuration's steps is 'many'; expected a whole number"),
        ('{"steps": 1.5}', "the configuration's steps is 1.5; expected a whole number"),
        ('{"steps": true}', "the configuration's steps is True; expected a whole number"),
        ('{"steps": null}', "the configuration's steps is null; expected a whole number"),
        ('{"learning_rate": "fast"}', "learning_rate is 'fast'; expected a number"),
        ('{"learning_rate": [1]}', "learning_rate is a list; expected a number"),
        ('{"learning_rate": false}', "learning_rate is False; expected a number"),
        ('{"learning_rate": 1' + "0" * 400 + "}", "learning_rate is too large a number"),
        ('{"learning_rate": NaN}', "--learning-rate is nan; it must be a finite number"),
        ('{"hints": 1}', "hints is 1; expected true or false"),
        ('{"task": 7}', "task is 7; expected a text"),
        ('{"task": {}}', "task is an object; expected a text"),
        ('{"colour": "red"}', "a field 'colour' that this version does not know"),
    ],
)
def test_the_configuration_of_a_run_to_be_resumed_is_checked_field_by_field(capsys, tmp_path, content, said):
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(2), state_at(2))
    file = folder.path / "config.json"
    file.write_bytes(content) if isinstance(content, bytes) else file.write_text(content)
    assert said in refused(capsys, tmp_path, "train", "--resume", str(folder.path))


def test_a_whole_number_will_do_for_a_configurations_float():
    config = Config.from_dict({"learning_rate": 1})
    assert type(config.learner.learning_rate) is float
    assert config == Config().changed(learning_rate=1.0)
    assert Config.from_dict(json.loads(SMALL.to_json())) == SMALL


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
    folder.finish_checkpoint(folder.begin_checkpoint(2), state_at(2))
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--learning-rate", "0.5")
    assert "--learning-rate" in said
    assert "≠ 0.5" in said
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--out", str(tmp_path / "other"))
    assert "exclude each other" in said


def test_a_broken_checkpoint_is_refused_with_the_command_that_uses_the_older_one(capsys, tmp_path):
    folder = RunFolder.create(tmp_path / "a run", SMALL)
    with folder.locked():
        for step in (1, 2):
            folder.finish_checkpoint(folder.begin_checkpoint(step), state_at(step))
    (folder.newest_checkpoint() / "controller.json").write_text('{"st')
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path))
    assert "the checkpoint of step 2" in said and "controller.json has 4 of " in said
    assert said.endswith(f"zorplex-rl train --resume '{folder.path}' --from-checkpoint 1\n")
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--from-checkpoint", "3")
    assert "the checkpoints in" in said and "are of step 1, 2" in said
    assert "needs a run to continue" in refused(capsys, tmp_path, "train", "--from-checkpoint", "1")


def test_a_folder_that_another_process_writes_to_is_not_touched(capsys, tmp_path):
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(2), state_at(2))
    program = (
        "import sys; from pathlib import Path; from zorplex_rl.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('locked', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program, str(folder.path)], **pipes) as other:
        assert other.stdout.readline() == "locked\n"
        said = refused(capsys, tmp_path, "train", "--resume", str(folder.path))
        assert f"the run in '{folder.path}' is under way in another process" in said
        # It has no time to clean up: the system lets go of what it held.
        other.kill()
    with folder.locked():
        pass


def test_a_run_cannot_be_made_shorter_than_what_it_has_done(capsys, tmp_path):
    folder = RunFolder.create(tmp_path / "run", SMALL)
    with folder.locked():
        folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    said = refused(capsys, tmp_path, "train", "--resume", str(folder.path), "--steps", "2")
    assert "--steps is 2, but the run" in said and "has done 3 already" in said


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


def test_policy_build_says_how_to_use_what_it_has_built_wherever_that_is(capsys, tmp_path, monkeypatch):
    tiny = partial(WarmStart, batch_size=4, hidden_size=16, layers=1, threads=1)
    monkeypatch.setattr("zorplex_rl.policy.warmstart.WarmStart", tiny)
    built = tmp_path / "a policy"
    assert main(["policy", "build", "--steps", "1", "--out", str(built)]) == 0
    advice = capsys.readouterr().out.splitlines()[-1].partition("use it with ")[2]
    assert shlex.split(advice) == ["--policy", str(built)]
    assert (built / "model.safetensors").is_file()


def test_policy_show_says_what_the_embedded_policy_is(capsys):
    assert main(["policy", "show", "--tasks", "8"]) == 0
    shown = capsys.readouterr().out
    assert "Qwen2ForCausalLM" in shown
    assert "parameters" in shown
    assert "multi_step" in shown


def test_every_flag_of_a_configuration_is_on_the_command_line(capsys):
    config = SMALL.changed(loss="tis", hints=True, tool_latency=0.25)
    assert parse_command(Commands, ["train", *as_flags(config)], "zorplex-rl").config == config


def test_importing_the_package_loads_neither_torch_nor_monarch():
    program = "import sys, zorplex_rl; zorplex_rl.get_spec('simple'); print({'torch', 'monarch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
