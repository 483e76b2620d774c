"""How a run ends before its time, and what can be done with it then: signals, closed pipes and
terminals, full disks, broken checkpoints.

Real runs where the processes matter. What a wish to stop means is tried on ``StopWish`` alone, with
real signals to this process.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import termios
import threading
from io import StringIO
from types import SimpleNamespace

import pytest
from runs import PROGRAM, SMALL, as_flags, command, eventually, final_weights, rows, same_weights, state_at, train_here
from zorplex_rl.cli.output import Output
from zorplex_rl.cli.stop_wish import SAME_WISH_SECONDS, StopWish

from zorplex_rl.cli.commands import main
from zorplex_rl.cli.train import _how_to_go_on
from zorplex_rl.errors import CheckpointError
from zorplex_rl.run.folder import RunFolder, step_of

pytestmark = pytest.mark.slow

LONG = SMALL.changed(max_lag=1, steps=500, checkpoint_every=1000)


def events(path):
    """(event, step) of every row, in order."""
    return [(row["event"], row["step"]) for row in RunFolder(path).metrics()]


@pytest.mark.long
def test_a_finished_run_is_left_alone_and_can_be_made_longer(tmp_path, capsys, sync_run):
    path = tmp_path / "a run"
    train_here(SMALL.changed(steps=2), path)

    def contents():
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")}

    before = contents()
    assert main(["train", "--resume", str(path)]) == 0
    said = capsys.readouterr().out
    assert "is already finished: 2 of 2 steps" in said
    assert said.endswith(f"zorplex-rl train --resume '{path}' --steps 4\n")
    assert main(["train", "--resume", str(path), "--steps", "1"]) == 2
    assert "has done 2 already" in capsys.readouterr().err
    assert contents() == before
    with command("train", "--resume", str(path), "--steps", "4") as running:
        code, output = running.finish()
    assert code == 0, output
    # In its first five steps the learning rate of any run rises in the same way: nothing tells that
    # this one was to end after two.
    assert same_weights(final_weights(path), final_weights(sync_run.path))
    assert events(path) == [
        ("eval", 0), ("step", 1), ("step", 2), ("resume", 2), ("step", 3), ("step", 4), ("eval", 4)
    ]  # fmt: skip
    assert json.loads((path / "config.json").read_text())["steps"] == 4


@pytest.mark.long
def test_a_run_that_goes_on_from_its_older_checkpoint_has_the_rows_and_weights_of_the_uninterrupted_one(tmp_path):
    from zorplex_rl.training.controller import StopRequest
    from zorplex_rl.training.loop import run_training

    # The checkpoints lie between two evaluations.
    config = SMALL.changed(eval_every=3, checkpoint_every=1)
    straight = train_here(config, tmp_path / "straight")

    controllers = []

    def stop_after_two(row):
        controllers[0].stop_requested = (row["event"], row["step"]) == ("step", 2)

    with pytest.raises(StopRequest):
        train_here(config, tmp_path / "stopped", show=stop_after_two, on_start=controllers.append)
    folder, _ = RunFolder.reopen(tmp_path / "stopped")
    (folder.newest_checkpoint() / "controller.json").write_text("{")
    asyncio.run(run_training(config, folder, resume=folder.intact_checkpoint(1)))
    assert [event for event in events(folder.path) if event != ("resume", 1)] == events(straight.path)
    assert same_weights(final_weights(folder.path), final_weights(straight.path))


def test_a_trainer_does_not_come_back_from_a_broken_checkpoint(tmp_path):
    controllers = []

    def show(row):
        if row["event"] == "step" and row["step"] == 3:
            os.truncate(tmp_path / "run" / "checkpoints" / "step_000002" / "trainer" / "learner.safetensors", 1000)
            os.kill(controllers[0].trainer.replica.pid, signal.SIGKILL)

    with pytest.raises(
        CheckpointError, match="the trainer died, and the checkpoint that it comes back from is not whole"
    ):
        train_here(SMALL, tmp_path / "run", show=show, on_start=controllers.append)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for a few checkpoints."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.long
def test_a_disk_that_fills_up_ends_the_run_with_the_way_to_go_on(small_disk):
    path, filler = small_disk / "a run", small_disk / "filler"
    with command("train", *as_flags(SMALL.changed(steps=500)), "--out", str(path)) as running:
        assert eventually(lambda: RunFolder(path).newest_checkpoint())
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
        r"written.*\(No space left on device\); free some space; continue from the checkpoint of step (\d+) with: (.*)\n",
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
    assert RunFolder(path).is_finished(done)


@pytest.mark.long
def test_a_closed_terminal_ends_the_run_with_a_checkpoint(tmp_path):
    path, words = tmp_path / "run", tmp_path / "stderr"
    master, terminal = pty.openpty()
    with (
        words.open("w") as errors,
        command(
            "train", *as_flags(LONG), "--out", str(path), stdin=terminal, stdout=terminal, stderr=errors,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        ) as running,
    ):  # fmt: skip
        os.close(terminal)
        reading = threading.Thread(target=drain, args=(master, lambda: len(rows(path, "step")) >= 2))
        reading.start()
        assert eventually(lambda: not reading.is_alive())
        os.close(master)
        assert running.process.wait(180) == 130
        assert running.all_gone()
    assert words.read_text().count("\n") == 1
    assert "stopped after a checkpoint; continue from the checkpoint of step" in words.read_text()
    folder, _ = RunFolder.reopen(path)
    assert step_of(folder.intact_checkpoint()) == rows(path, "step")[-1]["step"]


def drain(master, done):
    """Read what is written to a terminal, until ``done``."""
    while not done():
        os.read(master, 1 << 16)


@pytest.mark.long
def test_a_pipe_that_is_closed_ends_the_run_with_a_checkpoint(tmp_path):
    path = tmp_path / "a run"
    train = shlex.join([*PROGRAM, "train", *as_flags(LONG), "--out", str(path)])
    with command(f"{train} | head -3; echo status ${{PIPESTATUS[0]}}", program=("bash", "-c")) as running:
        code, output = running.finish()
        assert code == 0
        assert running.all_gone()
    assert output.count("\n") == 5, output
    assert "the output was closed: stopped after a checkpoint; continue from the checkpoint of step" in output
    assert f"--resume '{path}'\n" in output
    assert "status 130" in output
    folder, _ = RunFolder.reopen(path)
    assert step_of(folder.intact_checkpoint()) == rows(path, "step")[-1]["step"]


@pytest.mark.long
def test_ctrl_c_in_the_last_evaluation_says_that_the_training_is_done(tmp_path):
    path = tmp_path / "run"
    config = SMALL.changed(steps=1, eval_tasks=400)
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually((path / "policy").exists)
        os.killpg(running.process.pid, signal.SIGINT)
        code, output = running.finish()
        assert code == 130
        assert running.all_gone()
    assert "the training is done and saved; leaving out its last evaluation" in output
    assert (
        f"all but its last evaluation; to make up for that, continue from the checkpoint of step 1 with: zorplex-rl train --resume {path}"
        in output
    )
    assert "Traceback" not in output
    assert not RunFolder(path).is_finished(1)
    assert final_weights(path)


def wishes(*actions, under_way=True, step=3):
    """(Is a stop requested, is it stopped, what was said) after ``actions``: signals, seconds to
    wait, texts for an output that is closed."""
    said = []

    async def run():
        controller = SimpleNamespace(stop_requested=False, under_way=under_way, step=step, config=SMALL)
        training = asyncio.ensure_future(asyncio.sleep(30))
        wish, output = StopWish(said.append), Output(ClosedStream())
        wish.begin(controller)
        wish.listen(training, output)
        for action in actions:
            if isinstance(action, signal.Signals):
                os.kill(os.getpid(), action)
            elif isinstance(action, str):
                output.write(action)
            await asyncio.sleep(action if isinstance(action, float) else 0.05)
        stopped = training.cancelled()
        training.cancel()
        return controller.stop_requested, stopped

    return (*asyncio.run(run()), said)


class ClosedStream(StringIO):
    """What standard output is when nobody reads it."""

    def write(self, text):
        raise BrokenPipeError


def test_who_has_stopped_is_told_to_resume_only_where_there_is_a_checkpoint(tmp_path):
    folder = RunFolder.create(tmp_path / "a run", SMALL)
    assert _how_to_go_on(folder) == "nothing has been trained, so start again"
    folder.append_metrics({"event": "eval", "step": 0})
    assert _how_to_go_on(folder) == "there is no checkpoint to continue from, so start again with another --out"
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    advice, _, line = _how_to_go_on(folder).partition(" with: ")
    assert advice == "continue from the checkpoint of step 3"
    assert shlex.split(line) == ["zorplex-rl", "train", "--resume", str(folder.path)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_a_checkpoint_and_a_stop(number):
    requested, stopped, said = wishes(number)
    assert requested and not stopped
    assert said == ["stopping after this step; press Ctrl-C again to stop without a checkpoint"]


def test_a_second_signal_at_once_is_the_same_wish_and_a_later_one_means_at_once():
    assert wishes(signal.SIGTERM, signal.SIGTERM)[1] is False
    assert wishes(signal.SIGTERM, SAME_WISH_SECONDS + 0.1, signal.SIGINT)[1] is True


def test_where_there_is_nothing_to_save_a_signal_means_at_once():
    requested, stopped, said = wishes(signal.SIGINT, under_way=False, step=0)
    assert stopped and not requested and said == ["stopping"]
    _, stopped, said = wishes(signal.SIGINT, under_way=False, step=SMALL.steps)
    assert stopped and said == ["the training is done and saved; leaving out its last evaluation"]


def test_a_signal_that_was_ignored_from_the_start_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert wishes(signal.SIGHUP) == (False, False, [])
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_output_that_nobody_reads_asks_for_a_checkpoint_and_a_stop():
    assert wishes("a line", "and another") == (True, False, [])
