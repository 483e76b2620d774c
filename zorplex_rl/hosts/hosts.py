"""The machines of a run, and which role runs on which of them.

    --hosts this                            every process on this machine (the default): nothing below is used
    --hosts processes:N                     N workers on this machine, to try hosts out
    --hosts attach:tls://HOST:PORT,…        machines on which ``zorplex-rl worker --listen tls://HOST:PORT`` runs
    hosts="job"                             meshes of a Monarch job, passed in Python (examples/slurm.py)

    trainer                                 the first host that is alive, with all its processes
    generators, tools, reference            spread over the hosts that are alive, the second one first
    controller, dataset, replay buffer, rewards     this machine

Machines talk through Monarch's channels, over mutual TLS (docs/HOSTS.md). A host is lost when it has
not answered for the time of a lease (``lease.py``). Its replicas are replaced on the hosts that are
left. When none is left, the run ends and can be resumed.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zorplex_rl import __version__
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.hosts.lease import (
    LEASE_SECONDS,
    HostKeeper,
    end_with_keeper,
    parts_in,
    read_part,
    write_part,
)
from zorplex_rl.hosts.worker import worker_loop
from zorplex_rl.services.machine import THIS_MACHINE, Machine
from zorplex_rl.services.replica import ReplicaStart
from zorplex_rl.services.runtime import (
    ReplicaDied,
    Result,
    monarch,
    race,
    run_together,
    socket_folder,
    start_monarch,
)

log = logging.getLogger(__name__)
TLS_FILES = ("HYPERACTOR_TLS_CERT", "HYPERACTOR_TLS_KEY", "HYPERACTOR_TLS_CA")
"""Monarch's environment variables that name the PEM files of this machine."""
RENEW_EVERY = 1.0
MARGIN_SECONDS = 1.0
"""We wait this much longer before treating a lease as expired: the keeper looks at its clock four times a second."""
GREETING_SECONDS = 30.0
REMOTE_ROLES = ("trainer", "generator", "reference", "tools")


