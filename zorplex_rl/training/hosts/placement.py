"""Which machines a run has, and which role lives on which of them.

    --hosts this                          every process on this machine (the default): nothing below is used
    --hosts processes:N                   N workers on this machine, each with processes of its own, to look at what hosts are
    --hosts attach:tls://HOST:PORT,…      machines on which ``zorplex-rl worker --listen tls://HOST:PORT`` runs (tcp://: not encrypted)
    --hosts slurm:N, kubernetes:N         what a cluster's scheduler lends (``clusters.py``)

    trainer                first host, with all its processes; if that is lost, another one
    generators, spares     one after the other on the host with the fewest replicas
    tools, reference       likewise
    controller, dataset, replay buffer, advantages, rewards     this machine: the controller is who asks them

A replica that is replaced gets a host that is alive at that moment. When none is left, the run ends, and can be resumed on others.

A new kind of hosts is an entry in ``OPENERS``: an asynchronous context manager that makes one Monarch host mesh for each host, says by which
address it is reached, and takes down what it has made. Everything else (leases, versions, placement) is the same for all.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from zorplex_rl.config import Config, HostsConfig
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services.host import Host
from zorplex_rl.services.own_folder import own_folder, temporary_files_in
from zorplex_rl.services.replica import Replica, ReplicaStart, replicas_of, spawn
from zorplex_rl.services.replica_set import GiveUp
from zorplex_rl.services.runtime import SECRET, Actor, start_runtime
from zorplex_rl.services.tls import TLS, check_files
from zorplex_rl.timeline import Span
from zorplex_rl.training.devices import names_of_ranks
from zorplex_rl.training.hosts.attached import Reached, attach_to, own_address
from zorplex_rl.training.hosts.clusters import (
    check_kubernetes,
    check_slurm,
    kubernetes_objects,
    open_kubernetes,
    open_slurm,
    slurm_script,
)

THIS = "this machine"
MESH = "host"


@dataclass(frozen=True, slots=True)
class HostsSpec:
    """What ``--hosts`` asks for: a kind, a number of hosts, and their addresses if they have any."""

    kind: str
    count: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return one name for each host."""
        if self.addresses:
            return [address.partition("://")[2] for address in self.addresses]
        return [f"{self.kind} {number}" for number in range(self.count)]


def parse_hosts(text: str) -> HostsSpec:
    """Return what ``text``, the value of ``--hosts``, asks for. Raises ConfigError.

    >>> parse_hosts("attach:tls://10.0.0.2:4444,tls://10.0.0.3:4444").names
    ['10.0.0.2:4444', '10.0.0.3:4444']
    """
    kind, _, rest = text.partition(":")
    if kind not in PARSERS:
        raise ConfigError(f"--hosts is {text[:60]!r}; expected one of {', '.join(FORMS)}")
    return PARSERS[kind](rest)


def check_hosts(config: Config) -> None:
    """Raise ConfigError for the first setting of ``config.cluster`` that cannot work."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    if settings.listen is not None:
        check_address(settings.listen, "--listen")
        if spec.kind != "attach":
            raise ConfigError("--listen is for --hosts attach:…; leave it out")
    if settings.trainer_host >= max(1, spec.count):
        raise ConfigError(
            f"--trainer-host is {settings.trainer_host}, but --hosts names {spec.count}; they are numbered from 0"
        )


def check_cluster(config: Config) -> None:
    """Raise ConfigError if what ``--hosts`` needs is missing: the programs of a scheduler, or the machines of a network."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    if spec.kind == "attach":
        check_encryption(
            "--hosts", [*spec.addresses, *filter(None, [settings.listen])], settings.tls, settings.insecure
        )
    elif spec.kind == "kubernetes" and not settings.insecure:
        raise ConfigError(
            f"--hosts is {settings.hosts!r}, and Monarch's channel to pods is plain TCP, which others may read and use; "
            "give --insecure if you trust that network"
        )
    match spec.kind:
        case "attach":
            _check_network(spec, config.cluster.listen)
            if folder := tls_folder(spec.addresses[0], config.cluster.tls):
                with contextlib.suppress(HostError):
                    check_files(folder, config.cluster.listen or own_address(spec.addresses[0]))
        case "slurm":
            check_slurm(config.cluster)
        case "kubernetes":
            check_kubernetes(config.cluster)


