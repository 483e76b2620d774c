"""The machines of a run, and which role lives on which of them.

    --hosts this                            every process on this machine (the default): nothing below is used
    --hosts processes:N                     N workers on this machine, to look at what hosts are
    --hosts attach:tls://HOST:PORT,…        machines on which ``zorplex-rl worker --listen tls://HOST:PORT`` runs
    hosts="job"                             meshes that a job of Monarch has started, given in Python (examples/slurm.py)

    trainer                                 the first host that is alive, with all its processes
    generators, tools, reference            spread over the hosts that are alive, the second one first
    controller, dataset, replay buffer, advantages, rewards     this machine

Between machines everything goes through Monarch's channels, over mutual TLS (docs/HOSTS.md). A host
is lost when it has not answered for a lease (``lease.py``). Its replicas are replaced on those that
are left; when none is left, the run ends, to be resumed.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zorplex_rl import __version__
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.hosts.lease import (
    CHUNK_BYTES,
    LEASE_SECONDS,
    HostKeeper,
    end_with_keeper,
    read_part,
    write_part,
)
from zorplex_rl.hosts.worker import worker_loop
from zorplex_rl.services.machine import THIS_MACHINE, Machine
from zorplex_rl.services.replica import ReplicaStart
from zorplex_rl.services.runtime import (
    ReplicaDied,
    Result,
    done_before,
    monarch,
    run_together,
    socket_folder,
    start_monarch,
)

log = logging.getLogger(__name__)
TLS_FILES = ("HYPERACTOR_TLS_CERT", "HYPERACTOR_TLS_KEY", "HYPERACTOR_TLS_CA")
"""Monarch's environment variables with the PEM files of this machine."""
RENEW_EVERY, MARGIN_SECONDS = 1.0, 1.0
"""The keeper looks at its clock four times a second: a lease counts as over a margin later."""
GREETING_SECONDS = 30.0


class Host(Machine):
    """The controller's view of one host; ``mesh`` is Monarch's."""

    def __init__(self, name: str, mesh: Any) -> None:
        self.name, self.mesh = name, mesh
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
        with contextlib.suppress(Exception):
            return await self._ask(self.keeper.until_one_ends, pids)
        await self.lost.wait()
        return f"its host {self.name} is lost"

    async def greet(self) -> None:
        """Start the host's keeper and hold its lease. Raises HostError if it is silent, serves another
        run, or has another version of the package."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await self.mesh.initialized
                self.keeper = self.mesh.spawn_procs(name="keeper").spawn("keeper", HostKeeper)
                version, self.gpus = await self._ask(self.keeper.info)
                if version != __version__:
                    raise HostError(
                        f"host {self.name} has zorplex-rl {version}, and this is {__version__}; install the same"
                    )
                if not await self._ask(self.keeper.serve):
                    raise HostError(
                        f"host {self.name} serves another run; use other hosts, or wait until that run is over (one that was "
                        f"killed: {LEASE_SECONDS:g} s longer)"
                    )
                token = await self._renew(0.0)
        except TimeoutError:
            raise HostError(
                f"host {self.name} does not answer; make sure that `zorplex-rl worker` runs there, with a certificate of the same "
                "authority as here, and that both machines can reach each other"
            ) from None
        self._renewing = asyncio.create_task(self._keep_lease(token))

    async def _renew(self, token: float) -> float:
        token = await self._ask(self.keeper.renew, token)
        self._heard = time.monotonic()
        return token

    async def _keep_lease(self, token: float) -> None:
        """Extend the lease once a second, until it is over or the host is lost."""
        while (
            not self.lost.is_set() and (left := self._heard + LEASE_SECONDS - time.monotonic()) > 0
        ):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(left):
                    token = await self._renew(token)
            await asyncio.sleep(RENEW_EVERY)
        log.warning(
            "host %s is lost: its keeper has ended, or not answered for %g s",
            self.name,
            LEASE_SECONDS,
        )
        self.lost.set()

    async def close(self) -> None:
        """End what is this run's on the host. A lost one ends by itself; one that never served it goes on."""
        if not self._renewing or self.lost.is_set():
            return
        self._renewing.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEASE_SECONDS):
                await self.mesh.shutdown()

    async def end(self, pids: Sequence[int]) -> None:
        """Return when the host's processes ``pids`` have surely ended: killed, or with its lease."""
        with contextlib.suppress(Exception):
            await self._ask(self.keeper.end, pids)
            return
        await self.lost.wait()
        await asyncio.sleep(
            max(0.0, self._heard + LEASE_SECONDS + MARGIN_SECONDS - time.monotonic())
        )

    async def unless_lost(self, doing: Awaitable[Result]) -> Result:
        """Return what ``doing`` returns. Cancels it and raises HostError if the host is lost."""
        if done := await done_before(doing, self.lost):
            return done.result()
        raise HostError(f"host {self.name} is lost")

    @asynccontextmanager
    async def lend(self, folder: Path, is_filled: bool) -> AsyncIterator[str]:
        there = await self._send(folder) if is_filled else await self._ask(self.keeper.make_folder)
        try:
            yield there
            for name, size in [] if is_filled else await self._ask(self.keeper.list_folder, there):
                for offset in range(0, max(size, 1), CHUNK_BYTES):
                    part = await self._ask(self.keeper.read, f"{there}/{name}", offset)
                    await asyncio.to_thread(write_part, folder / name, offset, part)
        finally:
            with contextlib.suppress(Exception):
                await self._ask(self.keeper.remove_folder, there)

    async def _send(self, folder: Path) -> str:
        """Copy the files of ``folder`` into a new folder of the host. Returns its path there."""
        there = await self._ask(self.keeper.make_folder)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = f"{there}/{path.relative_to(folder).as_posix()}"
            for offset in range(0, max(path.stat().st_size, 1), CHUNK_BYTES):
                await self._ask(
                    self.keeper.write,
                    name,
                    offset,
                    await asyncio.to_thread(read_part, path, offset),
                )
        return there

    async def _ask(self, endpoint: Any, *args: Any) -> Any:
        """Return what the keeper answers. Raises HostError if the host is lost, as it is without a keeper."""
        try:
            return await self.unless_lost(endpoint.call_one(*args).as_asyncio())
        except ReplicaDied as error:
            self.lost.set()
            raise HostError(f"host {self.name} is lost: its keeper has ended") from error

    async def config(self, config: Config) -> Config:
        """Return ``config`` with a policy that the host can load: it travels there, once."""
        if not Path(config.policy).is_dir():
            return config
        if self._policy is None or (self._policy.done() and self._policy.exception()):
            self._policy = asyncio.create_task(self._send(Path(config.policy)))
        return config.changed(policy=await asyncio.shield(self._policy))

    def devices(self, config: Config, number: int, processes: int) -> list[str]:
        """Return devices for ``processes`` from ``number`` on; they share GPUs if there are fewer."""
        if config.device == "cuda" and not self.gpus:
            raise HostError(
                f"--device is cuda, but {self.name} has no CUDA device; use --device auto or cpu"
            )
        on_gpus = self.gpus and config.device != "cpu"
        return [
            f"cuda:{(number + rank) % self.gpus}" if on_gpus else "cpu" for rank in range(processes)
        ]


