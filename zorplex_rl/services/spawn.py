"""Start a replica: its processes, their probe, the actor, its ``setup``."""

import asyncio
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from zorplex_rl.services.machine import THIS_MACHINE, Machine
from zorplex_rl.services.replica import Replica, ReplicaStart
from zorplex_rl.services.runtime import (
    Actor,
    keep_freed_memory,
    load_of_this_process,
    uncounted_endpoint,
)


class HealthProbe(Actor):
    """Answer probes for its process, whatever the replica in it is doing."""

    @uncounted_endpoint
    async def prepare(self, modules: Sequence[str], path: Sequence[str]) -> None:
        """Import ``modules``, before an actor that needs them is made in this process: also from folders
        of ``path``, the caller's, that this process does not have."""
        keep_freed_memory()
        sys.path += [folder for folder in path if folder not in sys.path]
        await asyncio.to_thread(_import, modules)

    @uncounted_endpoint
    async def begin(self) -> None:
        """Forget what this process has answered so far: that was its set-up."""
        load_of_this_process().answered.clear()

    @uncounted_endpoint
    async def beat(self) -> tuple[int, int, frozenset[str]]:
        """Return the process id, the requests that are being served, the endpoints that have answered."""
        load = load_of_this_process()
        return os.getpid(), load.serving, frozenset(load.answered)


def _import(modules: Sequence[str]) -> None:
    """Import what the actors of a new process need: unpickled side by side, they could meet in
    modules that are half imported."""
    # Of the million objects that torch and transformers make none is garbage.
    gc.disable()
    for module in modules:
        # A class made in a notebook has no module.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


async def spawn(
    name: str, actor_class: type[Actor], *args: Any, procs: int = 1, machine: Machine = THIS_MACHINE
) -> Replica:
    """Start ``actor_class(*args)`` as ``name`` in ``procs`` new processes of ``machine``, and call
    its ``setup``, if it has one. Returns when that is done.

    A class names in ``imports`` what its process imports before the actor is made, besides the
    class's own module. Raises what ``setup`` raises, or ReplicaFailed if a process ends before. What
    ``__init__`` raises surfaces only at the first request, so put anything that can fail in ``setup``.
    """
    mesh = machine.start_processes(name, procs)
    replica = Replica(name, None, procs, mesh, machine)
    # The probe comes first: it says at once which process this is.
    replica.probe = mesh.spawn(f"{name}_probe", HealthProbe)
    try:
        beats = await replica.unless_lost(replica.probe.beat.call().as_asyncio())
        replica.watch([pid for _, (pid, _, _) in beats])
        modules = (actor_class.__module__, *getattr(actor_class, "imports", ()))
        await replica.unless_lost(replica.probe.prepare.call(modules, sys.path).as_asyncio())
        replica.actor = mesh.spawn(name, actor_class, *args)
        if hasattr(actor_class, "setup"):
            await replica.unless_lost(replica.actor.setup.call().as_asyncio())
        await replica.unless_lost(replica.probe.begin.call().as_asyncio())
    except BaseException:
        await replica.stop()
        raise
    return replica


def replicas_of(
    actor_class: type[Actor], *args: Any, named: bool = False, **where: Any
) -> ReplicaStart:
    """Return a function that starts replicas of ``actor_class(*args)``; see ``spawn``. A ``named``
    actor is also given the replica's name, as its first argument."""

    async def start(name: str) -> Replica:
        return await spawn(name, actor_class, *([name] if named else []), *args, **where)

    return start