def cluster_request(config: Config) -> str:
    """Return what the scheduler of ``--hosts`` would be sent, or nothing where there is none. Nothing is sent."""
    spec = parse_hosts(config.cluster.hosts)
    match spec.kind:
        case "slurm":
            return (
                f"submitted {spec.count} times, each with names and ids of its own:\n\n{slurm_script(config.cluster)}"
            )
        case "kubernetes":
            return json.dumps(kubernetes_objects(spec.count, config.cluster), indent=2)
    return ""


def _parse_this(rest: str) -> HostsSpec:
    if rest:
        raise ConfigError(f"--hosts is 'this:{rest[:60]}'; expected this, alone")
    return HostsSpec("this")


def _parse_processes(rest: str) -> HostsSpec:
    if not (rest.isdecimal() and 1 <= len(rest) <= 3 and int(rest) > 0):
        raise ConfigError(f"--hosts is 'processes:{rest[:60]}'; expected a number of 1 to 999, as in processes:2")
    return HostsSpec("processes", int(rest))


def _parse_attach(rest: str) -> HostsSpec:
    addresses = tuple(rest.split(","))
    for address in addresses:
        check_address(address, "--hosts")
    seen: set[tuple[str, int]] = set()
    for address in addresses:
        if (place := _place(address)) in seen:
            raise ConfigError(f"--hosts names {address} twice; each host has an address of its own")
        seen.add(place)
    return HostsSpec("attach", len(addresses), addresses)


def _parse_nodes(kind: str, rest: str) -> HostsSpec:
    if not (rest.isdecimal() and 1 <= len(rest) <= 3 and int(rest) > 0):
        raise ConfigError(f"--hosts is '{kind}:{rest[:60]}'; expected a number of 1 to 999, as in {kind}:2")
    return HostsSpec(kind, int(rest))


def check_address(address: str, flag: str) -> None:
    """Raise ConfigError unless ``address`` is ``tls://HOST:PORT`` or ``tcp://HOST:PORT``, with a host that others can reach by it."""
    shown = repr(address[:60])
    if not re.fullmatch(r"(?:tls|tcp)://([^\s/:@*?#\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", address):
        raise ConfigError(f"{flag} is given the address {shown}; expected tls://HOST:PORT, or tcp://HOST:PORT")
    if not 0 < int(address.rpartition(":")[2]) < 65536:
        raise ConfigError(f"{flag} is given the address {shown}; a port is between 1 and 65535")
    try:
        host, _ = _place(address)
    except ValueError:
        what = "IPv6 address" if "[" in address else "name that a machine can have"
        raise ConfigError(f"{flag} is given the address {shown}, whose host is no {what}; correct it") from None
    if host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"{flag} is given the address {shown}, which means all networks; name one address of this machine"
        )


def _place(address: str) -> tuple[str, int]:
    """Return the host and the port of ``address``, each host written in one way. Raises ValueError if its host cannot exist.

    >>> _place("tcp://LocalHost:04444"), _place("tcp://[0:0::1]:4444"), _place("tcp://127.1:4444")
    (('localhost', 4444), ('::1', 4444), ('127.0.0.1', 4444))
    """
    host, _, port = address.partition("://")[2].rpartition(":")
    if host.startswith("["):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    with contextlib.suppress(OSError):
        # Also the short forms that the system takes, as 0 for 0.0.0.0.
        return socket.inet_ntoa(socket.inet_aton(host)), int(port)
    return host.encode("idna").decode().lower(), int(port)


def check_encryption(flag: str, addresses: Sequence[str], tls: str | None, insecure: bool) -> None:
    """Raise ConfigError if ``addresses``, given with ``flag``, go over a network without TLS and nobody has allowed it, or with TLS and no files."""
    schemes = {address.partition("://")[0] for address in addresses}
    if len(schemes) > 1:
        raise ConfigError(f"{flag} and --listen have tls:// and tcp://; all machines of a run use one of them")
    if schemes == {"tls"}:
        if insecure:
            raise ConfigError(f"--insecure allows tcp://, and {flag} says {addresses[0]}; leave one of them out")
        if not tls_folder(addresses[0], tls):
            raise ConfigError(
                f"{flag} says {addresses[0]}, but not where this machine's certificate is; give --tls FOLDER, which `zorplex-rl certificates` makes"
            )
        return
    if tls:
        raise ConfigError(f"--tls is {tls!r}, but {flag} says {addresses[0]}; write tls://, or leave --tls out")
    for address in addresses:
        host, _ = _place(address)
        if not (insecure or host in ("localhost", "::1") or host.startswith("127.")):
            raise ConfigError(
                f'{flag} says {address}, where nothing is encrypted and everybody may run programs as you; use tls:// (README, "Several '
                'machines"), or give --insecure if you trust that network'
            )


