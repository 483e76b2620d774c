"""How a run ends before its time, and how it goes on: signals, a closed terminal, a full disk. Real
runs where the processes matter; what a signal asks for is tried with real signals to this process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import shlex
import signal
import sys
import termios
import threading
from types import SimpleNamespace

import pytest
from runs import SMALL, as_flags, command, eventually, final_weights, rows, same_weights, train_here

from zorplex_rl.cli import train
from zorplex_rl.cli.commands import main
from zorplex_rl.run.folder import RunFolder, step_of
from zorplex_rl.training.controller import StopRequest

pytestmark = pytest.mark.slow


def events(path):
    """(event, step) of every row, in order."""
    return [
        (row["event"], row["step"])
        for row in RunFolder(path).metrics()
        if row["event"] != "started"
    ]


@pytest.mark.long
def test_a_run_that_sigterm_has_stopped_is_resumed_with_the_same_weights_and_leaves_no_process(
    tmp_path, sync_run
):
    path = tmp_path / "a run"
    config = SMALL.changed(checkpoint_every=1000)
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually(lambda: rows(path, "step"))
        # ``timeout`` signals its child and then the child's group: that is one wish.
        os.kill(running.process.pid, signal.SIGTERM)
        os.killpg(running.process.pid, signal.SIGTERM)
        code, output = running.finish()
        assert code == 130 and "Traceback" not in output, output
        assert running.all_gone()
    step = step_of(RunFolder(path).newest_checkpoint())
    assert 0 < step == rows(path, "step")[-1]["step"] < 4
    line = output.splitlines()[-1].partition(" with: ")[2]
    assert shlex.split(line) == ["zorplex-rl", "train", "--resume", str(path)]
    with command("train", *shlex.split(line)[2:]) as running:
        code, output = running.finish()
        assert code == 0, output
    assert same_weights(final_weights(path), final_weights(sync_run.path))
    assert [event for event in events(path) if event[0] != "resume"] == events(sync_run.path)


@pytest.mark.long
def test_a_finished_run_is_left_alone_and_can_be_made_longer(tmp_path, capsys, sync_run):
    path = train_here(SMALL.changed(steps=2), tmp_path / "a run").path

    def contents():
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")}

    before = contents()
    assert main(["train", "--resume", str(path)]) == 0
    assert "--steps" in capsys.readouterr().out
    assert main(["train", "--resume", str(path), "--steps", "1"]) == 0
    assert contents() == before
    with command("train", "--resume", str(path), "--steps", "4") as running:
        code, output = running.finish()
    assert code == 0, output
    # In its first five steps the learning rate of any run rises in the same way.
    assert same_weights(final_weights(path), final_weights(sync_run.path))
    assert RunFolder.reopen(path)[1].steps == 4


@pytest.mark.long
@pytest.mark.parametrize("small_disk", ["64m"], indirect=True, ids=["room for a few checkpoints"])
def test_a_disk_that_fills_up_ends_the_run_with_the_way_to_go_on(small_disk):
    path, filler = small_disk / "a run", small_disk / "filler"
    with command("train", *as_flags(SMALL.changed(steps=500)), "--out", str(path)) as running:
        assert eventually(lambda: RunFolder(path).checkpoints())
        with filler.open("ab", buffering=0) as file:
            # Old checkpoints go, and make room again.
            while running.process.poll() is None:
                try:
                    file.write(bytes(1 << 16))
                except OSError:
                    running.process.stdout.flush()
        code, output = running.finish()
        assert code == 1
        assert running.all_gone()
    assert "Traceback" not in output
    said = re.search(
        r"\(No space left on device\); continue from the checkpoint of step (\d+) with: (.*); the",
        output,
    )
    assert said, output
    done = int(said[1])
    assert shlex.split(said[2]) == ["zorplex-rl", "train", "--resume", str(path)]
    filler.unlink()
    with command("train", "--resume", str(path), "--steps", str(done)) as running:
        code, output = running.finish()
        assert code == 0, output
    assert [row["step"] for row in rows(path, "step")] == list(range(1, done + 1))


@pytest.mark.long
def test_a_closed_terminal_ends_the_run_with_a_checkpoint(tmp_path):
    path = tmp_path / "run"
    master, terminal = pty.openpty()

    def drain():
        while len(rows(path, "step")) < 2:
            os.read(master, 1 << 16)

    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    flags = as_flags(SMALL.changed(max_lag=1, steps=500, checkpoint_every=1000))
    with command(
        "train",
        *flags,
        "--out",
        str(path),
        **streams,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as running:
        os.close(terminal)
        reading = threading.Thread(target=drain)
        reading.start()
        assert eventually(lambda: not reading.is_alive())
        os.close(master)
        assert running.process.wait(180) == 130
        assert running.all_gone()
    assert step_of(RunFolder(path).newest_checkpoint()) == rows(path, "step")[-1]["step"]


def stopped(tmp_path, monkeypatch, *actions, under_way=True):
    """(exit code, how it ended) of a run that gets ``actions``: signals, or seconds to wait."""
    controller, ended = SimpleNamespace(stop_requested=False, under_way=under_way), ["at its end"]

    async def run_training(config, folder, resume, show, say, draw, on_start):
        on_start(controller)
        try:
            for action in actions:
                if isinstance(action, signal.Signals):
                    os.kill(os.getpid(), action)
                await asyncio.sleep(action if isinstance(action, float) else 0.05)
        except asyncio.CancelledError:
            ended.append("at once")
            raise
        if controller.stop_requested:
            ended.append("after a checkpoint")
            raise StopRequest
        evaluation = {
            "greedy_accuracy": 0.5,
            "sampled_accuracy": 0.5,
            "outcomes": {"greedy": {}, "sampled": {}},
        }
        return evaluation, evaluation | {"seconds": 1.0}

    monkeypatch.setattr("zorplex_rl.training.loop.run_training", run_training)
    # A closed terminal is replaced.
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(train, "SAME_WISH_SECONDS", 0.5)
    return train.train(SMALL, RunFolder.create(tmp_path / "run", SMALL)), ended[-1]


@pytest.mark.parametrize("number", train.STOPS)
def test_a_signal_asks_for_a_checkpoint_and_a_later_one_for_an_end_at_once(
    tmp_path, monkeypatch, number
):
    assert stopped(tmp_path / "one", monkeypatch, number, number) == (130, "after a checkpoint")
    assert stopped(tmp_path / "two", monkeypatch, number, 0.6, signal.SIGINT) == (130, "at once")


def test_before_there_is_anything_to_save_a_signal_means_at_once(tmp_path, monkeypatch):
    assert stopped(tmp_path, monkeypatch, signal.SIGINT, under_way=False) == (130, "at once")


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stopped(tmp_path, monkeypatch, signal.SIGHUP) == (0, "at its end")
    finally:
        signal.signal(signal.SIGHUP, before)