class Host(Machine):
    """A host as the controller sees it. ``mesh`` is Monarch's."""

    def __init__(self, name: str, mesh: Any) -> None:
        self.name = name
        self.mesh = mesh
        self.keeper: Any = None
        self.gpus = 0
        self.lost = asyncio.Event()
        self._heard = time.monotonic()
        self._renewing: asyncio.Task[None] | None = None
        self._policy: asyncio.Task[str] | None = None

    def start_processes(self, name: str, procs: int) -> Any:
        return self.mesh.spawn_procs(
            per_host={"procs": procs}, bootstrap=end_with_keeper, name=name
        )

    async def until_one_ends(self, pids: Sequence[int]) -> str:
        with suppress(Exception):
            return await self._ask(self.keeper.until_one_ends, pids)
        await self.lost.wait()
        return f"its host {self.name} is lost"

    async def greet(self) -> None:
        """Start the host's keeper and its lease. Raises HostError if the host is silent, serves another run,
        or has another version of the package."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await self.mesh.initialized
                self.keeper = self.mesh.spawn_procs(name="keeper").spawn("keeper", HostKeeper)
                version, self.gpus = await self._ask(self.keeper.info)
                if version != __version__:
                    raise HostError(
                        f"host {self.name} has zorplex-rl {version}, and this machine {__version__}; "
                        "install the same version"
                    )
                if not await self._ask(self.keeper.serve):
                    raise HostError(
                        f"host {self.name} serves another run; use another host, or wait until that run "
                        f"is over (if it was killed, {LEASE_SECONDS:g} s longer)"
                    )
                token = await self._renew(0.0)
        except TimeoutError:
            raise HostError(
                f"host {self.name} does not answer; make sure that `zorplex-rl worker` runs there, with a "
                "certificate of the same authority as here, and that both machines can reach each other"
            ) from None
        self._renewing = asyncio.create_task(self._keep_lease(token))

    async def _renew(self, token: float) -> float:
        token = await self._ask(self.keeper.renew, token)
        self._heard = time.monotonic()
        return token

    async def _keep_lease(self, token: float) -> None:
        """Renew the lease once a second, until it is over or the host is lost."""
        while self._lease_left > 0 and not self.lost.is_set():
            with suppress(Exception):
                async with asyncio.timeout(self._lease_left):
                    token = await self._renew(token)
            await asyncio.sleep(RENEW_EVERY)
        log.warning(
            "host %s is lost: its keeper has ended, or not answered for %g s",
            self.name,
            LEASE_SECONDS,
        )
        self.lost.set()

    @property
    def _lease_left(self) -> float:
        """Seconds until the host's lease is over, if it does not answer any more."""
        return self._heard + LEASE_SECONDS - time.monotonic()

    async def close(self) -> None:
        """End this run's processes on the host. A lost host ends by itself; one that never served the run is left
        alone."""
        if not self._renewing or self.lost.is_set():
            return
        self._renewing.cancel()
        with suppress(Exception):
            async with asyncio.timeout(LEASE_SECONDS):
                await self.mesh.shutdown()

    async def end(self, pids: Sequence[int]) -> None:
        """End ``pids`` on the host. Returns once they cannot be running any more: killed, or ended with its lease."""
        with suppress(Exception):
            await self._ask(self.keeper.end, pids)
            return
        await self.lost.wait()
        # A negative time is no wait.
        await asyncio.sleep(self._lease_left + MARGIN_SECONDS)

    async def wait_for(self, answer: Awaitable[Result]) -> Result:
        """Return the result of ``answer``. Raises HostError if the host is lost first."""
        done = await race(answer, self.lost)
        if done:
            return done.result()
        raise HostError(f"host {self.name} is lost")

    @asynccontextmanager
    async def mirror(self, folder: Path, is_filled: bool) -> AsyncIterator[str]:
        there = await self._send(folder) if is_filled else await self._ask(self.keeper.make_folder)
        try:
            yield there
            if not is_filled:
                await self._fetch(there, folder)
        finally:
            with suppress(Exception):
                await self._ask(self.keeper.remove_folder, there)

    async def _send(self, folder: Path) -> str:
        """Copy the files of ``folder`` to a new folder of the host. Returns its path there."""
        there: str = await self._ask(self.keeper.make_folder)
        for name, offset in parts_in(folder):
            part = await asyncio.to_thread(read_part, folder / name, offset)
            await self._ask(self.keeper.write, f"{there}/{name}", offset, part)
        return there

    async def _fetch(self, there: str, folder: Path) -> None:
        """Copy the files of the host's folder ``there`` to ``folder``."""
        for name, offset in await self._ask(self.keeper.list_parts, there):
            part = await self._ask(self.keeper.read, f"{there}/{name}", offset)
            await asyncio.to_thread(write_part, folder / name, offset, part)

    async def _ask(self, endpoint: Any, *args: Any) -> Any:
        """Return the keeper's answer. Raises HostError if the host is lost: it is when its keeper ends."""
        try:
            return await self.wait_for(endpoint.call_one(*args).as_asyncio())
        except ReplicaDied as error:
            self.lost.set()
            raise HostError(f"host {self.name} is lost: its keeper has ended") from error

    async def config(self, config: Config) -> Config:
        """Return ``config`` with a policy that the host can load. A folder is copied there once."""
        folder = Path(config.policy)
        if not folder.is_dir():
            return config
        if self._policy is None or (self._policy.done() and self._policy.exception()):
            self._policy = asyncio.create_task(self._send(folder))
        return config.changed(policy=await asyncio.shield(self._policy))

    def devices(self, config: Config, number: int, processes: int) -> list[str]:
        """Return a device for each of ``processes``, from GPU ``number`` on; with fewer GPUs, they share."""
        if config.device == "cuda" and not self.gpus:
            raise HostError(
                f"--device is cuda, but {self.name} has no CUDA device; use --device auto or cpu"
            )
        on_gpus = self.gpus and config.device != "cpu"
        return [
            f"cuda:{(number + rank) % self.gpus}" if on_gpus else "cpu" for rank in range(processes)
        ]