def tls_folder(address: str, given: str | None) -> Path | None:
    """Return the folder of this machine's TLS files if ``address`` needs them and they are named: ``given``, or in the environment."""
    folder = given or os.environ.get(TLS)
    return Path(folder) if address.startswith("tls://") and folder else None


def _check_network(spec: HostsSpec, listen: str | None) -> None:
    """Raise ConfigError if a host of ``spec`` has no address or that of another one, or if nothing can listen at ``listen``. Sends them nothing."""
    seen: dict[tuple[str, int], str] = {}
    for address in spec.addresses:
        host, port = _place(address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
        except OSError as error:
            raise ConfigError(
                f"--hosts names {host}, whose address cannot be found ({error.strerror}); correct the name, or give the host's address"
            ) from error
        if other := seen.get(place := (str(found[0]), port)):
            raise ConfigError(f"--hosts names {address}, which is {other}; each host has an address of its own")
        seen[place] = address
    if listen:
        check_listen(listen)


def check_listen(address: str) -> None:
    """Raise ConfigError if nothing can listen at ``address``, the value of --listen: it is not this machine's, or its port is taken."""
    host, port = _place(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise ConfigError(
            f"--listen is {address!r}, where this machine cannot listen ({error.strerror}); give an address of this machine with a free port"
        ) from error


PARSERS: dict[str, Callable[[str], HostsSpec]] = {
    "this": _parse_this,
    "processes": _parse_processes,
    "attach": _parse_attach,
    "slurm": partial(_parse_nodes, "slurm"),
    "kubernetes": partial(_parse_nodes, "kubernetes"),
}
FORMS = ("this", "processes:N", "attach:tls://HOST:PORT,…", "slurm:N", "kubernetes:N")


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
async def open_hosts(config: Config) -> "AsyncIterator[Hosts]":
    """Reach every host of ``config``, and let go of all of them at the end. Raises HostError if one does not answer or is of another version."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    if spec.kind == "this":
        yield Hosts(config, [])
        return
    async with OPENERS[spec.kind](spec, settings) as reached:
        found = [
            Host(name, one.mesh, settings.lease, one.address, one.needed)
            for name, one in zip(spec.names, reached, strict=True)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for host in found:
                    group.create_task(host.open())
            yield Hosts(config, found)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await asyncio.gather(*(host.close() for host in found))


class Hosts:
    """The hosts of a run, and the placement of its replicas on them. Without any, everything is started on this machine."""

    def __init__(self, config: Config, hosts: Sequence[Host]) -> None:
        self.config, self.hosts = config, list(hosts)
        self._policies: dict[Host, asyncio.Future[str]] = {}
        self._by_name = {host.name: host for host in self.hosts}
        self._plan = plan(config, self.names)

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]

    @property
    def alive(self) -> list[Host]:
        return [host for host in self.hosts if host.is_alive]

    async def spawn(self, host: str, name: str, actor_class: type[Actor], *args: Any, **kwargs: Any) -> Replica:
        """Start ``actor_class(*args)`` as ``name`` on the host of that name. Raises HostError if it is lost meanwhile."""
        place = self._by_name[host]
        return await place.unless_lost(spawn(name, actor_class, *args, host=place, **kwargs))

    def in_our_time(self, spans: Iterable[Span]) -> list[Span]:
        """Return ``spans`` on this machine's clock: every host has one of its own."""
        if not self.hosts:
            return list(spans)
        ahead = {replica.name: host.clock_ahead for host in self.hosts for replica in host.replicas}
        return [
            replace(span, start=span.start - ahead.get(span.actor, 0.0), end=span.end - ahead.get(span.actor, 0.0))
            for span in spans
        ]

    def place(self, replica: str) -> Host | None:
        """Return the host for a replica of this name, or None for this machine. Raises GiveUp if all hosts are lost."""
        planned = self._plan.get(replica)
        if not self.hosts or planned == THIS or _role_of(replica) not in SPREAD:
            return None
        if planned and (host := self._by_name[planned]).is_alive:
            return host
        if not self.alive:
            raise GiveUp(
                HostError(
                    f"no host is left on which {replica} could run; the last one, {self.hosts[-1].name}, {self.hosts[-1].reason}"
                )
            )
        return min(self.alive, key=lambda host: host.occupants)

    def start(self, actor_class: type[Actor], device: str | None = None, *args: Any) -> ReplicaStart:
        """Return what starts replicas of ``actor_class(name, config, device, *args)``, each where it belongs; without ``device`` if it has none."""

        def on(config: Config, devices: Sequence[str], host: Host | None) -> ReplicaStart:
            return replicas_of(actor_class, config, *devices, *args, named=True, host=host)

        return self.start_as(on, [device] if device else [])

    def start_as(
        self, on: Callable[[Config, Sequence[str], Host | None], ReplicaStart], devices: Sequence[str]
    ) -> ReplicaStart:
        """Return what starts replicas, each where it belongs, as ``on(config, devices, host)`` says.

        ``devices`` are those of this machine. On a host, the processes there take turns with its own devices.
        """

        async def start(name: str) -> Replica:
            host = self.place(name)
            if host is None:
                return await on(self.config, devices, None)(name)
            config = await host.unless_lost(self._config_on(host))
            return await host.unless_lost(on(config, self._devices_on(host, len(devices)), host)(name))

        return start

    def _devices_on(self, host: Host, wanted: int) -> list[str]:
        """Return the devices of a replica of ``wanted`` processes with a model. Raises GiveUp if ``host`` has not enough of them."""
        count = host.greeting.cuda_count if host.greeting else 0
        if not wanted:
            return []
        if self.config.device == "cuda" and not count:
            raise GiveUp(
                HostError(f"--device is cuda, but host {host.name} has no CUDA device; use --device auto or cpu")
            )
        if self.config.device == "cpu" or not count:
            return ["cpu"] * wanted
        if wanted > count:
            raise GiveUp(
                HostError(
                    f"--trainer-processes is {wanted}, but host {host.name} has {count} GPU; each process needs one of its own, so use fewer, "
                    f"or --device cpu"
                )
            )
        return [f"cuda:{(host.occupants + rank) % count}" for rank in range(wanted)]

    async def _config_on(self, host: Host) -> Config:
        """Return the configuration with a policy that can be loaded on ``host``: one that is not in the package travels there, once."""
        from zorplex_rl.policy.load import check_policy

        if self.config.policy == "embedded":
            return self.config
        sent = self._policies.get(host)
        if sent is None or (sent.done() and (sent.cancelled() or sent.exception())):
            # What has failed once (a disk that was full, a message that was lost) is tried again by the next replica.
            source = Path(check_policy(self.config.policy))
            self._policies[host] = asyncio.ensure_future(host.send_folder(source))
        return self.config.changed(policy=await asyncio.shield(self._policies[host]))


SPREAD = ("trainer", "generator", "reference", "tools")
"""Roles that live on hosts, where there are some. The others are small, and beside their caller: the controller."""


def _role_of(replica: str) -> str:
    return replica.rpartition("_")[0] or replica


def plan(config: Config, hosts: Sequence[str]) -> dict[str, str]:
    """Return for each replica with which a run begins, and each rank of its trainer, the name of its host; without hosts, this machine.

    >>> plan(Config(), ["a", "b"])["generator_0"]
    'b'
    """
    services = config.services
    ranks = names_of_ranks(services.trainer_processes)
    replicas = [*ranks, *(f"generator_{number}" for number in range(services.generators + services.spares))]
    replicas += ["reference_0"] * (config.learner.kl_coefficient > 0)
    replicas += [f"tools_{number}" for number in range(services.tool_replicas)] * (config.tool_latency > 0)
    placed: dict[str, str] = {}
    occupied = dict.fromkeys(hosts, 0)
    for replica in replicas:
        free = list(hosts)
        if free and replica in ranks:
            free = [free[config.cluster.trainer_host % len(free)]]
        elif config.cluster.generators_on == "others" and len(free) > 1:
            free.remove(placed["trainer"])
        where = min(free, key=lambda host: occupied[host]) if free else THIS
        placed[replica] = where
        if hosts:
            occupied[where] += 1
    small = ["dataset", "replay", "advantage", *(f"reward_{number}" for number in range(services.reward_replicas))]
    return placed | dict.fromkeys(small, THIS)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of ``--plan``: a host, and what would live there."""

    host: str
    replicas: tuple[str, ...]

    @classmethod
    def rows(cls, config: Config) -> list[Self]:
        """Return one row for each host, this machine first."""
        check_hosts(config)
        spec = parse_hosts(config.cluster.hosts)
        placed = plan(config, spec.names)
        return [cls(host, tuple(r for r, where in placed.items() if where == host)) for host in (THIS, *spec.names)]
