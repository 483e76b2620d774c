"""Who can reach the sockets of a run: this user, and as few others as Monarch allows; and what is left of them."""

from __future__ import annotations

import ast
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

from zorplex_rl.services import own_folder
from zorplex_rl.services.replica import spawn
from zorplex_rl.services.runtime import Actor, endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LISTENING, LISTENING_TCP = "01", "0A"
SOMEBODY_ELSE = 65534
WRITTEN_LATER = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ZORPLEX_SECRET")
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
    return {line[7] for line in table("unix") if line[6] in inodes and line[5] == LISTENING and len(line) > 7}


def tcp_addresses(pid):
    """Where ``pid`` listens for TCP, in the kernel's digits."""
    inodes = sockets_of(pid)
    return {line[1] for end in ("tcp", "tcp6") for line in table(end) if line[9] in inodes and line[3] == LISTENING_TCP}


def somebody_else_connects_to(name):
    """What another user is told who tries."""
    address = "\0" + name[1:] if name.startswith("@") else name
    program = f"import os, socket; os.setgroups([]); os.setgid({SOMEBODY_ELSE}); os.setuid({SOMEBODY_ELSE})\n"
    program += f"socket.socket(socket.AF_UNIX).connect({address!r})"
    theirs = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    return "connected" if theirs.returncode == 0 else theirs.stderr.splitlines()[-1]


def tried_sockets():
    """By the name of each socket of this process and of a replica, what somebody else is told; and
    those of this process."""

    async def run():
        replica = await spawn("echo", Echo)
        try:
            own = listening_sockets(os.getpid())
            names = own | listening_sockets(await replica.actor.who.call_one())
            return {name: somebody_else_connects_to(name) for name in names} if os.geteuid() == 0 else {}, own
        finally:
            await replica.stop()

    return asyncio.run(run())


def test_another_user_is_refused_by_every_socket_but_what_readme_warns_of():
    answers, own = tried_sockets()
    (host,) = (Path(name) for name in own if not name.startswith("@"))
    folder = host.parent.stat()
    assert folder.st_uid == os.getuid() and stat.S_IMODE(folder.st_mode) == 0o700
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    paths = [name for name in answers if not name.startswith("@")]
    assert len(paths) >= 2
    assert all("PermissionError" in answers[path] for path in paths)
    assert "connected" in answers.values(), "then README need not warn any more"
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "On a shared machine" in readme


def test_a_run_on_this_machine_has_one_abstract_socket_one_more_for_each_process_that_starts_and_no_port(tmp_path):
    """README, "On a shared machine", says so. Whatever is more is another door for the other users
    of the machine."""
    config = SMALL.changed(max_lag=1)
    most_at_start, in_mid_run = 0, set()
    with command("train", *as_flags(config), "--out", str(tmp_path / "run")) as run:
        while run.process.poll() is None:
            is_trained_on = bool(rows(tmp_path / "run", "step")) and not rows(tmp_path / "run", "end")
            assert not set().union(*map(tcp_addresses, run.members()))
            abstract = {
                pid: {name for name in listening_sockets(pid) if name.startswith("@") and not name.startswith(OF_CUDA)}
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


def test_what_monarch_leaves_of_a_killed_process_is_swept_with_its_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("short")
    monkeypatch.setenv("TMPDIR", str(folder))
    program = "from zorplex_rl.services.runtime import start_monarch; start_monarch(); print(); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert [path.name[: len(own_folder.PREFIX)] for path in folder.iterdir()] == [own_folder.PREFIX]
    (left,) = folder.iterdir()
    os.utime(left, (0, 0))
    own_folder.sweep()
    assert not left.exists()


class Writer(Actor):
    """Writes names into the environment of its process, again and again."""

    @endpoint
    def write(self, names: tuple[str, ...], seconds: float) -> int:
        assert set(names) <= set(os.environ)
        until, times = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            for name in names:
                os.environ[name] = "x" * (times % 100)
            times += 1
        return times


def test_a_process_in_which_monarch_runs_survives_what_is_written_into_its_environment():
    """With as many *new* names, set and removed, it dies of signal 11 within seconds."""

    async def scenario():
        replica = await spawn("writer", Writer)
        try:
            assert await replica.actor.write.call_one(WRITTEN_LATER, 1.0) > 0
        finally:
            await replica.stop()

    asyncio.run(scenario())


def test_no_function_of_a_process_with_monarch_writes_a_new_name_into_the_environment():
    """torchrun's way, ``setup_torch_elastic_env``, writes eleven. A rank of notebook 07b once ended by signal 11 in it."""
    allowed = {
        *("SECRET", "'GLOO_SOCKET_IFNAME'", "'NCCL_SOCKET_IFNAME'"),  # there from the start
        *("'PATH'", "'TMPDIR'"),  # a usual name; set before Monarch's client starts
    }
    package = Path(own_folder.__file__).parents[1]
    found = set()
    for path in (p for room in ("services", "training", "course") for p in (package / room).rglob("*.py")):
        text = path.read_text()
        assert "setup_torch_elastic_env" not in text, path
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                    where, name = node.value, node.slice
                elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                    "setdefault",
                    "update",
                    "putenv",
                ):
                    where, name = node.func.value, node.args[0]
                else:
                    continue
                if ast.unparse(where) in ("os.environ", "environ", "os"):
                    found.add(ast.unparse(name))
    assert found <= allowed and "SECRET" in found
