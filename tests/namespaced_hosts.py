"""The hosts of ``zorplex_rl.course.namespaces``, and what a test wants to know of them.

    with namespaced_hosts("a", "b") as network:
        network["a"].run("hostname")
        network["a"].processes(), .listening(), .shared_memory()

Of /tmp a host sees nothing but what is installed there, so not the folder of a test's run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from zorplex_rl.course import namespaces
from zorplex_rl.course.namespaces import why_not as why_not


class Host(namespaces.NamespacedHost):
    """One host."""

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


Network = dict[str, Host]
needs_hosts = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
"""Marks a test that makes hosts."""


def namespaced_hosts(*names: str) -> AbstractContextManager[Network]:
    """Make hosts with these names and a network between them. Removes them all, and whatever runs
    on them, at the end."""
    return namespaces.namespaced_hosts(*names, kind=Host)


def wait_for(claim: Any, seconds: float, what: str) -> None:
    """Return as soon as ``claim()`` holds. Fails, saying ``what``, after ``seconds``."""
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
