"""A host: another machine, or a part of one, on which replicas run; whether it is still there, and what ends if it is not.

    controller   Host ── renew(token), once a second ──►  HostKeeper   one process on the host, beside the replicas
                  ▲                                           │
                  └───────────── a new token ─────────────────┘

A lease keeps two machines from doing the same work. The keeper counts ``lease`` seconds from the newest of its own tokens that has come back to
it. When they are over, it kills every process of its host. So a host that is cut off ends by itself, and so does one whose controller
has died. A token comes back only if the controller has received it: the controller knows that a host of which it last heard at time *t* has
ended by *t + lease*, however late its own last messages arrive there. What must not exist twice (the trainer) is started elsewhere only then
(``until_ended``). Everything else may start at once, because a replica that has failed answers nobody: ``router.py`` drops what arrives later.

>>> keeper = Lease(seconds=10.0, now=100.0)
>>> keeper.renew(token=101.0), keeper.runs_out
(None, 111.0)
>>> keeper.renew(token=100.5), keeper.runs_out  # A message that was late changes nothing.
(None, 111.0)
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from zorplex_rl import __version__
from zorplex_rl.errors import HostError
from zorplex_rl.services.runtime import SECRET, Actor, serve_as_host, uncounted_endpoint

if TYPE_CHECKING:
    from zorplex_rl.services.replica import Replica

log = logging.getLogger(__name__)
Result = TypeVar("Result")

RENEW_EVERY = 1.0
MARGIN_SECONDS = 1.0
"""What is added to a lease before it counts as over: the keeper looks at its clock four times a second."""
GREETING_SECONDS = 30.0
ASK_SECONDS = 1.0
CHUNK_BYTES = 4 << 20
STOP_SECONDS = 10.0
HOST_ADDRESS = "ZORPLEX_HOST_ADDRESS"
"""Environment variable of all processes of a host: the host name or address at which its worker listens."""
WORKER_FOLDER = "zorplex-worker-"
"""Prefix of the folder in which a worker and its processes keep what they need for a while."""


@dataclass(slots=True)
class Lease:
    """Until when a host may work: ``seconds`` from the newest token that has come back. A token is a time of the host's own clock."""

    seconds: float
    now: float

    def renew(self, token: float) -> None:
        self.now = max(self.now, token)

    @property
    def runs_out(self) -> float:
        return self.now + self.seconds


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a host says of itself: its name, its package, and the number of its CUDA devices."""

    hostname: str
    version: str
    digest: str
    cuda_count: int


class HostKeeper(Actor):
    """Ends its host when the lease runs out, and looks after its processes: the controller cannot signal them from another machine."""

    def __init__(self, seconds: float) -> None:
        self._lease = Lease(seconds, clock())
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while clock() < self._lease.runs_out:
            time.sleep(0.25)
        end_host()

    @uncounted_endpoint
    async def greet(self) -> Greeting:
        """Return what there is on this host."""
        return Greeting(socket.gethostname(), __version__, source_digest(), await asyncio.to_thread(_cuda_count))

    @uncounted_endpoint
    async def renew(self, token: float) -> tuple[float, float]:
        """Extend the lease up to ``token``, which an earlier call has returned. Returns the next one, and this host's monotonic clock."""
        self._lease.renew(min(token, clock()))
        return clock(), time.monotonic()

    @uncounted_endpoint
    async def kill(self, pids: Collection[int]) -> None:
        """Kill processes of this host."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @uncounted_endpoint
    async def make_folder(self) -> str:
        """Return a new, empty folder of this host."""
        return tempfile.mkdtemp(prefix="zorplex-")

    @uncounted_endpoint
    async def list_folder(self, folder: str) -> list[tuple[str, int]]:
        """Return all files in ``folder`` and below: their names and their sizes in bytes."""
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]

    @uncounted_endpoint
    async def read(self, folder: str, name: str, offset: int) -> bytes:
        """Return the next bytes of a file, at most ``CHUNK_BYTES``."""
        return await asyncio.to_thread(_read, Path(folder, name), offset)

    @uncounted_endpoint
    async def write(self, folder: str, name: str, offset: int, content: bytes) -> None:
        """Write a part of a file, which is made by its first part."""
        await asyncio.to_thread(_write, Path(folder, name), offset, content)

    @uncounted_endpoint
    async def remove_folder(self, folder: str) -> None:
        """Remove what ``make_folder`` has made."""
        await asyncio.to_thread(shutil.rmtree, folder, True)

    @uncounted_endpoint
    async def processor_seconds(self, pids: Collection[int]) -> float:
        """Return the processor seconds that processes of this host have used."""
        return processor_seconds(pids)


class Host:
    """The controller's view of one host. ``mesh`` is Monarch's, to start processes on; ``name`` is for people."""

    def __init__(self, name: str, mesh: Any, lease: float) -> None:
        self.name, self.mesh, self.lease = name, mesh, lease
        self.keeper: Any = None
        self.greeting: Greeting | None = None
        self.lost = asyncio.Event()
        self.reason = ""
        self.replicas: list[Replica] = []
        self._procs: Any = None
        self.clock_ahead, self._round_trip = 0.0, math.inf
        """By how many seconds its monotonic clock is ahead of this host's."""
        self._heard = time.monotonic()
        self._renewing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Host({self.name!r})"

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set()

    @property
    def occupants(self) -> int:
        """Return how many processes of replicas live here."""
        self.replicas = [replica for replica in self.replicas if not replica.ended.is_set()]
        return sum(replica.processes for replica in self.replicas)

    async def open(self) -> None:
        """Start its keeper. Raises HostError if the host does not answer, or has another version of the package."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await self.mesh.initialized
                self._procs = self.mesh.spawn_procs(per_host={"procs": 1}, name="keeper")
                self.keeper = self._procs.spawn("keeper", HostKeeper, self.lease)
                self.greeting = await self.keeper.greet.call_one().as_asyncio()
                token = await self._ask_for_token(0.0)
        except TimeoutError:
            raise HostError(
                f"host {self.name} does not answer; make sure that `zorplex-rl worker` runs there, with the same {SECRET} in its environment "
                "as here, and that it can reach this machine"
            ) from None
        except Exception as error:
            raise HostError(
                f"host {self.name} could not start a process of this package ({str(error).strip().splitlines()[-1]}); "
                f"install zorplex-rl {__version__} there, and start `zorplex-rl worker` with it"
            ) from error
        there, here = self.greeting, source_digest()
        if (there.version, there.digest) != (__version__, here):
            raise HostError(
                f"host {self.name} has zorplex-rl {there.version} ({there.digest}), and this is {__version__} ({here}); install the same there"
            )
        self._heard = time.monotonic()
        self._renewing = asyncio.create_task(self._renew(token))

    async def close(self) -> None:
        """Stop everything on the host, its worker included. One that is lost ends by itself."""
        if self._renewing:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self.is_alive:
            # Later nobody may wait for it any more; what is left there ends with the lease.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.mesh.shutdown().as_asyncio()

    def lose(self, reason: str) -> None:
        """Count this host as lost: its replicas have failed, and no other is started here."""
        self.reason = reason
        self.lost.set()
        for replica in list(self.replicas):
            replica.fail(f"its host {self.name} {reason}")

    async def make_folder(self) -> str:
        """Return a new, empty folder of that host."""
        return await self.unless_lost(self.keeper.make_folder.call_one().as_asyncio())

    async def fetch_folder(self, there: str, here: Path) -> None:
        """Copy the files of that host's folder ``there`` into ``here``. No file system is shared: they come as messages. Raises OSError."""
        for name, size in await self.unless_lost(self.keeper.list_folder.call_one(there).as_asyncio()):
            for offset in range(0, max(size, 1), CHUNK_BYTES):
                part = await self.unless_lost(self.keeper.read.call_one(there, name, offset).as_asyncio())
                await asyncio.to_thread(_write, here / name, offset, part)

    async def send_folder(self, here: Path) -> str:
        """Copy the files of ``here`` into a new folder of that host. Returns its path there."""
        there = await self.make_folder()
        for path in sorted(path for path in here.rglob("*") if path.is_file()):
            name = path.relative_to(here).as_posix()
            for offset in range(0, max(path.stat().st_size, 1), CHUNK_BYTES):
                part = await asyncio.to_thread(_read, path, offset)
                await self.unless_lost(self.keeper.write.call_one(there, name, offset, part).as_asyncio())
        return there

    async def remove_folder(self, there: str) -> None:
        """Remove a folder of that host, if it is still there."""
        with contextlib.suppress(Exception):
            await self.unless_lost(self.keeper.remove_folder.call_one(there).as_asyncio())

    async def until_ended(self) -> None:
        """Wait until whatever ran on this lost host has surely ended; see the top of this file."""
        await asyncio.sleep(max(0.0, self._heard + self.lease + MARGIN_SECONDS - time.monotonic()))

    async def kill(self, pids: Collection[int]) -> bool:
        """Have the keeper kill processes. Returns whether it says that it has."""
        if self.is_alive:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ASK_SECONDS):
                    await self.keeper.kill.call_one(pids).as_asyncio()
                    return True
        return False

    async def processor_seconds(self, pids: Collection[int]) -> float:
        """Return the processor seconds of processes of this host; 0.0 if it does not say."""
        if self.is_alive:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(ASK_SECONDS):
                    return await self.keeper.processor_seconds.call_one(pids).as_asyncio()
        return 0.0

    async def end(self, pids: Collection[int]) -> None:
        """Return when processes of this host have surely ended: they are killed, or the host's lease is over."""
        while self.is_alive:
            if await self.kill(pids):
                return
            await asyncio.sleep(ASK_SECONDS)
        await self.until_ended()

    async def unless_lost(self, coroutine: Awaitable[Result]) -> Result:
        """Return what ``coroutine`` returns. Raises HostError, and cancels it, when this host is lost before that."""
        doing: asyncio.Future[Result] = asyncio.ensure_future(coroutine)
        lost: asyncio.Future[Any] = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait([doing, lost], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise HostError(f"host {self.name} {self.reason}")
        finally:
            lost.cancel()
            doing.cancel()
            # Nobody waits for it any more, so its exception has been seen.
            doing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _ask_for_token(self, token: float) -> float:
        sent = time.monotonic()
        token, there = await self.keeper.renew.call_one(token).as_asyncio()
        self.compare_clocks(sent, there, time.monotonic())
        return token

    def compare_clocks(self, sent: float, there: float, received: float) -> None:
        """Note what that host's clock said between two moments of this one's. The shortest exchange so far says it best.

        >>> host = Host("a", mesh=None, lease=10.0)
        >>> host.compare_clocks(sent=100.0, there=7.5, received=101.0)
        >>> host.compare_clocks(sent=200.0, there=190.0, received=300.0)
        >>> host.clock_ahead
        -93.0
        """
        if received - sent <= self._round_trip:
            self._round_trip, self.clock_ahead = received - sent, there - (sent + received) / 2

    async def _renew(self, token: float) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY)
            try:
                async with asyncio.timeout(max(0.1, self._heard + self.lease - time.monotonic())):
                    token = await self._ask_for_token(token)
            except TimeoutError:
                self.lose(f"has not answered for {self.lease:g} s")
                return
            except Exception as error:
                log.debug("%s: %s", self.name, error)
                self.lose("is gone, or cut off")
                return
            self._heard = time.monotonic()


