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
from zorplex_rl.cli.flags import parse_command
from zorplex_rl.policy.warmstart import WarmStart

from zorplex_rl.cli.commands import Commands, main
from zorplex_rl.config import Config, TaskName
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy
from zorplex_rl.run.folder import RunFolder


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


CANNOT_WORK = """
--task sudoku
--difficulty brutal
--loss sgd
--preset huge
--on-update never
--transport pigeon
--steps 0
--steps -3
--group-size 0
--prompts-per-step -1
--slots 0
--max-tokens 0
--generators 0
--eval-tasks 0
--generators 1000000 --prompts-per-step 1000000
--max-lag -1
--tool-latency -0.1
--learning-rate nan
--credit prefix --group-size 1 --loss reinforce
--learning-rate inf
--learning-rate 1e39
--temperature 0
--temperature 1e-9
--tool-latency 1e9
--tool-latency-variation 1e200
--max-tokens 1
--max-tokens 1000
--max-turns 1
--task simple --max-turns 1
--lerning-rate 1
--learning_rte=1
--no-hintz
--zzz
stray
--hints maybe
--steps many
--steps 1.5
--learning-rate fast
--policy ''
--resume ''
--resume=
--clip-low 0
--clip-low 1.5
--clip-high nan
--truncation inf --loss tis
--truncation 2
--clip-low 0.1 --loss reinforce
--max-grad-norm 0
--weight-decay inf
--warmup-steps -1
--loss grpo --group-size 1
--loss dapo --group-size 1
--generators 9
--policy no/such/folder/here
""".strip().splitlines()
TOO_MUCH = [
    f"--group-size {'9' * 20}",
    f"--steps {'9' * 4000}",
    f"--seed {2**63}",
    f"--policy {'x' * 300}",
    f"--resume {'x' * 300}",
]
NOT_FINITE = [
    f"--{name.replace('_', '-')} {value}"
    for name, default in Config().settings().items()
    if isinstance(default, float)
    for value in ("nan", "inf", "-inf")
]


@pytest.mark.parametrize("flags", [*CANNOT_WORK, *TOO_MUCH, *NOT_FINITE])
def test_a_setting_that_cannot_work_is_refused_by_name(capsys, tmp_path, wording, flags):
    said = refused(capsys, tmp_path, "train", "--out", str(tmp_path / "run"), *shlex.split(flags))
    if flags in NOT_FINITE:
        assert f"{flags.split()[0]} is {flags.split()[1]}; it must be a finite number" in said
    else:
        wording(said, flags)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --mode sync", "no flag --mode; "),
        ("train --steps", "issing value for argument '--steps'"),
        ("train --resume", "issing value for argument '--resume'"),
        ("train --policy nobody/nothing", "neither in the local model cache nor can it be downloaded"),
        ("eval --json /proc/no", "cannot be written"),
        ("policy build --out /proc/no/such", "cannot be written"),
    ],
)
def test_what_is_put_by_a_library_the_system_or_all_flags_together_is_one_sentence_too(
    capsys, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, tmp_path, *arguments.split())


@pytest.mark.parametrize(
    "arguments",
    """
eval --temperature inf
eval --temperature nan
eval --temperature 1e-9
eval --temperature -1
eval --tempurature 1
eval --tasks 0
eval --tasks 1000000000000
eval --tasks 1.5
eval --seed 1e3
eval --seed 99999999999999999999
eval --max-tokens 1
eval --max-turns 1
eval --policy ''
eval --json ''
eval --json .
eval --json no/such/file
train --out ''
policy build --out ''
policy build --out .
policy build --steps 0
policy build --steps x
policy build --seed 99999999999999999999
policy build --start ''
policy build --start no/such/policy
policy show --policy ''
policy show --tasks 0
env
env check
export
export run
certificates
size --out x
eval --max-lag=1
eval --task simple --difficulty hard
""".strip().splitlines(),
)
def test_every_argument_of_every_command_is_checked_before_any_work(capsys, tmp_path, monkeypatch, wording, arguments):
    monkeypatch.chdir(tmp_path)
    wording(refused(capsys, tmp_path, *shlex.split(arguments)), arguments)


