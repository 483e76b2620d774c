"""``train --telemetry`` and ``zorplex-rl status``: what can be seen of a run that goes on, and who
else can see it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import SMALL, Command, as_flags, command, eventually, rows

from zorplex_rl.run.folder import RunFolder

LONG = SMALL.changed(steps=500, checkpoint_every=1, max_lag=1)
START_SECONDS = 500
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who listens is read from /proc")


def status(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "zorplex_rl", "status", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == "" or done.returncode == 2, done.stderr
    return done.returncode, done.stdout + done.stderr


def listeners(running: Command) -> list[str]:
    """The TCP addresses, in the kernel's hexadecimal digits, at which a process of ``running``
    listens."""
    sockets = set()
    for pid in running.members():
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = "0A"
    return [line[1] for line in lines if line[3] == listening and f"socket:[{line[9]}]" in sockets]


def telemetry_files(running: Command) -> set[Path]:
    """The files and sockets in /tmp that belong to Monarch's collecting process alone: its lock
    names them."""
    found = set()
    for pid in running.members():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "monarch._src.job._job_sidecar_worker" in words:
            found |= {Path(word) for word in words if word.startswith("/tmp/") and word != sys.executable}
            opened = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").glob("*")}
            (lock,) = (Path(name) for name in opened if name.endswith(".lock"))
            found |= {lock, lock.with_suffix(".log"), Path("/tmp", lock.stem.replace("_job_sidecar", ""))}
    return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with telemetry that has taken a step, and goes on for longer than the tests need."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    # As in every program that has imported the package's services.
    assert os.environ.setdefault("MONARCH_FILE_LOG", "error") == "error"
    with command("train", *as_flags(LONG.changed(telemetry=True)), "--out", str(folder)) as running:
        assert eventually(lambda: len(rows(folder, "step")) >= 2, START_SECONDS), running.process.poll()
        yield running, folder


@on_linux
def test_only_one_port_is_open_and_only_on_the_loopback_interface(watched):
    running, folder = watched
    (address,) = listeners(running)
    host, port = address.split(":")
    assert host == "0100007F"
    assert f"127.0.0.1:{int(port, 16)}" in (folder / "telemetry.json").read_text()


def test_status_shows_replicas_endpoints_and_messages_of_the_run_and_none_of_its_instruments(watched):
    assert eventually(lambda: status(watched[1])[0] == 0, START_SECONDS), status(watched[1])
    code, said = status(watched[1])
    assert code == 0, said
    words = [line.split() for line in said.splitlines()]
    states = {line[0]: line[1] for line in words if len(line) > 1}
    assert {states[name] for name in ("generator_0", "reward_0")} == {"ready"}
    assert {"dataset_0", "replay_0", "advantage_0"} <= states.keys()
    calls = {line[0]: int(line[1]) for line in words if len(line) == 5 and "." in line[0] and line[1].isdecimal()}
    assert calls["generator_0.generate"] >= 1
    assert not [name for name in calls if "probe" in name or name.startswith("telemetry")]
    means = [float(line[3]) for line in words if line and line[0] in calls]
    assert means == sorted(means, reverse=True)
    assert " messages received within " in said


def test_a_trace_names_the_endpoints_that_were_called(watched, tmp_path):
    numbers = itertools.count()

    def record() -> Path:
        file = tmp_path / f"{next(numbers)}.pftrace"
        code, said = status(watched[1], "--trace", file, "--seconds", 1)
        assert code == 0 and str(file) in said, said
        return file

    # On a busy machine a second may pass in which no call ends.
    assert eventually(lambda: b"generate" in record().read_bytes(), START_SECONDS)
    file = tmp_path / "0.pftrace"
    assert status(watched[1], "--trace", file)[0] == 2


def test_a_generator_that_was_killed_is_seen_to_be_replaced(watched):
    _, folder = watched
    pid = next(int(line.split()[2]) for line in status(folder)[1].splitlines() if "generator_0 " in line)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: rows(folder, "restart"))
    code, said = status(folder)
    assert code == 0 and "generator_0 died" in said


@on_linux
def test_a_killed_run_is_called_killed_and_leaves_neither_a_process_nor_a_socket(watched):
    running, folder = watched
    files = telemetry_files(running)
    assert len(files) == 4 and all(file.exists() for file in files)
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.all_gone()
    assert eventually(lambda: not any(file.exists() for file in files), 20), files
    code, said = status(folder)
    assert code == 1 and "was killed after" in said and f"--resume {folder}" in said


@pytest.mark.long
@on_linux
def test_without_the_flag_nothing_listens_and_status_says_how_to_look_into_a_run(tmp_path):
    folder = tmp_path / "run"
    with command("train", *as_flags(LONG), "--out", str(folder)) as running:
        assert eventually(lambda: len(rows(folder, "step")) >= 2, START_SECONDS), running.process.poll()
        assert listeners(running) == []
        code, said = status(folder)
        assert code == 1 and "only a run begun with --telemetry can be looked into" in said
        running.process.send_signal(signal.SIGTERM)
        running.finish()
    code, said = status(folder)
    assert code == 1 and "is over: it was stopped after" in said and f"--resume {folder}" in said


def test_a_finished_run_is_said_to_be_over(sync_run: RunFolder):
    assert status(sync_run.path) == (1, f"the run in {sync_run.path} is over: it has finished, after 4 steps\n")


def test_a_folder_without_a_run_is_refused(tmp_path):
    code, said = status(tmp_path)
    assert code == 2 and "is not a run folder" in said
