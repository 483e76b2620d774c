"""Whatever fails is one sentence for the user: role, cause, what to do. Tracebacks and Monarch's
reports are in the log of the run."""

from __future__ import annotations

import mmap
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import SMALL, as_flags, command, eventually
from zorplex_rl.cli.failures import in_plain_words, is_out_of_memory, role_of, sentence_of

from zorplex_rl.cli import eval as eval_command
from zorplex_rl.cli import train as train_command
from zorplex_rl.cli.commands import main
from zorplex_rl.run.folder import RunFolder

pytestmark = pytest.mark.slow

TASK = """
import os, resource, signal, sys
from pathlib import Path
from zorplex_rl.task.environment import Zorplex

HARM, DONE = {harm!r}, Path({done!r})
IN_ACTOR = getattr(sys.modules["__main__"].__spec__, "name", "").startswith("monarch.")

class Harmed(Zorplex):
    def __init__(self, seed, data):
        super().__init__(seed, kinds=("simple",))
        if HARM == "memory" and IN_ACTOR and "torch" in sys.modules:
            # Enough for a model; a cache of 10,000 slots takes twice as much.
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1500 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def task(self, index, split):
        if HARM == "dataset" and IN_ACTOR and split == "train":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().task(index, split)

    def execute(self, task, call):
        if HARM == "generator" and IN_ACTOR and not DONE.exists():
            DONE.touch()
            print("a word of the task", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return Zorplex.execute(task, call)
"""
CONFIG = SMALL.changed(steps=2, eval_tasks=4, prompts_per_step=1)


def train_with(harm, path, *flags, **settings):
    """(exit code, lines on the terminal, text of the log) of a real run that ``harm`` befalls; no
    process is left."""
    task = path.with_name("harmed.py")
    task.write_text(TASK.format(harm=harm, done=str(path.with_name("done"))))
    with command("train", *as_flags(CONFIG.changed(task=str(task), **settings)), "--out", str(path), *flags) as running:
        code, output = running.finish()
        assert running.all_gone()
    logs = [log for log in (path / "log.txt", path.with_name(f"{path.name}.log.txt")) if log.exists()]
    return code, output.splitlines(), "".join(log.read_text() for log in logs)


def test_an_actor_without_memory_is_one_sentence_with_what_to_lower(tmp_path):
    code, lines, log = train_with("memory", tmp_path / "run", slots=10_000)
    assert code == 1
    assert len(lines) == 2, lines
    assert lines[1].startswith("zorplex-rl: the generator ran out of memory (")
    assert "lower --slots (now 10000) or --max-tokens (now 64)" in lines[1]
    # Nothing had been trained, so the same command can be given again.
    assert lines[1].endswith(f"start again; the traceback is in {tmp_path / 'run.log.txt'}")
    assert "Traceback" in log and not (tmp_path / "run").exists()


def test_a_role_that_is_lost_for_good_is_one_sentence(tmp_path):
    code, lines, log = train_with("dataset", tmp_path / "run")
    assert code == 1
    said = [line for line in lines if line.startswith("zorplex-rl: ")]
    assert len(said) == 1 and "dataset" in said[0] and "signal 9" in said[0], lines
    assert not any("Traceback" in line or "descendants" in line or "  File" in line for line in lines)
    assert f"the traceback is in {tmp_path / 'run' / 'log.txt'}" in said[0]
    assert "Traceback" in log


def test_a_loss_is_told_in_two_lines_and_whatever_an_output_cannot_encode_in_ascii(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, lines, log = train_with("generator", tmp_path / "run")
    assert code == 0, lines
    assert all(line.isascii() for line in lines)
    assert any(line.startswith("What is ") and " | expected " in line for line in lines)
    assert any(line.startswith("held-out accuracy, greedy: 0.") and "->" in line for line in lines)
    # What the user's own code prints stays visible.
    assert any("a word of the task" in line for line in lines)
    told = [line for line in lines if "generator_0" in line or "descendants" in line or "zorplex_rl." in line]
    assert len(told) == 2, told
    assert told[0].startswith("generator_0 failed: its process ")
    assert told[1].startswith("generator_0 died; generator_1 took over after ")
    assert "descendants have failed" in log


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGINT, 0.0), (signal.SIGINT, 0.3), (signal.SIGTERM, 0.8), (signal.SIGHUP, 1.5), (signal.SIGINT, 2.5)],
)
def test_a_stop_while_a_run_is_being_started_is_one_sentence(tmp_path, number, seconds):
    with command("train", *as_flags(SMALL), "--out", str(tmp_path / "run")) as running:
        assert eventually(lambda: takes_signals(running.process.pid))
        time.sleep(seconds)
        os.killpg(running.process.pid, number)
        code, output = running.finish()
        assert running.all_gone()
    assert code == 130, output
    assert "Traceback" not in output and output.count("\n") <= 3
    assert output.endswith(("zorplex-rl: interrupted\n", "stopped at once; nothing has been trained, so start again\n"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "mkdir"), (Path, "write_text"), (RunFolder, "create"), (RunFolder, "locked")]
)
def test_a_stop_while_the_folder_is_being_made_leaves_no_folder(tmp_path, monkeypatch, owner, name):
    made = getattr(owner, name)

    def made_as_somebody_stops(*args, **flags):
        answer = made(*args, **flags)
        os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(owner, name, made_as_somebody_stops)
    monkeypatch.setattr(train_command, "run", lambda *_, **__: pytest.fail("the stop was lost"))
    with pytest.raises(KeyboardInterrupt):
        train_command.train(train_command.Train(SMALL, out=tmp_path / "some" / "run"))
    assert not (tmp_path / "some" / "run").exists()


