"""The program ``zorplex-rl worker``: lend this machine to one run after the other.

    this program ── starts ──► Monarch's worker loop ── starts, as a controller asks ──► its keeper, then replicas
         ▲                                                                                  │
         └────────────── a Unix socket in the worker's folder: whose host this is ◄─────────┘

The first keeper that connects makes its run the owner of the host, and stays connected. Another one
is told who the owner is, and its run leaves again. When the owner's connection ends (by its end,
its lease or a kill), this program kills all that was started here and starts Monarch afresh. So a
run finds a host on which nothing else runs, and nobody ends the run of another.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from zorplex_rl.errors import HostError
from zorplex_rl.services import orphans
from zorplex_rl.services.own_folder import own_folder
from zorplex_rl.services.processes import kill_session
from zorplex_rl.services.tls import TLS

HOST_ADDRESS = "ZORPLEX_HOST_ADDRESS"
"""Environment variable of a host's processes: the name or address at which its worker listens."""
WORKER = "ZORPLEX_WORKER"
"""Environment variable of all processes of a host that this program lends: the worker's folder."""
SOCKET, FAILURE = "owner", "failure"
"""Files in the worker's folder."""
PAUSE_SECONDS = 1.0
"""Before Monarch is started again where it has ended although nobody used it."""


def serve(address: str) -> None:
    """Be a host at ``address`` for one run after another, until a signal. Raises HostError."""

    async def run() -> None:
        worker = Worker(address)
        async with worker.listening():
            while True:
                await worker.serve_a_run()

    asyncio.run(run())


class Worker:
    """Run Monarch's worker at ``address`` for a run, and tell its keepers whose the host is."""

    def __init__(self, address: str) -> None:
        self.address, self.folder = address, own_folder("worker-")
        self._owner, self._owned, self._released = "", asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer keepers. A signal that asks this process to end leaves the block."""
        running = asyncio.current_task()
        assert running
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            async with await asyncio.start_unix_server(self._admit, self.folder / SOCKET):
                yield

    async def serve_a_run(self, most_seconds: float | None = None) -> None:
        """Start Monarch, and end all it has started when its owner has gone, or it has ended.
        Returns also when nobody has become its owner for ``most_seconds``."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        host = urlsplit(self.address).hostname or ""
        environment = os.environ | {"TMPDIR": str(temporary), WORKER: str(self.folder), HOST_ADDRESS: host}
        if not self.address.startswith("tls://"):
            # Its processes would use files that nobody has checked, and others perhaps none.
            environment.pop(TLS, None)
        self._owner, self._owned, self._released = "", asyncio.Event(), asyncio.Event()
        monarch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "zorplex_rl.services.worker", self.address),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        ended = asyncio.create_task(monarch.wait())
        owned, released = asyncio.create_task(self._owned.wait()), asyncio.create_task(self._released.wait())
        try:
            await asyncio.wait({ended, owned}, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._owner:
                await asyncio.wait({ended, released}, return_when=asyncio.FIRST_COMPLETED)
            elif (failure := self.folder / FAILURE).exists():
                raise HostError(f"this machine cannot listen at {self.address} ({failure.read_text()})")
            elif ended.done():
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            for task in (ended, owned, released):
                task.cancel()
            kill_session(monarch.pid)
            await monarch.wait()
            # What has left that session has become this program's (``orphans.py``).
            orphans.end()
            shutil.rmtree(temporary, ignore_errors=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell a keeper whose the host is (nothing: its own), then wait for the owner's end."""
        with contextlib.suppress(OSError), contextlib.closing(writer):
            released, holder = self._released, (await reader.readline()).decode().strip()
            writer.write(f"{self._owner}\n".encode())
            if self._owner or not holder:
                await writer.drain()
                return
            self._owner = f"{holder}, since {datetime.now():%H:%M:%S on %d %B}"
            self._owned.set()
            print(f"zorplex-rl: in use by {holder}", flush=True)
            with contextlib.suppress(OSError):
                await reader.read()
            released.set()


def claim_host(holder: str) -> tuple[socket.socket | None, str]:
    """Make ``holder``'s run the owner of this process's host. Returns the connection to keep open,
    and the owner before it, or nothing. Without a worker program (``WORKER``) nobody else knows.
    """
    if not (folder := os.environ.get(WORKER)):
        return None, ""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(Path(folder, SOCKET)))
    connection.sendall(f"{holder}\n".encode())
    return connection, connection.makefile(encoding="utf-8").readline().strip()


def _serve_one_run(address: str) -> None:
    """Run Monarch's worker loop in this process, which ends with the one that has started it."""
    from zorplex_rl.services.listening import serve_as_host

    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def end_with_parent() -> None:
        os.read(parent, 1)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        serve_as_host(
            address, lambda: print(f"zorplex-rl: waiting for a run at {address}; Ctrl-C ends this", flush=True)
        )
    except Exception as error:
        Path(os.environ[WORKER], FAILURE).write_text(str(error).strip().splitlines()[-1])
    # Not the usual way out, on which Monarch would wait for its own threads.
    os._exit(0)


if __name__ == "__main__":
    _serve_one_run(sys.argv[1])
