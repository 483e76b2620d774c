"""Which machines a run has, and which role lives on which of them.

    --hosts this                          every process on this machine (the default): nothing below is used
    --hosts processes:N                   N workers on this machine, each with processes of its own, to look at what hosts are
    --hosts attach:tls://HOST:PORT,…      machines on which ``zorplex-rl worker --listen tls://HOST:PORT`` runs (tcp://: not encrypted)
    --hosts slurm:N, kubernetes:N         what a cluster's scheduler lends (``slurm.py``, ``kubernetes.py``)

    trainer                first host, with all its processes; if that is lost, another one
    generators, spares     one after the other on the host with the fewest replicas
    tools, reference       likewise
    controller, dataset, replay buffer, advantages, rewards     this machine: the controller is who asks them

A replacement gets a host that is alive then. When none is left, the run ends, to be resumed.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.errors import HostError
from zorplex_rl.services.host import Host
from zorplex_rl.services.replica import Replica, ReplicaStart, replicas_of, spawn
from zorplex_rl.services.runtime import Actor
from zorplex_rl.services.supply import GiveUp
from zorplex_rl.timeline import Span
from zorplex_rl.training.devices import names_of_ranks
from zorplex_rl.training.hosts.spec import check_hosts, parse_hosts

THIS = "this machine"


class Hosts:
    """Hold a run's hosts, and place its replicas on them. Without any, all is on this machine."""

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
        """Start ``actor_class(*args)`` as ``name`` on that host. Raises HostError if it is lost."""
        place = self._by_name[host]
        return await place.unless_lost(spawn(name, actor_class, *args, host=place, **kwargs))

    def in_our_time(self, spans: Iterable[Span]) -> list[Span]:
        """Return ``spans`` on this machine's clock: every host has one of its own."""
        if not self.hosts:
            return list(spans)
        ahead = {tenant.name: host.clock_ahead for host in self.hosts for tenant in host.tenants}
        return [
            replace(span, start=span.start - ahead.get(span.actor, 0.0), end=span.end - ahead.get(span.actor, 0.0))
            for span in spans
        ]

    def place(self, replica: str) -> Host | None:
        """Return the host for a replica; None is this machine. Raises GiveUp if all are lost."""
        planned = self._plan.get(replica)
        if not self.hosts or planned == THIS or _role_of(replica) not in SPREAD:
            return None
        if planned and (host := self._by_name[planned]).is_alive:
            return host
        if not self.alive:
            last = f"the last one, {self.hosts[-1].name}, {self.hosts[-1].reason}"
            raise GiveUp(HostError(f"no host is left on which {replica} could run; {last}"))
        return min(self.alive, key=lambda host: host.occupants)

    def start(self, actor_class: type[Actor], device: str | None = None, *args: Any) -> ReplicaStart:
        """Return what starts ``actor_class(name, config[, device], *args)`` where it belongs."""

        def on(config: Config, devices: Sequence[str], host: Host | None) -> ReplicaStart:
            return replicas_of(actor_class, config, *devices, *args, named=True, host=host)

        return self.start_as(on, [device] if device else [])

    def start_as(
        self, on: Callable[[Config, Sequence[str], Host | None], ReplicaStart], devices: Sequence[str]
    ) -> ReplicaStart:
        """Return what starts replicas in their places, as ``on(config, devices, host)`` says.
        ``devices`` are this machine's. On a host, processes take turns with its own."""

        async def start(name: str) -> Replica:
            host = self.place(name)
            if host is None:
                return await on(self.config, devices, None)(name)
            config = await host.unless_lost(self._config_on(host))
            return await host.unless_lost(on(config, self._devices_on(host, len(devices)), host)(name))

        return start

    def _devices_on(self, host: Host, wanted: int) -> list[str]:
        """Return devices for ``wanted`` processes of models. Raises GiveUp if there are too few."""
        count = host.info.cuda_count if host.info else 0
        if not wanted:
            return []
        if self.config.device == "cuda" and not count:
            raise GiveUp(HostError(f"--device is cuda, but {host.name} has no CUDA device; use --device auto or cpu"))
        if self.config.device == "cpu" or not count:
            return ["cpu"] * wanted
        if wanted > count:
            fewer = "each process needs one of its own, so use fewer, or --device cpu"
            raise GiveUp(HostError(f"--trainer-processes is {wanted}, but host {host.name} has {count} GPU; {fewer}"))
        return [f"cuda:{(host.occupants + rank) % count}" for rank in range(wanted)]

    async def _config_on(self, host: Host) -> Config:
        """Return the configuration with a policy that ``host`` can load: it travels there, once."""
        from zorplex_rl.policy.load import policy_folder

        if self.config.policy == "embedded":
            return self.config
        sent = self._policies.get(host)
        if sent is None or (sent.done() and (sent.cancelled() or sent.exception())):
            # What has failed once (a full disk, a lost message) is tried again by the next replica.
            source = policy_folder(self.config.policy)
            self._policies[host] = asyncio.ensure_future(host.send_folder(source))
        return self.config.changed(policy=await asyncio.shield(self._policies[host]))


SPREAD = ("trainer", "generator", "reference", "tools")
"""Roles that live on hosts, if there are any. The small others are beside the controller."""


def _role_of(replica: str) -> str:
    return replica.rpartition("_")[0] or replica


def plan(config: Config, hosts: Sequence[str]) -> dict[str, str]:
    """Return for each first replica, and the trainer's ranks, the name of its host.

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
