"""Hosts on one machine, for tests: own network, processes, name, /dev/shm, /tmp.

    with namespaced_hosts("a", "b") as network:
        worker = network["a"].popen("zorplex-rl", "worker", "--listen", f"tcp://{network['a'].address}:4444")
        network["a"].run("hostname")
        network["a"].processes(), .listening(), .shared_memory()
        network["a"].cut()          nothing is refused, nothing is answered
        network["a"].restore()
        network["b"].kill()         every process on it, at once

Programs and installed packages are those of this machine. Of /tmp a host sees nothing but what is
installed there, so not the folder of a test's run. Linux, root and iproute2 are needed: ``why_not``
says what is missing. All of it lives in namespaces, which end with their processes, and those end
with the process that made them. So even after ``kill -9`` nothing is left.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SWITCH = "ip link add switch type bridge && ip link set switch up"
HOST = (
    "hostname {name} && ip link set lo up && mount -t tmpfs tmpfs /dev/shm && mkdir /dev/shm/tmp && mount -t tmpfs tmpfs /dev/shm/tmp"
    "{kept} && mount --move /dev/shm/tmp /tmp && rmdir /dev/shm/tmp && trap '' CHLD"
)
"""What a host's first process does. Where SIGCHLD is ignored, orphans need no ``wait``."""
KEEP = " && mkdir -p /dev/shm/tmp/{inside} && mount --bind /tmp/{inside} /dev/shm/tmp/{inside}"
"""Where Python or this package is installed in /tmp, a host sees that folder there, too."""
ALL = ("--net", "--mount", "--pid", "--uts", "--ipc")
_numbers = itertools.count()


