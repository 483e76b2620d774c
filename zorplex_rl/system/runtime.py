"""The one place that configures Monarch: fast failure detection, a quiet start, and a controller that outlives its actors.

Import ``Actor``, ``endpoint`` and ``concurrent_endpoint`` from here, so that the settings below are made before Monarch is first imported.

    replica = await spawn("generator_0", GeneratorActor, config)     one actor in a process of its own
    await replica.actor.generate.call_one(…)                         raises ReplicaDied if that process is gone
    await replica.stop()
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

# A dead process is noticed within a second or so with these, within 9 to 40 without. They must be set before the first import.
os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")
os.environ.setdefault("HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE", "3s")
os.environ.setdefault("HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE", "3s")
os.environ.setdefault("MONARCH_FILE_LOG", "error")

import monarch
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec, ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, ActorError, concurrent_endpoint, context, endpoint, get_or_spawn_controller, this_host
from monarch.config import get_global_config

log = logging.getLogger(__name__)

ReplicaDied = SupervisionError
"""What a call raises when the process that it went to is gone. An exception raised *by* an endpoint is an ActorError instead."""

_started = False


def start_runtime() -> None:
    """Configure Monarch and start this process's client; does nothing the second time."""
    global _started
    if _started:
        return
    _started = True
    # Small chunks, two streams and an acknowledgement for each message: two to four times the TCP fallback's default bandwidth.
    monarch.configure(rdma_max_chunk_size_mb=4, rdma_tcp_fallback_parallelism=2, message_ack_every_n_messages=1)
    # The default hook ends this process when any actor dies. Here whoever called the actor gets an exception, and that is enough.
    monarch.actor.unhandled_fault_hook = lambda failure: log.warning("%s", failure.report())
    with quiet_stderr(), _private_host():
        context()


@contextlib.contextmanager
def _private_host() -> Iterator[None]:
    """Have Monarch make this process's host, where processes are started, reachable for this user only.

    By default it listens in Linux's abstract namespace, to which any user of the machine can connect; Monarch asks nobody who he is, and runs
    what it is sent. A transport that has been chosen already, for several hosts, stays. README, "On a shared machine", says what is left.
    """
    usual = ChannelTransport.Unix
    if get_global_config()["default_transport"] != BindSpec(usual):
        yield
        return
    # ``mkdtemp`` makes it for this user alone.
    folder = tempfile.mkdtemp(prefix="zorplex-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    monarch.configure(default_transport=f"ipc://{folder}/host")
    try:
        yield
    finally:
        # One address serves one socket; RDMABuffer opens more.
        monarch.configure(default_transport=usual)


@dataclass(slots=True)
class Replica:
    """One actor in its own process mesh, so that it can die and be replaced alone."""

    name: str
    procs: Any
    actor: Any
    pid: int = 0

    async def stop(self, timeout: float = 5.0) -> bool:
        """End the process; False if it has not ended in good order within ``timeout`` seconds. One that is gone already is fine."""
        try:
            await asyncio.wait_for(self.procs.stop().as_asyncio(), timeout)
        except Exception as error:
            return not isinstance(error, asyncio.TimeoutError)
        return True


async def spawn(name: str, actor_class: type[Actor], *args: Any, procs: int = 1, **kwargs: Any) -> Replica:
    """Start ``actor_class(*args, **kwargs)`` as ``name`` in a new process on this host, or one in each of ``procs``.

    What it imports can be much; a class says in ``imports`` which modules, beyond its own, a process should import before its actor is made.
    """
    start_runtime()
    prepare = functools.partial(_prepare_process, (actor_class.__module__, *getattr(actor_class, "imports", ())))
    mesh = this_host().spawn_procs(per_host={"procs": procs}, bootstrap=prepare, name=name)
    return Replica(name, mesh, mesh.spawn(name, actor_class, *args, **kwargs))


async def run_together(*coroutines: Awaitable[Any]) -> None:
    """Run all to their end; if one fails, cancel the others, wait for them, and raise what it raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prepare_process(modules: tuple[str, ...]) -> None:
    """Runs in a new process before its actors are made, and imports what they need.

    These are unpickled side by side, and might otherwise meet in modules that are half imported. Of the million objects that importing torch
    and transformers makes none is garbage: with the collector looking for some, it takes a quarter longer.
    """
    gc.disable()
    for module in ("zorplex_rl.system.pulse", *modules):
        # A class that was made in a notebook has no module; of any other, unpickling will say what is missing.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep native code's greetings off the terminal: they go to file descriptor 2 directly, where Python's filters do not reach."""
    warnings.filterwarnings("ignore", message=".*TCP.*fallback.*")
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


__all__ = [
    "Actor",
    "ActorError",
    "Replica",
    "ReplicaDied",
    "concurrent_endpoint",
    "endpoint",
    "get_or_spawn_controller",
    "quiet_stderr",
    "run_together",
    "spawn",
    "start_runtime",
]