def clock() -> float:
    """Return this machine's time in seconds. It also runs while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@functools.cache
def source_digest() -> str:
    """Return eight digits that differ where the package's programs differ: a version number stays the same while somebody works on them."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def _write(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


def processor_seconds(pids: Collection[int]) -> float:
    """Return the processor seconds that processes of this machine have used; 0.0 if the system does not report them."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def serve(address: str) -> None:
    """Be a host at ``address`` until a controller has shut it down, or the lease that it gave runs out. Leaves no file behind.

    SIGTERM and Ctrl-C end it, and with it the processes that were started through it.
    """
    folder = tempfile.mkdtemp(prefix=WORKER_FOLDER)
    # For the processes of this host, which inherit it.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ[HOST_ADDRESS] = urlsplit(address).hostname or ""
    done = threading.Event()

    def wait_for_shutdown() -> None:
        try:
            serve_as_host(address)
        except Exception as error:
            failures.append(error)
        done.set()

    failures: list[Exception] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: done.set())
    # Signals come to the main thread, which must therefore not wait in native code.
    threading.Thread(target=wait_for_shutdown, daemon=True).start()
    # An address that cannot be had is refused at once.
    if not done.wait(1.0):
        print(f"zorplex-rl: waiting for a run at {address}; Ctrl-C ends this", flush=True)
        done.wait()
    shutil.rmtree(folder, ignore_errors=True)
    if failures:
        raise HostError(f"this machine cannot listen at {address} ({str(failures[0]).strip().splitlines()[-1]})")
    # Not the usual way out, on which Monarch would wait for its own threads. The system ends the processes that were started from here.
    os._exit(0)


def end_host() -> None:
    """Kill the worker that started this process, all its other processes, and this one."""
    worker = os.getppid()
    if (folder := Path(tempfile.gettempdir())).name.startswith(WORKER_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    for pid in (*_descendants(worker), worker):
        if pid not in (os.getpid(), 1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(1)


def _descendants(root: int) -> list[int]:
    """Return the processes that ``root`` has started, and those that they have; nothing where there is no /proc."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found, left = [], [root]
    while left:
        left += (new := children.get(left.pop(), []))
        found += new
    return found


def _cuda_count() -> int:
    if not Path("/dev/nvidiactl").exists():
        return 0
    import torch

    return torch.cuda.device_count()
