"""The lease of a host, and its keeper: one process on each host, which ends the host with its lease.

    controller   Host ── renew(token), once a second ──►  HostKeeper
                  ▲                                           │
                  └───────────── a new token ─────────────────┘

A lease keeps two machines from doing the same work. A token is a time of the keeper's clock, which
the controller sends back. ``LEASE_SECONDS`` after the newest token that came back, the keeper ends
every process of its host. So a host ends if it is cut off, or if its controller has died. The
controller knows the reverse: if it last heard of a host at time *t*, that host has ended by *t +
LEASE_SECONDS*, however late the controller's own last messages arrive. The trainer must not exist
twice, so it is started elsewhere only then. Everything else may start at once: late answers of a lost
replica are dropped.

The keeper holds a lock on its host as long as it lives. It keeps a second run out, and the first
run's processes wait for it: when they get it, they end.

>>> lease = Lease(now=100.0)
>>> lease.renew(token=101.0), lease.runs_out
(None, 111.0)
>>> lease.renew(token=100.5), lease.runs_out  # A late message changes nothing.
(None, 111.0)
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from zorplex_rl import __version__
from zorplex_rl.devices import count_gpus
from zorplex_rl.services.machine import THIS_MACHINE
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, uncounted_endpoint

LEASE_SECONDS = 10.0
CHUNK_BYTES = 4 << 20


class Lease:
    """Expire ``LEASE_SECONDS`` after the newest token returned."""

    def __init__(self, now: float) -> None:
        self._newest = now

    def renew(self, token: float) -> None:
        self._newest = max(self._newest, token)

    @property
    def runs_out(self) -> float:
        return self._newest + LEASE_SECONDS


def clock() -> float:
    """Return seconds of a clock that goes on while the machine is suspended, if there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def open_lock() -> int:
    """Open the file that the keeper locks. All processes of one worker loop open the same."""
    return os.open(Path(tempfile.gettempdir(), f"zorplex-{os.getppid()}.lock"), os.O_CREAT)


def end_with_keeper() -> None:
    """End this process as soon as its host's keeper has ended, for whatever reason."""

    def watch() -> None:
        fcntl.flock(open_lock(), fcntl.LOCK_SH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class HostKeeper(Actor):
    """End the host when its lease runs out, and handle its processes and files for the controller."""

    def __init__(self) -> None:
        self._lease = Lease(clock())
        self._lock = open_lock()
        self._serves = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while clock() < self._lease.runs_out:
            time.sleep(0.25)
        if self._serves:
            # This is Monarch's worker loop. All that it has started ends with it.
            os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)

    @uncounted_endpoint
    async def info(self) -> tuple[str, int]:
        """Return the package's version on this host, and its number of GPUs."""
        return __version__, await asyncio.to_thread(count_gpus)

    @uncounted_endpoint
    async def serve(self) -> bool:
        """Reserve the host for this run. Returns False if it serves another."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._serves = True
        return self._serves

    @uncounted_endpoint
    async def renew(self, token: float) -> float:
        """Renew the lease with ``token``. Returns the next token."""
        self._lease.renew(min(token, clock()))
        return clock()

    @concurrent_endpoint
    async def until_one_ends(self, pids: Sequence[int]) -> str:
        """Wait until one of ``pids`` of this host has ended. Returns a sentence for people."""
        return await THIS_MACHINE.until_one_ends(pids)

    @uncounted_endpoint
    async def end(self, pids: Sequence[int]) -> None:
        """Kill processes of this host."""
        await THIS_MACHINE.end(pids)

    @uncounted_endpoint
    async def make_folder(self) -> str:
        """Return a new, empty folder of this host."""
        return tempfile.mkdtemp(prefix="zorplex-")

    @uncounted_endpoint
    async def list_parts(self, folder: str) -> list[tuple[str, int]]:
        """Return ``parts_in`` of a folder of this host."""
        return parts_in(Path(folder))

    @uncounted_endpoint
    async def read(self, path: str, offset: int) -> bytes:
        """Return the next bytes of a file, at most ``CHUNK_BYTES``."""
        return await asyncio.to_thread(read_part, Path(path), offset)

    @uncounted_endpoint
    async def write(self, path: str, offset: int, content: bytes) -> None:
        """Write a part of a file. The first part creates it."""
        await asyncio.to_thread(write_part, Path(path), offset, content)

    @uncounted_endpoint
    async def remove_folder(self, folder: str) -> None:
        """Remove what ``make_folder`` has made."""
        await asyncio.to_thread(shutil.rmtree, folder, True)


def parts_in(folder: Path) -> list[tuple[str, int]]:
    """Return (name, offset) of each part of the files in ``folder`` and below. An empty file is one part."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            size = max(path.stat().st_size, 1)
            parts += [(name, offset) for offset in range(0, size, CHUNK_BYTES)]
    return parts


def read_part(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def write_part(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)
