"""Reach the hosts of a run, and let go of them at its end.

    open_hosts ──► OPENERS[kind] ──► a Monarch host mesh for each host ──► Host: greeting, lease, files ──► Hosts

A new kind of hosts is an entry in ``OPENERS``: an asynchronous context manager that makes one
Monarch host mesh for each host, says by which address it is reached, and takes down what it has
made. Everything else (leases, versions, placement) is the same for all.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

from zorplex_rl.config import Config, HostsConfig
from zorplex_rl.errors import HostError
from zorplex_rl.services.host import Host
from zorplex_rl.services.own_folder import own_folder, temporary_files_in
from zorplex_rl.services.runtime import SECRET, start_runtime
from zorplex_rl.training.hosts.attached import Reached, attach_to
from zorplex_rl.training.hosts.kubernetes import open_kubernetes
from zorplex_rl.training.hosts.placement import Hosts
from zorplex_rl.training.hosts.slurm import open_slurm
from zorplex_rl.training.hosts.spec import HostsSpec, parse_hosts

MESH = "host"


@contextlib.asynccontextmanager
async def _open_processes(spec: HostsSpec, settings: HostsConfig) -> AsyncIterator[list[Reached]]:
    """Start workers on this machine, through Monarch's ``ProcessJob``."""
    from monarch.job import ProcessJob

    start_runtime()
    # Only now: importing it makes it talkative.
    logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
    job = ProcessJob({MESH: spec.count})
    try:
        with temporary_files_in(own_folder("job-", "monarch_process_job_12345678/host_999")):
            # The workers leave theirs when they are killed.
            mesh = getattr(job.state(cached_path=None), MESH)
        needed = "this machine has processor time and memory for it"
        yield [Reached(mesh.slice(hosts=number), "127.0.0.1", needed) for number in range(spec.count)]
    finally:
        await asyncio.to_thread(job.kill)


@contextlib.asynccontextmanager
async def _open_attached(spec: HostsSpec, settings: HostsConfig) -> AsyncIterator[list[Reached]]:
    """Attach to workers that run already."""
    needed = f"`zorplex-rl worker` runs there, with the same {SECRET} in its environment as here, and that it can reach this machine"
    yield await attach_to(spec.addresses, settings.listen, needed)


Opener = Callable[[HostsSpec, HostsConfig], AbstractAsyncContextManager[list[Reached]]]


OPENERS: dict[str, Opener] = {
    "processes": _open_processes,
    "attach": _open_attached,
    "slurm": open_slurm,
    "kubernetes": open_kubernetes,
}
"""For each kind of hosts but ``this``: what makes a host mesh for each of them, in their order."""


@contextlib.asynccontextmanager
async def open_hosts(config: Config) -> AsyncIterator[Hosts]:
    """Reach every host of ``config``, and let go of all at the end. Raises HostError."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    if spec.kind == "this":
        yield Hosts(config, [])
        return
    async with OPENERS[spec.kind](spec, settings) as reached:
        named = zip(spec.names, reached, strict=True)
        found = [Host(name, one.mesh, settings.lease, one.address, one.needed) for name, one in named]
        try:
            async with asyncio.TaskGroup() as group:
                for host in found:
                    group.create_task(host.greet())
            # In one order, whatever they are called: who is refused one holds only earlier ones. So of
            # controllers that come in the same moment and want some of the same hosts, one gets all.
            in_order = sorted(found, key=lambda host: host.rank)
            for one, other in pairwise(in_order):
                if one.rank == other.rank and other.is_lent:
                    raise HostError(f"hosts {one.name} and {other.name} are the same worker; name it once")
            for host in in_order:
                await host.claim()
            yield Hosts(config, found)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await asyncio.gather(*(host.close() for host in found))