def takes_signals(pid):
    """Whether the process has a handler for SIGTERM, which Python itself does not set."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_a_defect_of_the_controller_is_one_sentence_and_with_debug_its_traceback(
    tmp_path, capsys, monkeypatch, wording
):
    async def run_training(*_):
        raise KeyError("no such group")

    monkeypatch.setattr("zorplex_rl.training.loop.run_training", run_training)
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.append_metrics({"event": "eval", "step": 0})
    assert train_command.run(SMALL, folder) == 1
    said = capsys.readouterr()
    assert said.out == ""
    wording(said.err)
    assert "Traceback" in folder.log.read_text()
    assert train_command.run(SMALL, folder, debug=True) == 1
    assert "Traceback" in capsys.readouterr().out


def test_a_defect_of_any_other_command_is_one_sentence_and_with_debug_its_traceback(capsys, monkeypatch, wording):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(eval_command, "check_range", fail)
    assert main(["eval"]) == 1
    wording(capsys.readouterr().err)
    assert main(["eval", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit(3)


class Odd(str):
    def strip(self, *_):
        raise RuntimeError


class OfOddText(Exception):
    def __str__(self):
        return Odd("moon")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unprintable(), "Unprintable; "),
        (OfOddText(), "OfOddText: moon; "),
        (ValueError("x" * 10**6), "ValueError: xxx"),
    ],
)
def test_an_exception_whose_text_is_missing_odd_or_endless_is_one_sentence_at_once(error, said):
    assert sentence_of(error).startswith(said) and "\n" not in sentence_of(error)[:400]


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(1 << 50), lambda: np.empty(1 << 50), lambda: mmap.mmap(-1, 1 << 50), lambda: bytes(1 << 50)],
)
def test_every_library_has_its_own_way_to_say_that_there_is_no_memory(allocate):
    with pytest.raises((RuntimeError, MemoryError, OSError)) as raised:
        allocate()
    assert is_out_of_memory(raised.value)


def test_what_is_full_or_forbidden_is_not_taken_for_memory():
    assert not is_out_of_memory(OSError(28, "No space left on device"))
    assert not is_out_of_memory(ValueError("wrong shape"))


def test_the_role_is_read_from_what_a_call_or_monarch_reports():
    said = (
        "Endpoint call replay.state() failed, The actor <root>.<zorplex_rl.training.actors.ReplayBufferActor replay{'procs': 0/1}> and all "
        "its descendants have failed:\n  the process this actor was running on failed: Killed(sig=15)"
    )
    assert role_of(RuntimeError(said)) == "replay buffer"
    assert sentence_of(RuntimeError(said)) == "the replay buffer is gone: its process was killed (signal 15)"
    assert role_of(RuntimeError("Actor call TrainerRankActor.step failed.")) == "trainer"
    assert role_of(RuntimeError('error creating proc, {"id":"generator_0-0<z4azc>"')) == "generator"
    assert role_of(RuntimeError('error creating proc, {"id":"setup-0<z4azc>"')) is None, "a process of Monarch's own"


def test_of_a_process_that_did_not_come_up_people_are_told_its_death_and_no_record_of_monarchs():
    state = (
        '{"id":"replay_0-0<y2r8Y6GkMcy>","status":{"Failed":"proc \'replay_0\' failed to configure process: '
        'Ready(Terminal(Killed { signal: 9, core_dumped: false }))"},"timestamp":{"secs_since_epoch":1795450861}}'
    )
    said = f"a replica of 'replay' could not be started: error creating proc (host rank 0) on host mesh agent x, state: {state}"
    killed = "its process was killed (signal 9, which the system sends when memory runs out)"
    assert in_plain_words(said) == f"a replica of 'replay' could not be started: {killed}"
