"""Whose a host is: one run's at a time, and the next one's as soon as that is over, however it
ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaced_hosts import wait_for

PROGRAM = (sys.executable, "-m", "zorplex_rl")
PATIENT = dict.fromkeys(("HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE", "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE"), "1h")
"""For all processes: what Monarch takes for dead is not what is tested here."""
CLIENT = Path(__file__).parents[2] / "host_client.py"


class Worker:
    """A running ``zorplex-rl worker`` at a free port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        command = [*PROGRAM, "worker", "--listen", self.address]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | PATIENT
        )

    def next_line(self) -> str:
        return self.process.stdout.readline().strip()

    def children(self, depth: int) -> set[int]:
        """The processes that it has started, and those that they have, and so on, ``depth``
        times."""
        found = {self.process.pid}
        for _ in range(depth):
            found = {child for pid in found for child in children_of(pid)}
        return found


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def runs(pid: int) -> bool:
    """Return whether a process has not ended, whether or not its parent has asked for its exit
    code."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all tests: whatever a run has met, the worker serves the next one."""
    with running_worker() as running:
        yield running


@contextmanager
def running_worker() -> Iterator[Worker]:
    running = Worker()
    assert running.next_line() == f"zorplex-rl: waiting for a run at {running.address}; Ctrl-C ends this"
    try:
        yield running
    finally:
        started = running.children(1) | running.children(2)
        running.process.terminate()
        code = running.process.wait(30)
        running.process.stdout.close()
    assert code == 0 and not any(map(runs, started))


@contextmanager
def client(*addresses: str, seconds: float = 60.0, leaves: bool = False) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, CLIENT, *["--leaves"] * leaves, str(seconds), *addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | PATIENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> str:
    """Have a client end in good order. Returns what it says of its hosts."""
    last, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    return last.strip()


def test_who_comes_second_is_told_whose_the_host_is_and_the_owner_does_not_notice(worker):
    with client(worker.address) as owner:
        assert said(owner) == "open"
        with client(worker.address) as second:
            refusal = said(second)
            assert re.search(rf"is in use by \S+@\S+ \(process {owner.pid}\), since [\d:]+ on .*; wait until", refusal)
            assert second.wait(60) == 0
        assert leave(owner) == "all alive"


def test_of_two_that_come_at_the_same_moment_one_gets_the_host(worker):
    with client(worker.address) as one, client(worker.address) as other:
        answers = {said(one): one, said(other): other}
        (refusal,) = answers.keys() - {"open"}
        assert "is in use by" in refusal
        assert leave(answers["open"]) == "all alive"


def test_of_two_that_want_the_same_two_hosts_at_the_same_moment_one_gets_both_whatever_they_call_them(worker):
    with running_worker() as second:
        addresses = (worker.address, second.address)
        for _ in range(2):
            with (
                client(addresses[0], by_name(addresses[1])) as one,
                client(by_name(addresses[0]), addresses[1]) as other,
            ):
                answers = {said(one): one, said(other): other}
                (refusal,) = answers.keys() - {"open"}
                assert "is in use by" in refusal
                assert leave(answers["open"]) == "all alive"


def test_a_worker_that_is_named_twice_is_no_two_hosts(worker):
    with client(worker.address, by_name(worker.address)) as run:
        assert said(run).endswith("are the same worker; name it once")
        assert run.wait(60) == 0


def by_name(address: str) -> str:
    return address.replace("127.0.0.1", "localhost")


def test_a_worker_serves_one_run_after_the_other_whatever_was_killed_and_none_meets_a_process_of_the_last(worker):
    before: set[int] = set()
    for killed in ("nothing", "keeper", "controller", "Monarch's worker loop", "nothing"):
        with client(worker.address) as run:
            assert said(run) == "open", f"after {killed} was killed"
            (loop,), (keeper,) = worker.children(1), worker.children(2)
            assert not {loop, keeper} & before
            before |= {loop, keeper}
            if killed == "nothing":
                assert leave(run) == "all alive"
            else:
                # Whose parent ends becomes the program's own child for as long as it lives.
                old = {loop, *worker.children(2), *worker.children(3)}
                os.kill({"keeper": keeper, "controller": run.pid, "Monarch's worker loop": loop}[killed], 9)
                wait_for(lambda old=old: worker.children(1) - old, 60, f"another worker loop than that of the {killed}")
                assert not runs(keeper)


def test_what_a_run_has_left_on_a_host_ends_with_the_run_whatever_it_has_done_to_hide(worker):
    with client(worker.address, leaves=True) as run:
        assert said(run) == "open"
        hidden = int(said(run))
        assert runs(hidden)
        assert leave(run) == "all alive"
    wait_for(lambda: not runs(hidden), 30, "the end of what was left behind")


def test_a_host_that_does_not_answer_leaves_the_other_one_ready_and_is_named_in_time(worker):
    with client(worker.address, "tcp://127.0.0.1:9", seconds=8) as run:
        assert said(run).startswith("host 127.0.0.1:9 does not answer; make sure that `zorplex-rl worker` runs there")
        assert run.wait(60) == 0
    with client(worker.address) as run:
        assert said(run) == "open"
        assert leave(run) == "all alive"


def test_hosts_of_which_a_process_stands_still_for_6_seconds_lose_nothing(worker):
    """On one the keeper, on one Monarch's worker loop, on one the worker program."""
    with running_worker() as second, running_worker() as third:
        hosts = (worker, second, third)
        with client(*(host.address for host in hosts)) as run:
            assert said(run) == "open"
            (keeper,), (loop,), program = worker.children(2), second.children(1), third.process.pid
            for pid in (keeper, loop, program):
                os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(6.0)
            finally:
                for pid in (keeper, loop, program):
                    os.kill(pid, signal.SIGCONT)
            # If one were given up, that would have happened by now: its lease is 10 s.
            time.sleep(5.0)
            assert leave(run) == "all alive"
