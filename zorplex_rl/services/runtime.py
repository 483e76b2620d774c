"""Start Monarch, and mark endpoints that count what their process serves and always answer.

    caller ──► endpoint ──► serving + 1 ──► the method ──► answer, or EndpointError ──► serving − 1

All other files take Monarch's names from here.
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
"""Read by Monarch while it is imported: what it logs, and how soon it says that a process is gone."""
_ENVIRONMENT = dict(os.environ)
os.environ |= SETTINGS
import monarch
import monarch.actor
import monarch.config

for _name in SETTINGS.keys() - _ENVIRONMENT.keys():
    del os.environ[_name]
os.environ |= {_name: _ENVIRONMENT[_name] for _name in SETTINGS.keys() & _ENVIRONMENT.keys()}
from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec, ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch._src.actor import host_mesh
from monarch.actor import Actor as Actor
from monarch.actor import ActorError as ActorError
from monarch.actor import endpoint as endpoint

from zorplex_rl import TORCH_SETTINGS, errors

LONGEST_FOLDER = 60
"""A socket's name has at most 103 characters (macOS, unix(4)); a worker's adds 39 to the temporary folder's."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""For the processes that Monarch starts: a random.py in the current folder is not Python's own."""
current_rank = monarch.actor.current_rank
this_host = monarch.actor.this_host
get_or_spawn_controller = monarch.actor.get_or_spawn_controller
uncounted_endpoint = monarch.actor.concurrent_endpoint
"""Marks an async endpoint that is no load."""
ReplicaDied = SupervisionError
"""What a call raises if its process is gone; an endpoint raises ActorError."""
Result = TypeVar("Result")
M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_THRESHOLD = -3


@functools.cache
def start_monarch() -> None:
    """Start Monarch's client in this process, once."""
    here = monarch.config.get_global_config()["default_transport"] == BindSpec(
        ChannelTransport.Unix
    )
    # With a fixed address, as hosts have, a second stream hangs.
    configure(streams=2 if here else 1)
    # The default hook ends this process when any actor dies. Here the caller gets an exception.
    log = logging.getLogger("monarch.supervision")
    monarch.actor.unhandled_fault_hook = lambda failure: log.info("%s", failure.report())
    if here:
        # Processes are started through a socket. By default any user of the machine can connect to it,
        # and Monarch runs what it is sent: this one is in a folder of this user.
        folder = socket_folder()
        atexit.register(folder.cleanup)
        monarch.configure(default_transport=f"ipc://{folder.name}/host")
    keep_freed_memory()
    command = host_mesh.default_bootstrap_cmd().with_env(SAFE_PATH)
    own, host_mesh.default_bootstrap_cmd = host_mesh.default_bootstrap_cmd, lambda: command
    with quiet_stderr():
        monarch.actor.context()
    host_mesh.default_bootstrap_cmd = own
    if here:
        # One address serves one socket; RDMABuffer opens more.
        monarch.configure(default_transport=ChannelTransport.Unix)
    # Registered after Monarch's own handler, so it runs before it. It waits longer than that one.
    atexit.register(lambda: monarch.actor.shutdown_context(host_timeout=0.3).get(timeout=10.0))


def keep_freed_memory() -> None:
    """Have the C library keep what is freed. It returns freed multi-megabyte blocks to the kernel, so the
    next message faults every page in again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder of this user for sockets, and take /tmp for all temporary files if the name of theirs
    is too long for that."""
    if len(tempfile.gettempdir()) > LONGEST_FOLDER:
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
    return tempfile.TemporaryDirectory(prefix="zorplex-")


def configure(streams: int) -> None:
    """Set Monarch up in this process and in all that it starts, with ``streams`` for bulk data."""
    # Gloo listens on loopback only.
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    wished = {"GLOO_SOCKET_IFNAME": loopback} | TORCH_SETTINGS
    os.environ |= SETTINGS | {name: os.environ.get(name, value) for name, value in wished.items()}
    # Small chunks, and one acknowledgement a message, make RDMA's TCP fallback two to four times as fast.
    monarch.configure(
        rdma_max_chunk_size_mb=4,
        rdma_tcp_fallback_parallelism=streams,
        message_ack_every_n_messages=1,
    )
    # A process that stands still is judged by the probes of its service, and not by Monarch.
    monarch.configure(get_actor_state_max_idle="1h", get_proc_state_max_idle="1h")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide the start messages of native code, which writes to file descriptor 2 directly."""
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
        # Monarch's own __init__ would keep the exception, which may not survive the way.
        Exception.__init__(self, endpoint, kind, message, trace)
        self.endpoint, self.kind, self.message, self.trace = self.args

    def __str__(self) -> str:
        return f"{self.endpoint} raised {self.kind}: {self.message}\n{self.trace}"

    @property
    def original(self) -> Exception:
        """The error itself if it is one of this package's (``errors.py``), else this report."""
        if not (kind := getattr(errors, self.kind, None)):
            return self
        error: Exception = kind(self.message)
        error.add_note(self.trace)
        return error


def reason_of(error: BaseException) -> str:
    """Return the cause in one line; Monarch's report of a dead process names it last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return lines[-1 if isinstance(error, ReplicaDied) else 0]


class Load:
    """Count what a process serves. Each actor has its own thread, so counting needs a lock."""

    def __init__(self) -> None:
        self.serving = 0
        self.answered: set[str] = set()  # endpoints
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
    """Return this process's count; a notebook's actor class is copied with the globals it uses."""
    return _load


def concurrent_endpoint(method: Callable[..., Any]) -> Any:
    """Mark an async method as an endpoint whose calls run side by side, and are counted."""

    @functools.wraps(method)
    async def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
        # The caller may have stopped: Monarch would end this actor for an answer that is lost.
        reply.return_undeliverable = False
        load, task = load_of_this_process(), asyncio.current_task()
        load.begin()
        try:
            reply.send(await method(actor, *args, **kwargs))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                # The actor is being stopped: to the caller that is the death of its process.
                reply.exception(ReplicaDied(f"its actor was stopped during {method.__qualname__}"))
                raise
            trace = "".join(traceback.format_exception(error))
            reply.exception(
                EndpointError(method.__qualname__, type(error).__name__, str(error), trace)
            )
        finally:
            load.end(method.__name__)

    # Monarch checks the arguments of a call against the signature.
    own = inspect.signature(method)
    actor, *rest = own.parameters.values()
    port = inspect.Parameter("reply", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    answering.__signature__ = own.replace(parameters=[actor, port, *rest])  # type: ignore[attr-defined]
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(answering)


async def run_together(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all to their end. If one fails, cancels the others, waits for them, and raises why."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def done_before(
    doing: Awaitable[Result], event: asyncio.Event
) -> "asyncio.Future[Result] | None":
    """Return the done future of ``doing``; or None, and cancel it, if ``event`` is set first."""
    asked, happened = asyncio.ensure_future(doing), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({asked, happened}, return_when=asyncio.FIRST_COMPLETED)
        return asked if asked.done() else None
    finally:
        for future in (asked, happened):
            future.cancel()
            # An exception that comes later has been seen.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
