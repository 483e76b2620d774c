"""Real hosts on one machine: each has its own network, process ids, host name, /dev/shm and /tmp, and can be killed or cut off.

    with namespaced_hosts("a", "b") as network:
        worker = network["a"].popen("zorplex-rl", "worker", "--listen", f"tcp://{network['a'].address}:4444")
        network["a"].cut()          nothing is refused, nothing is answered
        network["a"].restore()
        network["b"].kill()         every process on it, at once

    network.address     this process's own address on the bridge that connects the hosts

The programs and the installed packages are those of this machine; a run folder in /tmp is not seen by any host. Linux, root and iproute2 are
needed: ``why_not`` says what is missing. The hosts of a process that has been killed end with it, and the next use removes what is left of them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

NETNS = Path("/run/netns")
_numbers = itertools.count()
INIT = "hostname {name} && ip link set lo up && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp && echo up && trap '' CHLD && exec cat"
"""The first process of a host. Orphans are its children, and need no ``wait`` where SIGCHLD is ignored. It ends when its input does."""


class Host:
    """One host. ``address`` is its IPv4 address."""

    def __init__(self, name: str, netns: str, address: str) -> None:
        self.name, self.netns, self.address = name, netns, address
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init = 0

    def start(self) -> None:
        """Boot it: from now on processes can be started on it. Also after ``kill``."""
        self.restore()
        self._unshare = subprocess.Popen(
            ["nsenter", f"--net={NETNS / self.netns}", "unshare", "-m", "-p", "-u", "-i", "--fork", "--kill-child",
             "--mount-proc", "sh", "-c", INIT.format(name=self.name)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._unshare.stdout is not None
        assert self._unshare.stdout.readline() == b"up\n", f"host {self.name} did not start"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self._init = int(children.read_text().split()[0])

    @property
    def is_up(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    def entered(self, *command: str, cwd: Path | str | None = None) -> list[str]:
        """Return the command line that runs ``command`` on this host."""
        inside = ["env", f"--chdir={cwd or Path.cwd()}"]
        spaces = ("--net", "--mount", "--pid", "--uts", "--ipc")
        return ["nsenter", "--target", str(self._init), *spaces, "--", *inside, *command]

    def popen(self, *command: str, cwd: Path | str | None = None, **options: Any) -> subprocess.Popen[Any]:
        """Start ``command`` on this host. ``options`` are those of ``subprocess.Popen``."""
        return subprocess.Popen(self.entered(*command, cwd=cwd), **options)

    def run(self, *command: str, timeout: float = 60.0, cwd: Path | str | None = None) -> str:
        """Run ``command`` on this host. Returns what it wrote. Raises CalledProcessError if it fails."""
        done = subprocess.run(
            self.entered(*command, cwd=cwd), timeout=timeout, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def python(self, program: str, timeout: float = 60.0) -> str:
        """Run a Python ``program`` on this host. Returns what it printed."""
        return self.run(sys.executable, "-c", program, timeout=timeout)

    def processes(self) -> list[str]:
        """Return the command lines of all processes on this host, apart from the first one."""
        if not self.is_up:
            return []
        here = os.readlink(f"/proc/{self._init}/ns/pid")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns/pid") == here and int(process.name) != self._init:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    # One that has ended and is about to be reaped has no command line.
                    if line := b" ".join(words).decode().strip():
                        found.append(line)
        return found

    def shared_memory(self) -> list[str]:
        """Return the names of all files in this host's /dev/shm."""
        return sorted(path.name for path in Path(f"/proc/{self._init}/root/dev/shm").iterdir())

    def path(self, inside: str) -> Path:
        """Return where this process finds the file ``inside`` of the host, also one in its own /tmp."""
        return Path(f"/proc/{self._init}/root{inside}")

    def listening(self) -> set[str]:
        """Return the addresses (without ports) at which TCP sockets of this host listen."""
        lines = self.run("ss", "-Hltn", cwd="/").splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines}

    def cut(self) -> None:
        """Cut its link: nothing is refused, nothing is answered, and what runs on it goes on."""
        _ip("-n", self.netns, "link", "set", "eth0", "down")

    def restore(self) -> None:
        """Connect it again."""
        _ip("-n", self.netns, "link", "set", "eth0", "up")

    def kill(self) -> None:
        """Kill every process on it at once. The kernel kills all others with the first one."""
        if self._unshare is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        for pipe in (self._unshare.stdin, self._unshare.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._unshare.wait(timeout=20)


class Network:
    """Hosts by their names, on one bridge. ``address`` is this process's own address there."""

    def __init__(self, address: str, hosts: dict[str, Host]) -> None:
        self.address, self.hosts = address, hosts

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]


@functools.cache
def why_not() -> str | None:
    """Return why no hosts can be made here, or None if they can."""
    if not sys.platform.startswith("linux"):
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if missing := [tool for tool in ("ip", "unshare", "nsenter", "mount", "hostname") if shutil.which(tool) is None]:
        return f"making hosts needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    allowed = subprocess.run(["unshare", "-n", "-m", "-p", "-u", "-i", "--fork", "true"], capture_output=True)
    return None if allowed.returncode == 0 else "this container may make no namespaces"


needs_hosts = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
"""Marks a test that makes hosts."""


@contextlib.contextmanager
def namespaced_hosts(*names: str) -> Iterator[Network]:
    """Make hosts with these names and a network between them. Removes them all, and whatever runs on them, at the end."""
    _sweep()
    prefix = f"zx{os.getpid()}x{next(_numbers)}"
    bridge, subnet = f"{prefix}b", _free_subnet()
    hosts = {name: Host(name, f"{prefix}-{name}", f"{subnet}.{index}") for index, name in enumerate(names, start=2)}
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for index, host in enumerate(hosts.values()):
            outside = f"{prefix}v{index}"
            _ip("netns", "add", host.netns)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host.netns)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", host.netns, "addr", "add", f"{host.address}/24", "dev", "eth0")
            host.start()
        yield Network(f"{subnet}.1", hosts)
    finally:
        for host in hosts.values():
            host.kill()
        _remove(prefix)


def wait_for(claim: Any, seconds: float, what: str) -> None:
    """Return as soon as ``claim()`` holds. Fails, saying ``what``, after ``seconds``."""
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


def _ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def _free_subnet() -> str:
    taken = _ip("-4", "addr")
    numbers: Sequence[int] = random.SystemRandom().sample(range(1, 255), 254)
    return next(subnet for number in numbers if f" {(subnet := f'10.77.{number}')}." not in taken)


def _remove(prefix: str) -> None:
    """Remove the network of ``prefix``, and kill what is left on it."""
    for netns in sorted(NETNS.glob(f"{prefix}-*")):
        for pid in _ip("netns", "pids", netns.name, check=False).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", netns.name, check=False)
    _ip("link", "del", f"{prefix}b", check=False)


def _sweep() -> None:
    """Remove the networks of processes that are gone."""
    bridges = [line.split(":")[1].strip() for line in _ip("-o", "link", "show", "type", "bridge").splitlines()]
    prefixes = {name.removesuffix("b") for name in bridges if name.startswith("zx") and name.endswith("b")}
    prefixes |= {path.name.partition("-")[0] for path in NETNS.glob("zx*-*")}
    for prefix in prefixes:
        owner = prefix.removeprefix("zx").partition("x")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(prefix)
