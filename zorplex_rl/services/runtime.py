"""Start Monarch, and define endpoints that count their requests and always answer.

    caller ──► endpoint ──► serving + 1 ──► the method ──► answer, or EndpointError ──► serving − 1

All other files import Monarch's names from here.
"""

import asyncio
import atexit
import contextlib
import ctypes
import functools
import inspect
import logging
import os
import socket
import tempfile
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

SETTINGS = {"MONARCH_FILE_LOG": "error", "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s"}
"""Monarch reads these when it is imported: what it logs, and how soon it reports that a process has ended."""
_before = {name: os.environ[name] for name in SETTINGS if name in os.environ}
os.environ |= SETTINGS
import monarch
import monarch.actor
import monarch.config

for _name in SETTINGS:
    del os.environ[_name]
os.environ |= _before
from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec, ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch._src.actor import host_mesh
from monarch.actor import Actor as Actor
from monarch.actor import ActorError as ActorError
from monarch.actor import endpoint as endpoint

from zorplex_rl import TORCH_SETTINGS, errors

LONGEST_FOLDER = 60
"""Characters of a temporary folder. A socket's name has at most 103 (macOS, unix(4)), of which a worker's needs 39."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Set for the processes that Monarch starts: a random.py in the current folder must not replace Python's."""
current_rank = monarch.actor.current_rank
this_host = monarch.actor.this_host
get_or_spawn_controller = monarch.actor.get_or_spawn_controller
uncounted_endpoint = monarch.actor.concurrent_endpoint
"""Decorates an async endpoint whose calls do not count as load."""
ReplicaDied = SupervisionError
"""Raised by a call whose process has ended. An exception in the endpoint is an ActorError."""
Result = TypeVar("Result")
M_TRIM_THRESHOLD = -1
"""From malloc.h, like the next."""
M_MMAP_THRESHOLD = -3


@functools.cache
def start_monarch() -> None:
    """Start Monarch's client in this process, once."""
    here = monarch.config.get_global_config()["default_transport"] == BindSpec(
        ChannelTransport.Unix
    )
    # A second stream hangs at a fixed address, as hosts have.
    configure(streams=2 if here else 1)
    # The default hook ends this process when any actor dies. Here the caller gets an exception.
    log = logging.getLogger("monarch.supervision")
    monarch.actor.unhandled_fault_hook = lambda failure: log.info("%s", failure.report())
    if here:
        # Monarch starts processes through a socket and runs what it is sent there. By default any user
        # of the machine can connect. This socket is in a folder of this user.
        folder = socket_folder()
        atexit.register(folder.cleanup)
        monarch.configure(default_transport=f"ipc://{folder.name}/host")
    keep_freed_memory()
    default = host_mesh.default_bootstrap_cmd
    command = default().with_env(SAFE_PATH)
    host_mesh.default_bootstrap_cmd = lambda: command
    with quiet_stderr():
        monarch.actor.context()
    host_mesh.default_bootstrap_cmd = default
    if here:
        # An address serves one socket, and RDMABuffer opens more.
        monarch.configure(default_transport=ChannelTransport.Unix)
    # Registered after Monarch's own handler, so it runs before that one; it waits longer.
    atexit.register(lambda: monarch.actor.shutdown_context(host_timeout=0.3).get(timeout=10.0))


def keep_freed_memory() -> None:
    """Make the C library keep freed memory. Otherwise it returns freed multi-megabyte blocks to the kernel,
    so the next message faults every page in again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder of this user for sockets. If the name of the temporary folder is too long for a
    socket's, use /tmp for all temporary files instead."""
    if len(tempfile.gettempdir()) > LONGEST_FOLDER:
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
    return tempfile.TemporaryDirectory(prefix="zorplex-")


