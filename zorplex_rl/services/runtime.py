"""Configure Monarch, and provide endpoints that count what their process serves.

Import ``Actor``, ``endpoint`` and ``concurrent_endpoint`` from here: the settings below must be made before Monarch is first imported.

    request ──► endpoint ──► draining? ── yes ──► Refused: not started, so its caller may send it elsewhere
                                │ no
                                └──► serving + 1 ──► the method ──► answer ──► serving − 1

The process that serves keeps the count, so it includes the callers of all processes and costs no message. The health probe of the
process reads it (``replica.py``).
"""

import asyncio
import atexit
import contextlib
import functools
import hashlib
import inspect
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from zorplex_rl.services.tls import TLS, use

# Set them before the first import; the processes that are started inherit them. Monarch asks once a second whether a process is there. One that does
# not answer is not dead: it may stand still, for as long as the time limits of its service allow. So Monarch's own limit is longer than all of these.
os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")
os.environ.setdefault("HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE", "1h")
os.environ.setdefault("HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE", "1h")
os.environ.setdefault("MONARCH_FILE_LOG", "error")
# Read only once, too.
if TLS in os.environ:
    use(Path(os.environ[TLS]))

import monarch
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec, ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.proc import ProcId, Uid
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import (  # noqa: F401, others import them from here
    Actor,
    ActorError,
    context,
    current_rank,
    get_or_spawn_controller,
    shutdown_context,
    start_worker_loop_forever,
    this_host,
)
from monarch.config import get_global_config

from zorplex_rl.services.endpoint_error import EndpointError
from zorplex_rl.services.own_folder import own_folder

Result = TypeVar("Result")
SECRET = "ZORPLEX_SECRET"
"""Environment variable with the secret that the hosts of a run share with its controller."""

LISTEN_SECONDS = 1.0
ReplicaDied = SupervisionError
"""A call raises this if its process is gone. An exception raised *by* an endpoint is an ActorError instead."""


class Refused(Exception):
    """Report that the process is draining. The endpoint did not run."""


class Load:
    """Count what this process serves. Each actor has its own thread, so counting needs a lock."""

    def __init__(self) -> None:
        self.serving = 0
        self.answered: set[str] = set()
        """The endpoints that have given an answer."""
        self._draining, self._last_arrival = False, 0.0
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Count a request that has arrived. Returns False if it must not be begun."""
        with self._lock:
            self._last_arrival = time.monotonic()
            self.serving += not self._draining
            return not self._draining

    def end(self, endpoint: str) -> None:
        """Count a request of ``endpoint``, which ``begin`` has let in, as answered."""
        with self._lock:
            self.serving -= 1
            self.answered.add(endpoint)

    async def drain(self, quiet_seconds: float) -> None:
        """Refuse requests from now on. Returns when all begun requests are answered and none has arrived for ``quiet_seconds``."""
        with self._lock:
            self._draining, self._last_arrival = True, time.monotonic()
        while self.serving or time.monotonic() - self._last_arrival < quiet_seconds:
            await asyncio.sleep(0.02)


_load = Load()


def load_of_this_process() -> Load:
    """Return the count of this process. A function, because an actor class from a notebook is copied with the globals that it uses."""
    return _load


def load_of_nobody() -> Load:
    """Return a count that nobody reads, and that lets everything in."""
    return Load()


def concurrent_endpoint(method: Callable[..., Any]) -> Any:
    """Mark an async method as an endpoint whose calls run side by side."""
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(_answering(method, load_of_this_process))


def endpoint(method: Callable[..., Any]) -> Any:
    """Mark a method as an endpoint whose calls run one after the other."""
    return monarch.actor.endpoint(explicit_response_port=True)(_answering(method, load_of_this_process))


def uncounted_endpoint(method: Callable[..., Any]) -> Any:
    """Mark an async method as a concurrent endpoint that is no load, and that answers while its process drains: a health probe."""
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(_answering(method, load_of_nobody))


def _answering(method: Callable[..., Any], load_of: Callable[[], Load]) -> Any:
    """Return ``method`` as Monarch calls it: with the port to which the answer goes, whatever happens in it."""
    answering: Any
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
            if not _begins(reply, load := load_of()):
                return
            try:
                reply.send(await method(actor, *args, **kwargs))
            except BaseException as error:
                _answer_with(error, reply, method)
            finally:
                load.end(method.__name__)

    else:

        @functools.wraps(method)
        def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
            if not _begins(reply, load := load_of()):
                return
            try:
                reply.send(method(actor, *args, **kwargs))
            except BaseException as error:
                reply.exception(EndpointError.of(error, f"Actor call {method.__qualname__} failed."))
            finally:
                load.end(method.__name__)

    # Monarch checks the arguments of a call against the signature.
    own = inspect.signature(method)
    actor, *rest = own.parameters.values()
    answering.__signature__ = own.replace(parameters=[actor, _REPLY, *rest])
    return answering


_REPLY = inspect.Parameter("reply", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _begins(reply: Any, load: Load) -> bool:
    # A caller may have stopped: Monarch would end this actor for an answer that is lost.
    reply.return_undeliverable = False
    if begins := load.begin():
        return begins
    reply.exception(Refused("this replica is about to stop and takes no more requests"))
    return False


def _answer_with(error: BaseException, reply: Any, method: Callable[..., Any]) -> None:
    """Tell the caller of ``error``, which ``method`` has raised.

    A cancellation of this task comes from outside: the actor is being stopped, and answers nothing more. To the caller that is the death of its
    process. A CancelledError that was raised without one is an error like another.
    """
    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
        reply.exception(ReplicaDied(f"its actor was stopped during {method.__qualname__}"))
        raise error
    reply.exception(EndpointError.of(error, f"Actor call {method.__qualname__} failed."))


def is_being_cancelled() -> bool:
    """Return whether somebody has cancelled the present task, so that a CancelledError is that and no error of what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def listen_at(address: str) -> None:
    """Have this process's Monarch listen at ``address`` (``tls://HOST:PORT`` or ``tcp://…``, and nowhere else), for hosts that are not this one.

    Raises RuntimeError once the runtime has started: a process has one transport.
    """
    if start_runtime.cache_info().currsize:
        raise RuntimeError("this process has started Monarch already, so it cannot begin to listen for other hosts")
    monarch.actor.enable_transport(address)


