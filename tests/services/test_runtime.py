"""Who can reach the sockets of a run: this user, and as few others as Monarch allows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from echo import Echo
from runs import SMALL, as_flags, command, rows

from zorplex_rl.services.spawn import spawn

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
LISTENING, LISTENING_TCP = "01", "0A"
SOMEBODY_ELSE = 65534
OF_CUDA = "@cuda-uvmfd-"
"""Where there is a GPU, NVIDIA's driver opens a socket in each process that uses it."""


def sockets_of(pid):
    """The numbers of all sockets that process ``pid`` holds."""
    inodes = set()
    # A process may end, and a descriptor be closed, while it is looked at.
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
    return inodes


def table(protocol):
    return [line.split() for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]]


def listening_sockets(pid):
    """The names of the Unix sockets on which process ``pid`` listens; those in the abstract
    namespace begin with @."""
    inodes = sockets_of(pid)
    return {
        line[7]
        for line in table("unix")
        if line[6] in inodes and line[5] == LISTENING and len(line) > 7
    }


def tcp_addresses(pid):
    """Where ``pid`` listens for TCP, in the kernel's digits."""
    inodes = sockets_of(pid)
    return {
        line[1]
        for end in ("tcp", "tcp6")
        for line in table(end)
        if line[9] in inodes and line[3] == LISTENING_TCP
    }


def somebody_else_connects_to(name):
    """What another user is told who tries."""
    address = "\0" + name[1:] if name.startswith("@") else name
    program = f"import os, socket; os.setgroups([]); os.setgid({SOMEBODY_ELSE}); os.setuid({SOMEBODY_ELSE})\n"
    program += f"socket.socket(socket.AF_UNIX).connect({address!r})"
    theirs = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
    )
    return "connected" if theirs.returncode == 0 else theirs.stderr.splitlines()[-1]


def tried_sockets():
    """By the name of each socket of this process and of a replica, what somebody else is told; and
    those of this process."""

    async def run():
        replica = await spawn("echo", Echo)
        try:
            own = listening_sockets(os.getpid())
            names = own | listening_sockets(await replica.actor.who.call_one())
            return {
                name: somebody_else_connects_to(name) for name in names
            } if os.geteuid() == 0 else {}, own
        finally:
            await replica.stop()

    return asyncio.run(run())


def test_another_user_is_refused_by_every_socket_that_is_a_file():
    answers, own = tried_sockets()
    (host,) = (Path(name) for name in own if not name.startswith("@"))
    folder = host.parent.stat()
    assert folder.st_uid == os.getuid() and stat.S_IMODE(folder.st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    paths = [name for name in answers if not name.startswith("@")]
    assert len(paths) >= 2
    assert all("PermissionError" in answers[path] for path in paths)


@pytest.mark.long
def test_a_run_on_this_machine_has_one_abstract_socket_one_more_for_each_process_that_starts_and_no_port(
    tmp_path,
):
    """docs/RUNS.md, "On a shared machine", says so. Whatever is more is another door for the other users
    of the machine."""
    config = SMALL.changed(max_lag=1, steps=12)
    most_at_start, in_mid_run = 0, set()
    with command("train", *as_flags(config), "--out", str(tmp_path / "run")) as run:
        while run.process.poll() is None:
            is_trained_on = bool(rows(tmp_path / "run", "step")) and not rows(
                tmp_path / "run", "end"
            )
            assert not set().union(*map(tcp_addresses, run.members()))
            abstract = {
                pid: {
                    name
                    for name in listening_sockets(pid)
                    if name.startswith("@") and not name.startswith(OF_CUDA)
                }
                for pid in run.members()
            }
            # Between its fork and its exec a child holds the sockets of its parent: the same ones,
            # by the same names.
            assert set().union(*abstract.values()) <= abstract.get(run.process.pid, set())
            count = len(set().union(*abstract.values()))
            if is_trained_on:
                in_mid_run.add(count)
            most_at_start = max(most_at_start, count)
            # Looking takes a whole core, which the run needs.
            time.sleep(0.2)
        assert run.process.returncode == 0, run.finish()[1]
    # At its end the run closes the socket. Its processes are six.
    assert in_mid_run - {0} == {1}
    assert 1 <= most_at_start <= 1 + 6