class Namespace:
    """What processes see as their machine, until ``kill`` or the end of its maker."""

    def __init__(self, setup: str, *spaces: str) -> None:
        self.spaces = spaces
        command = [
            "unshare",
            *spaces,
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            f"{setup} && echo up && exec cat",
        ]
        if "--mount" in spaces:
            command.insert(1, "--mount-proc")
        self._unshare = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != b"up\n":
            raise OSError(
                f"no host could be made: {self._unshare.communicate()[1].decode().strip()}"
            )
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self.first = int(children.read_text().split()[0])

    @property
    def is_up(self) -> bool:
        return self._unshare.poll() is None

    def enter(self, *command: str) -> list[str]:
        """Return the command line that runs ``command`` inside."""
        return ["nsenter", "--target", str(self.first), *self.spaces, "--", *command]

    def ip(self, words: str) -> None:
        """Run ``ip`` inside. Raises OSError if it fails."""
        done = subprocess.run(self.enter("ip", *words.split()), capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {words}: {done.stderr.strip()}")

    def kill(self) -> None:
        """Kill every process inside at once: the kernel kills all others with the first one."""
        if self.is_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
        self._unshare.communicate()


class Host:
    """One host. ``address`` is its IPv4 address."""

    def __init__(self, name: str, address: str, switch: Namespace) -> None:
        self.name = name
        self.address = address
        self.switch = switch
        self.start()

    def start(self) -> None:
        """Boot it: from now on processes can be started on it. Also after ``kill``."""
        kept = "".join(
            KEEP.format(inside=shlex.quote(str(folder))) for folder in _installed_in(Path("/tmp"))
        )
        self.inside = Namespace(HOST.format(name=self.name, kept=kept), *ALL)
        port = f"port{next(_numbers)}"
        self.switch.ip(f"link add {port} type veth peer name eth0 netns {self.inside.first}")
        self.switch.ip(f"link set {port} master switch up")
        self.inside.ip(f"addr add {self.address}/24 dev eth0")
        self.restore()

    def entered(self, *command: str, cwd: Path | str | None = None) -> list[str]:
        """Return the command line that runs ``command`` on this host."""
        return self.inside.enter("env", f"--chdir={cwd or Path.cwd()}", *command)

    def popen(
        self, *command: str, cwd: Path | str | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start ``command`` on this host. ``options`` are those of ``subprocess.Popen``."""
        return subprocess.Popen(self.entered(*command, cwd=cwd), **options)

    def path(self, inside: str) -> Path:
        """Return where this process finds the file ``inside`` of the host, also in /tmp."""
        return Path(f"/proc/{self.inside.first}/root{inside}")

    def listens(self, port: int) -> bool:
        """Return whether a TCP socket of this host listens at ``port``."""
        sockets = Path(f"/proc/{self.inside.first}/net/tcp").read_text().splitlines()
        return any(f":{port:04X} 00000000:0000 0A" in line for line in sockets)

    def cut(self) -> None:
        """Cut its link: nothing is refused, nothing is answered, and what runs on it goes on."""
        self.inside.ip("link set eth0 down")

    def restore(self) -> None:
        """Connect it again."""
        self.inside.ip("link set eth0 up")

    def kill(self) -> None:
        """Kill every process on it at once."""
        self.inside.kill()

    def run(self, *command: str, timeout: float = 60.0, cwd: Path | str | None = None) -> str:
        """Run ``command`` on this host. Returns what it wrote. Raises CalledProcessError if it
        fails."""
        done = subprocess.run(
            self.entered(*command, cwd=cwd),
            timeout=timeout,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def python(self, program: str, timeout: float = 60.0) -> str:
        """Run a Python ``program`` on this host. Returns what it printed."""
        return self.run(sys.executable, "-c", program, timeout=timeout)

    def processes(self) -> list[str]:
        """Return the command lines of all processes on this host, apart from the first one."""
        if not self.inside.is_up:
            return []
        here = os.readlink(f"/proc/{self.inside.first}/ns/pid")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    os.readlink(process / "ns/pid") == here
                    and int(process.name) != self.inside.first
                ):
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    # One that has ended and is about to be reaped has no command line.
                    if line := b" ".join(words).decode().strip():
                        found.append(line)
        return found

    def of_runs(self) -> list[str]:
        """Return the processes that runs have started on this host: not the worker program, nor
        Monarch's loop that waits for a run."""
        return [
            line
            for line in self.processes()
            if "zorplex_rl worker" not in line and "hosts.worker" not in line
        ]

    def shared_memory(self) -> list[str]:
        """Return the names of all files in this host's /dev/shm."""
        return sorted(path.name for path in self.path("/dev/shm").iterdir())

    def listening(self) -> set[str]:
        """Return the addresses (without ports) at which TCP sockets of this host listen."""
        lines = self.run("ss", "-Hltn", cwd="/").splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines}


@contextlib.contextmanager
def namespaced_hosts(*names: str) -> Iterator[dict[str, Host]]:
    """Make hosts with a network between them. Ends them, with all that runs on them."""
    with contextlib.ExitStack() as running:
        switch = Namespace(SWITCH, "--net")
        running.callback(switch.kill)
        hosts = {}
        for index, name in enumerate(names, start=1):
            hosts[name] = Host(name, f"10.77.0.{index}", switch)
            running.callback(hosts[name].kill)
        yield hosts


def _installed_in(folder: Path) -> list[Path]:
    """Return where in ``folder`` Python and packages are installed, none within another."""
    places = {
        Path(place).resolve() for place in (sys.prefix, sys.base_prefix, Path(__file__).parents[1])
    }
    inside = {place for place in places if place.is_relative_to(folder)}
    return sorted(place.relative_to(folder) for place in inside if not inside & set(place.parents))


@functools.cache
def why_not() -> str | None:
    """Return why no hosts can be made here, or None if they can."""
    if not sys.platform.startswith("linux"):
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if missing := [
        tool
        for tool in ("ip", "unshare", "nsenter", "mount", "hostname")
        if shutil.which(tool) is None
    ]:
        return f"making hosts needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    allowed = subprocess.run(["unshare", *ALL, "--fork", "true"], capture_output=True)
    return None if allowed.returncode == 0 else "this container may make no namespaces"


Network = dict[str, Host]
needs_hosts = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
"""Marks a test that makes hosts."""


def wait_for(claim: Any, seconds: float, what: str) -> None:
    """Return as soon as ``claim()`` holds. Fails, saying ``what``, after ``seconds``."""
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