def test_a_model_is_shown_the_task_and_is_a_policy_of_its_own(tmp_path):
    out = tmp_path / "shown"
    assert main(["policy", "build", "--start", "embedded", "--steps", "1", "--out", str(out)]) == 0
    shown, before = (load_policy(name).model.get_input_embeddings().weight for name in (str(out), "embedded"))
    assert shown.shape == before.shape and not shown.equal(before)


def test_an_evaluation_leaves_its_file_alone_until_it_has_something_to_write(capsys, tmp_path):
    (tmp_path / "report.json").write_text("the last one")
    refused(capsys, tmp_path, "eval", "--json", str(tmp_path / "report.json"), "--policy", "no/such/policy")
    assert (tmp_path / "report.json").read_text() == "the last one"


def test_the_version_is_that_of_the_package(capsys):
    import importlib.metadata

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"zorplex-rl {importlib.metadata.version('zorplex-rl')}\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--version", "--help", "train --help"])
@pytest.mark.parametrize("where", ["| true", ">&-"])
def test_an_output_that_nobody_reads_is_no_mistake(command, where):
    program = shlex.join([sys.executable, "-m", "zorplex_rl"])
    done = subprocess.run(
        ["bash", "-c", f"{program} {command} {where}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "zorplex_rl", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "zorplex-rl: the output could not be written (No space left on device)\n",
    )


@pytest.mark.slow
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


@pytest.mark.parametrize("flags", [["--task", task] for task in get_args(TaskName)])
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


@pytest.mark.slow
def test_no_command_begins_in_a_folder_that_is_gone(tmp_path):
    here = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); from zorplex_rl.__main__ import program; program()"
    for command in (["eval"], ["--version"]):
        (tmp_path / "gone").mkdir()
        done = subprocess.run([sys.executable, "-c", here, *command], capture_output=True, text=True)
        assert done.returncode == 2
        said = "the working directory cannot be found (No such file or directory); cd to another one"
        assert done.stderr == f"zorplex-rl: {said}\n"


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
    ("content", "error"),
    [
        ("{", "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
    ],
)
def test_the_configuration_of_a_run_to_be_resumed_that_cannot_be_read_is_refused(capsys, tmp_path, content, error):
    assert error in resumed_with(capsys, tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        "3",
        '"x"',
        '{"steps": "many"}',
        '{"steps": 1.5}',
        '{"steps": true}',
        '{"steps": null}',
        '{"learning_rate": "fast"}',
        '{"learning_rate": [1]}',
        '{"learning_rate": false}',
        '{"learning_rate": 1' + "0" * 400 + "}",
        '{"learning_rate": NaN}',
        '{"hints": 1}',
        '{"task": 7}',
        '{"task": {}}',
        '{"colour": "red"}',
    ],
)
def test_the_configuration_of_a_run_to_be_resumed_is_checked_field_by_field(capsys, tmp_path, wording, content):
    wording(resumed_with(capsys, tmp_path, content), content)


def resumed_with(capsys, tmp_path, content: str | bytes) -> str:
    """What is said if a run is resumed whose configuration is ``content``."""
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(2), state_at(2))
    file = folder.path / "config.json"
    file.write_bytes(content) if isinstance(content, bytes) else file.write_text(content)
    return refused(capsys, tmp_path, "train", "--resume", str(folder.path))


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


@pytest.mark.slow
def test_a_folder_that_another_process_writes_to_is_not_touched(capsys, tmp_path):
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(2), state_at(2))
    program = (
        "import sys; from pathlib import Path; from zorplex_rl.run.folder import RunFolder\n"
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


@pytest.mark.slow
def test_importing_the_package_loads_neither_torch_nor_monarch():
    program = "import sys, zorplex_rl; zorplex_rl.get_spec('simple'); print({'torch', 'monarch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
