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
        """Import ``modules`` before an actor that needs them is made in this process. ``path`` is the caller's:
        its folders are added to this process's."""
        keep_freed_memory()
        sys.path += [folder for folder in path if folder not in sys.path]
        await asyncio.to_thread(_import, modules)

    @uncounted_endpoint
    async def begin(self) -> None:
        """Forget which endpoints have answered: those calls were part of the set-up."""
        load_of_this_process().answered.clear()

    @uncounted_endpoint
    async def beat(self) -> tuple[int, int, frozenset[str]]:
        """Return the process id, the number of requests being served, and the endpoints that have answered."""
        load = load_of_this_process()
        return os.getpid(), load.serving, frozenset(load.answered)


def _import(modules: Sequence[str]) -> None:
    """Import ``modules`` one after another. Actors unpickled side by side could each see modules that
    the other has half imported."""
    # Torch and transformers make a million objects here, and none of them is garbage.
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
    its ``setup``, if it has one. Returns the replica when that is done.

    A class may list in ``imports`` the modules that its process imports before the actor is made;
    its own module is always among them. Raises what ``setup`` raises, or ReplicaFailed if a process
    ends before. An exception in ``__init__`` surfaces only at the first request: put anything that
    can fail in ``setup``.
    """
    mesh = machine.start_processes(name, procs)
    replica = Replica(name, None, procs, mesh, machine)
    # The probe comes first: its answer has the process id.
    replica.probe = mesh.spawn(f"{name}_probe", HealthProbe)
    try:
        beats = await replica.wait_for(replica.probe.beat.call().as_asyncio())
        replica.watch([pid for _, (pid, _, _) in beats])
        modules = (actor_class.__module__, *getattr(actor_class, "imports", ()))
        await replica.wait_for(replica.probe.prepare.call(modules, sys.path).as_asyncio())
        replica.actor = mesh.spawn(name, actor_class, *args)
        # Until then its address cannot be sent to others, and never if its process stops now.
        await replica.wait_for(replica.actor.initialized.as_asyncio())
        if hasattr(actor_class, "setup"):
            await replica.wait_for(replica.actor.setup.call().as_asyncio())
        await replica.wait_for(replica.probe.begin.call().as_asyncio())
    except BaseException:
        await replica.stop()
        raise
    return replica


def replicas_of(
    actor_class: type[Actor], *args: Any, named: bool = False, **where: Any
) -> ReplicaStart:
    """Return a function that starts replicas of ``actor_class(*args)`` with ``spawn``. ``named``
    passes the replica's name to the actor as its first argument."""

    async def start(name: str) -> Replica:
        first = (name,) if named else ()
        return await spawn(name, actor_class, *first, *args, **where)

    return start