class Hosts:
    """Place a run's replicas on its hosts; without hosts, on this machine."""

    def __init__(self, config: Config, hosts: Sequence[Host] = ()) -> None:
        self.config = config
        self.hosts = hosts

    def place(self, replica: str) -> Host | None:
        """Return the host for ``replica``; None is this machine. Raises HostError if all hosts are lost."""
        role, _, number = replica.rpartition("_")
        if not self.hosts or (role or replica) not in REMOTE_ROLES:
            return None
        alive = [host for host in self.hosts if not host.lost.is_set()]
        if not alive:
            raise HostError(f"no host is left on which {replica} could run")
        return alive[0] if role in ("", "trainer") else alive[(int(number) + 1) % len(alive)]

    def start(
        self,
        start_on: Callable[[Config, Sequence[str], Machine], ReplicaStart],
        devices: Sequence[str],
    ) -> ReplicaStart:
        """Return a function that starts a replica on its host: with what ``start_on(config, devices,
        machine)`` returns. ``devices`` are those of this machine; a host has others."""

        async def start(name: str) -> Any:
            number = int(name.rpartition("_")[2]) if name.startswith("generator") else 0
            while host := self.place(name):
                there = host.devices(self.config, number, len(devices))
                try:
                    config = await host.wait_for(host.config(self.config))
                    return await host.wait_for(start_on(config, there, host)(name))
                except HostError:
                    # A failed probe may come before the end of the lease: then the replacement began on
                    # the same host, and goes to another one now.
                    if not host.lost.is_set():
                        raise
            return await start_on(self.config, devices, THIS_MACHINE)(name)

        return start


def parse_hosts(text: str) -> tuple[str, list[str]]:
    """Return the kind of ``--hosts`` and the addresses; for processes, a name for each.

    >>> parse_hosts("attach:tls://10.0.0.2:4444,tls://10.0.0.3:4444")
    ('attach', ['tls://10.0.0.2:4444', 'tls://10.0.0.3:4444'])
    """
    kind, _, rest = text.partition(":")
    if kind == "processes" and rest.isdecimal() and 0 < int(rest) < 1000:
        return kind, [f"process {number}" for number in range(int(rest))]
    addresses = rest.split(",")
    if kind == "attach" and all(
        urlsplit(a).scheme in ("tls", "tcp") and urlsplit(a).port for a in addresses
    ):
        return kind, addresses
    if text in ("this", "job"):
        return kind, []
    raise ConfigError(
        f"--hosts is {text!r}; expected this, processes:N or attach:tls://HOST:PORT,…"
    )


def check_encryption(addresses: Sequence[str], insecure: bool) -> None:
    """Raise ConfigError for an address without TLS, unless ``insecure``, and for TLS without this machine's
    files."""
    for address in addresses:
        if not address.startswith("tls://") and not insecure:
            raise ConfigError(
                f"{address} is not encrypted, and anyone who reaches it can run programs as you; use tls:// "
                "(docs/HOSTS.md), or give --insecure if you trust that network"
            )
        missing = [name for name in TLS_FILES if not Path(os.environ.get(name, "")).is_file()]
        if address.startswith("tls://") and missing:
            raise ConfigError(
                f"{address} needs this machine's certificate: {missing[0]} names no file (docs/HOSTS.md)"
            )


def own_address(peer: str) -> str:
    """Return this machine's address on the network of ``peer``, with a free port. Raises HostError."""
    there = urlsplit(peer)
    try:
        family, _, _, _, target = socket.getaddrinfo(
            there.hostname, there.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as route:
            # This sends nothing: it only looks up the route.
            route.connect(target)
            host = route.getsockname()[0]
        with socket.create_server((host, 0), family=family) as free:
            port = free.getsockname()[1]
    except OSError as error:
        raise HostError(
            f"there is no route to {peer} ({error.strerror or error}); check its name and the network"
        ) from error
    name = f"[{host}]" if ":" in host else host
    return f"{there.scheme}://{name}:{port}"


@asynccontextmanager
async def open_hosts(config: Config, given: Sequence[Any] = ()) -> AsyncIterator[Hosts]:
    """Connect to every host of ``config``, or to the ``given`` meshes of one host each. Close all of them at
    the end. Raises HostError."""
    kind, addresses = parse_hosts(config.hosts)
    async with AsyncExitStack() as around:
        names = addresses
        if kind == "processes":
            folder = around.enter_context(socket_folder())
            addresses = [f"ipc://{folder}/host_{number}" for number in range(len(names))]
            for address in addresses:
                around.enter_context(worker_loop(address))
        elif kind == "attach":
            monarch.actor.enable_transport(own_address(addresses[0]))
        if addresses:
            start_monarch()
        meshes = [
            monarch.actor.attach_to_workers(ca="trust_all_connections", workers=[a])
            for a in addresses
        ]
        names += [f"node {number}" for number in range(len(given))]
        hosts = [Host(name, mesh) for name, mesh in zip(names, [*meshes, *given], strict=True)]
        for host in hosts:
            around.push_async_callback(host.close)
        await run_together(*(host.greet() for host in hosts))
        yield Hosts(config, hosts)