def serve_as_host(address: str, ready: Callable[[], None]) -> None:
    """Make this process a host on which a controller may start processes. Returns when it has been shut down. Calls ``ready`` once it listens.

    Monarch listens at ``address`` (``tls://HOST:PORT`` or ``tcp://…``) and nowhere else. It runs what it is sent; see ``addressed``.
    """
    _configure(streams=1)
    with quiet_stderr():
        serving = start_worker_loop_forever(address=addressed(address), ca="trust_all_connections")
        with contextlib.suppress(TimeoutError):
            # An address that cannot be had is refused at once.
            serving.get(timeout=LISTEN_SECONDS)
    ready()
    serving.get()


def attach(address: str) -> Any:
    """Return Monarch's mesh of the one host at ``address``, which may not be there."""
    return monarch.actor.attach_to_workers(ca="trust_all_connections", workers=[addressed(address)])


def addressed(address: str) -> str:
    """Return ``address`` with the name that a host answers to, where the environment variable ``ZORPLEX_SECRET`` is set.

    Without TLS nobody is known. But a host agent drops what is addressed to another name than its own, and this name, 64 bits, is made of the
    secret. So without the secret nobody starts processes there. It crosses the network in the clear: who can listen there knows it.
    """
    if not (secret := os.environ.get(SECRET)):
        return address
    number = int.from_bytes(hashlib.sha256(secret.encode()).digest()[:8], "big")
    return f"{ProcId(Uid.instance_from_value(number, 'service'))}@{address}"


def _configure(streams: int) -> None:
    # Small chunks, two streams and one acknowledgement per message give two to four times the default bandwidth of the TCP fallback.
    # With a fixed address, as hosts have, a second stream hangs.
    monarch.configure(rdma_max_chunk_size_mb=4, rdma_tcp_fallback_parallelism=streams, message_ack_every_n_messages=1)


@functools.cache
def start_runtime() -> None:
    """Configure Monarch and start this process's client. Does nothing on later calls."""
    _configure(streams=2 if get_global_config()["default_transport"] == BindSpec(ChannelTransport.Unix) else 1)
    # The default hook ends this process when any actor dies. Here the caller of the actor gets an exception, which is enough.
    monarch.actor.unhandled_fault_hook = lambda failure: _note_fault(failure.report())
    with quiet_stderr(), _private_host():
        context()
    # Registered after Monarch's own handler, so it runs before it.
    atexit.register(_shut_down)


def _note_fault(report: str) -> None:
    """Log what Monarch reports of a fault: once for every actor of a dead process, so not under this package's name, which people are told.

    A message that no host takes is no news: who sent it waits for the host, and says so.
    """
    is_news = "undeliverable message to host_agent." not in report
    logging.getLogger("monarch.supervision").log(logging.WARNING if is_news else logging.DEBUG, "%s", report)


def _shut_down() -> None:
    """End Monarch's client at exit. Monarch would allow it one second, which a busy machine does not keep, and print a traceback."""
    with contextlib.suppress(TimeoutError):
        shutdown_context(host_timeout=0.3).get(timeout=10.0)


@contextlib.contextmanager
def _private_host() -> Iterator[None]:
    """Have Monarch make this process's host, where processes are started, reachable for this user only.

    By default it listens in Linux's abstract namespace, to which any user of the machine can connect; Monarch authenticates nobody, and runs
    what it is sent. A transport that has been chosen already, for several hosts, stays. README, "On a shared machine", says what is left.
    """
    usual = ChannelTransport.Unix
    if get_global_config()["default_transport"] != BindSpec(usual):
        yield
        return
    folder = own_folder()
    monarch.configure(default_transport=f"ipc://{folder}/host")
    try:
        yield
    finally:
        # One address serves one socket; RDMABuffer opens more.
        monarch.configure(default_transport=usual)


async def run_together(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all to their end. If one fails, cancels the others, waits for them, and raises its exception."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(fail_if_cancelled_inside(coroutine))
    except BaseExceptionGroup as failures:
        error: BaseException = failures
        while isinstance(error, BaseExceptionGroup):
            # The failed one may itself have raised a group.
            error = error.exceptions[0]
        raise error from None


async def fail_if_cancelled_inside(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``coroutine`` returns. Raises RuntimeError for a CancelledError of its own: a task group would go on without a word."""
    try:
        return await coroutine
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise RuntimeError(f"{getattr(coroutine, '__qualname__', coroutine)} was cancelled from inside") from error


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide the start messages of native code: it writes to file descriptor 2 directly, which Python's filters do not cover."""
    warnings.filterwarnings("ignore", message=".*TCP.*fallback.*")
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