class Hosts:
    """Place a run's replicas on its hosts. Without any, all is on this machine."""

    def __init__(self, config: Config, hosts: Sequence[Host] = ()) -> None:
        self.config, self.hosts = config, list(hosts)

    def place(self, replica: str) -> Host | None:
        """Return the host for a replica; None is this machine. Raises HostError if all are lost."""
        role, _, number = replica.rpartition("_")
        if not self.hosts or (role or replica) not in (
            "trainer",
            "generator",
            "reference",
            "tools",
        ):
            return None
        if not (alive := [host for host in self.hosts if not host.lost.is_set()]):
            raise HostError(f"no host is left on which {replica} could run")
        return alive[0] if role in ("", "trainer") else alive[(int(number) + 1) % len(alive)]

    def start(
        self,
        start_on: Callable[[Config, Sequence[str], Machine], ReplicaStart],
        devices: Sequence[str],
    ) -> ReplicaStart:
        """Return what starts replicas where they belong, as ``start_on(config, devices, machine)``
        says. ``devices`` are those of this machine; a host has its own."""

        async def start(name: str) -> Any:
            number = int(name.rpartition("_")[2]) if name.startswith("generator") else 0
            while host := self.place(name):
                there = host.devices(self.config, number, len(devices))
                try:
                    config = await host.unless_lost(host.config(self.config))
                    return await host.unless_lost(start_on(config, there, host)(name))
                except HostError:
                    # A probe can notice sooner than the lease that a host is gone, and the new replica was
                    # to start there, too.
                    if not host.lost.is_set():
                        raise
            return await start_on(self.config, devices, THIS_MACHINE)(name)

        return start


def parse_hosts(text: str) -> tuple[str, list[str]]:
    """Return the kind of ``--hosts`` and the addresses, or for processes as many names.

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
    """Raise ConfigError for an address without TLS that ``--insecure`` does not allow, and for TLS
    without this machine's files."""
    for address in addresses:
        if not address.startswith("tls://") and not insecure:
            raise ConfigError(
                f"{address} is not encrypted, and anyone who reaches it can run programs as you; use tls:// (docs/HOSTS.md), or give "
                "--insecure if you trust that network"
            )
        missing = [name for name in TLS_FILES if not Path(os.environ.get(name, "")).is_file()]
        if address.startswith("tls://") and missing:
            raise ConfigError(
                f"{address} needs this machine's certificate: {missing[0]} names no file (docs/HOSTS.md)"
            )


def own_address(peer: str) -> str:
    """Return this machine's address on ``peer``'s network, with a free port. Raises HostError."""
    there = urlsplit(peer)
    try:
        family, _, _, _, target = socket.getaddrinfo(
            there.hostname, there.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as route:
            # Sends nothing: it only looks up the way.
            route.connect(target)
            host = route.getsockname()[0]
        with socket.create_server((host, 0), family=family) as free:
            port = free.getsockname()[1]
    except OSError as error:
        raise HostError(
            f"there is no way to {peer} ({error.strerror or error}); look at its name and at the network"
        ) from error
    return f"{there.scheme}://[{host}]:{port}" if ":" in host else f"{there.scheme}://{host}:{port}"


@asynccontextmanager
async def open_hosts(config: Config, given: Sequence[Any] = ()) -> AsyncIterator[Hosts]:
    """Reach every host of ``config``, or those of the ``given`` host meshes, each of one host, and
    let go of all at the end. Raises HostError."""
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