def configure(streams: int) -> None:
    """Configure Monarch in this process and in all that it starts; ``streams`` carry bulk data."""
    # Gloo listens on loopback only.
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ |= {"GLOO_SOCKET_IFNAME": loopback} | TORCH_SETTINGS | os.environ | SETTINGS
    # With small chunks and one acknowledgement a message, RDMA's TCP fallback is two to four times as fast.
    monarch.configure(
        rdma_max_chunk_size_mb=4,
        rdma_tcp_fallback_parallelism=streams,
        message_ack_every_n_messages=1,
    )
    # Whether a process hangs is decided by the probes of its service, not by Monarch.
    monarch.configure(get_actor_state_max_idle="1h", get_proc_state_max_idle="1h")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide what native code prints at its start: it writes to file descriptor 2 directly."""
    warnings.filterwarnings("ignore", message=".*TCP.*fallback.*")
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


class EndpointError(ActorError):
    """Report what an endpoint raised, as text: the ``kind`` of exception, its message and trace."""

    def __init__(self, endpoint: str, kind: str, message: str, trace: str) -> None:
        # Monarch's __init__ would keep the exception itself, which may not be picklable.
        Exception.__init__(self, endpoint, kind, message, trace)
        self.endpoint, self.kind, self.message, self.trace = self.args

    def __str__(self) -> str:
        return f"{self.endpoint} raised {self.kind}: {self.message}\n{self.trace}"

    @property
    def original(self) -> Exception:
        """The error itself if it is one of this package's (``errors.py``), else this report."""
        kind = getattr(errors, self.kind, None)
        if kind is None:
            return self
        error: Exception = kind(self.message)
        error.add_note(self.trace)
        return error


def reason_of(error: BaseException) -> str:
    """Return the cause of ``error`` in one line: the first one, or the last of Monarch's report of a dead process."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if isinstance(error, ReplicaDied) else 0].strip()


class Load:
    """Count the requests that a process serves. Each actor has its own thread, so this needs a lock."""

    def __init__(self) -> None:
        self.serving = 0
        self.answered: set[str] = set()
        """Endpoints that have answered."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.serving += 1

    def end(self, endpoint: str) -> None:
        with self._lock:
            self.serving -= 1
            self.answered.add(endpoint)


_load = Load()


def load_of_this_process() -> Load:
    """Return this process's counts. A function, because a notebook's actor class is pickled with its globals."""
    return _load


def concurrent_endpoint(method: Callable[..., Any]) -> Any:
    """Decorate an async method: its calls run concurrently, and are counted as load."""

    @functools.wraps(method)
    async def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
        # The caller may have ended. Monarch would then end this actor for an undelivered answer.
        reply.return_undeliverable = False
        load = load_of_this_process()
        task = asyncio.current_task()
        load.begin()
        try:
            reply.send(await method(actor, *args, **kwargs))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                # The actor is being stopped. For the caller that is as if its process had died.
                reply.exception(ReplicaDied(f"its actor was stopped during {method.__qualname__}"))
                raise
            trace = "".join(traceback.format_exception(error))
            reply.exception(
                EndpointError(method.__qualname__, type(error).__name__, str(error), trace)
            )
        finally:
            load.end(method.__name__)

    # Monarch checks the arguments of a call against the signature.
    signature = inspect.signature(method)
    actor, *rest = signature.parameters.values()
    port = inspect.Parameter("reply", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    answering.__signature__ = signature.replace(parameters=[actor, port, *rest])  # type: ignore[attr-defined]
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(answering)


async def run_together(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all ``coroutines`` to their end. If one fails, cancel the others, wait for them, and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def race(
    awaitable: Awaitable[Result], event: asyncio.Event
) -> "asyncio.Future[Result] | None":
    """Return the finished future of ``awaitable``. If ``event`` is set first, cancel it and return None."""
    result = asyncio.ensure_future(awaitable)
    is_set = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({result, is_set}, return_when=asyncio.FIRST_COMPLETED)
        return result if result.done() else None
    finally:
        for future in (result, is_set):
            future.cancel()
            # Asyncio complains about an exception that is never read, even if it comes later.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
