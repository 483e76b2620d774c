"""The keeper: one process on each host. It ends its host when the lease runs out (``lease.py``)."""

import asyncio
import contextlib
import functools
import hashlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from zorplex_rl import __version__
from zorplex_rl.services import processes
from zorplex_rl.services.lease import Lease, clock
from zorplex_rl.services.lifeline import Lifeline, serve
from zorplex_rl.services.own_folder import own_folder
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, uncounted_endpoint
from zorplex_rl.services.tls import server_context
from zorplex_rl.services.worker import HOST_ADDRESS, WORKER, claim_host

CHUNK_BYTES = 4 << 20
UNCLAIMED_SECONDS = 60.0
"""Longer than a controller waits for the slowest of its hosts before it claims them."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Describe a host: its name, its worker, its package and its number of CUDA devices."""

    hostname: str
    worker: str
    """The worker's folder, which has a name of its own, or nothing without a worker program."""
    version: str
    digest: str
    cuda_count: int


class HostAgent(Actor):
    """End the host when its lease runs out, and look after its processes for the controller."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lease = seconds, Lease(max(seconds, UNCLAIMED_SECONDS), clock())
        self._is_ours = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while clock() < self._lease.runs_out:
            time.sleep(0.25)
        if self._is_ours:
            end_host()
        # The host may be another run's.
        os._exit(1)

    def _stay(self, worker: socket.socket) -> None:
        """End the host when the worker program is gone, which would otherwise have ended it."""
        with contextlib.suppress(OSError):
            worker.recv(1)
        end_host()

    @uncounted_endpoint
    async def info(self) -> HostInfo:
        """Return what there is on this host."""
        gpus = await asyncio.to_thread(_cuda_count)
        return HostInfo(socket.gethostname(), os.environ.get(WORKER, ""), __version__, source_digest(), gpus)

    @uncounted_endpoint
    async def claim(self, holder: str) -> str:
        """Make ``holder``'s run the owner of this host. Returns who is, if another run."""
        connection, taken = await asyncio.to_thread(claim_host, holder)
        if not taken:
            self._is_ours, self._lease = True, Lease(self._seconds, clock())
            if connection:
                threading.Thread(target=self._stay, args=(connection,), daemon=True).start()
        return taken

    @uncounted_endpoint
    async def renew(self, token: float) -> tuple[float, float]:
        """Extend the lease up to ``token``. Returns the next token, and the host's clock."""
        self._lease.renew(min(token, clock()))
        return clock(), time.monotonic()

    @uncounted_endpoint
    async def lifeline(self, address: str) -> Lifeline:
        """Listen for the lifeline where the worker does, or else at ``address``. Raises OSError."""
        return await serve(os.environ.get(HOST_ADDRESS) or address, server_context())

    @uncounted_endpoint
    async def kill(self, pids: Collection[int]) -> bool:
        """Kill processes of this host. Returns True."""
        processes.kill(pids)
        return True

    @concurrent_endpoint
    async def until_one_ends(self, pids: Collection[int]) -> str:
        """Wait until one of the processes ``pids`` of this host has ended. Returns how."""
        return await processes.until_one_ends(pids)

    @uncounted_endpoint
    async def make_folder(self) -> str:
        """Return a new, empty folder of this host."""
        return tempfile.mkdtemp(dir=_folder())

    @uncounted_endpoint
    async def list_folder(self, folder: str) -> list[tuple[str, int]]:
        """Return all files in ``folder`` and below: their names and their sizes in bytes."""
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]

    @uncounted_endpoint
    async def read(self, folder: str, name: str, offset: int) -> bytes:
        """Return the next bytes of a file, at most ``CHUNK_BYTES``."""
        return await asyncio.to_thread(read_part, Path(folder, name), offset)

    @uncounted_endpoint
    async def write(self, folder: str, name: str, offset: int, content: bytes) -> None:
        """Write a part of a file, which is made by its first part."""
        await asyncio.to_thread(write_part, Path(folder, name), offset, content)

    @uncounted_endpoint
    async def remove_folder(self, folder: str) -> None:
        """Remove what ``make_folder`` has made."""
        await asyncio.to_thread(shutil.rmtree, folder, True)

    @uncounted_endpoint
    async def processor_seconds(self, pids: Collection[int]) -> float:
        """Return the processor seconds that processes of this host have used."""
        return processes.processor_seconds(pids)


@functools.cache
def source_digest() -> str:
    """Return eight digits of the package's programs: a version number stays while someone works."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def read_part(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def write_part(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


@functools.cache
def _folder() -> Path:
    return own_folder("host-")


def end_host() -> None:
    """Kill the worker loop that started this process, all its other processes, and this one."""
    processes.kill_session(os.getsid(0))
    os._exit(1)


def _cuda_count() -> int:
    if not Path("/dev/nvidiactl").exists():
        return 0
    import torch

    return torch.cuda.device_count()
