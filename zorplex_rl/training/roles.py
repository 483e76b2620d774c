"""The roles of a run: all its processes, which start and stop together.

services                    generators, reward, tools, reference: any replica may die at any time
trainer                     a new one repeats the steps since the last checkpoint, on the same batches
dataset, replay buffer      small, and one of each: if one of these dies, the run ends
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.devices import devices_of
from zorplex_rl.hosts.hosts import Hosts
from zorplex_rl.run.timeline import Span
from zorplex_rl.services.machine import Machine
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.replica import ReplicaStart
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.runtime import Result, run_together
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.training import actors
from zorplex_rl.training.generator import GeneratorActor, GeneratorHandle
from zorplex_rl.training.trainer import TrainerHandle
from zorplex_rl.training.trainer_group import trainer_of

PROBE_SECONDS = 10.0
"""Limit of a probe. It is generous, because torch can block a process that computes."""
LAST_PROBE_SECONDS = 60.0
"""Limit for a role that cannot be replaced: the run would be over."""
MANY: dict[str, Any] = {"max_in_flight": 4096, "max_queue": 65536, "wait_timeout": 120.0}
"""Options of a service whose requests mostly wait: a replica can serve thousands at once."""


class Roles:
    """The services of one run. ``on_restart(role, restart)`` is called for each replaced replica."""

    def __init__(
        self,
        config: Config,
        hosts: Hosts,
        on_restart: Callable[[str, Restart], None],
    ) -> None:
        source = EnvironmentSource.of(config)
        devices = devices_of(config)
        self.device = devices["trainer rank 0"]
        self.services = services_of(config, source, hosts, devices)
        of_ranks = [device for name, device in devices.items() if name.startswith("trainer")]
        self.trainer = TrainerHandle(trainer_of(config, of_ranks, hosts))
        self.dataset = service_of_one("dataset", actors.DatasetActor, source)
        self.replay_buffer = service_of_one("replay_buffer", actors.ReplayBufferActor, config)
        places = range(config.services.generators)
        self.generators = [GeneratorHandle(self.services["generator"], place) for place in places]
        self._timed = [*self.services.values(), self.trainer.service]
        self._all = [*self._timed, self.dataset, self.replay_buffer]
        self._given_up: asyncio.Queue[Exception] = asyncio.Queue()
        for service in self._all:
            service.on_restart = partial(on_restart, service.name)
            service.on_give_up = self._given_up.put_nowait

    async def open(self) -> None:
        """Start all processes side by side. If one cannot start, raises why."""
        await run_together(*(service.open() for service in self._all))
        if "tools" in self.services:
            await register_service(self.services["tools"])

    async def close(self) -> None:
        """Stop every process."""
        await asyncio.shield(asyncio.gather(*(service.close() for service in self._all)))

    @property
    def processes(self) -> dict[str, int]:
        """The process id of each replica, by its name."""
        return {replica.name: replica.pid for service in self._all for replica in service.replicas}

    async def unless_given_up(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of ``work``. If a role is given up, cancel it and raise why."""
        working = asyncio.create_task(work)
        given_up = asyncio.create_task(self._given_up.get())
        try:
            await asyncio.wait({working, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                raise given_up.result()
            return working.result()
        finally:
            working.cancel()
            given_up.cancel()
            await asyncio.gather(working, given_up, return_exceptions=True)

    async def score(self, episodes: Sequence[Episode]) -> None:
        """Score ``episodes`` in place. Only their texts are sent to the reward service."""
        attempts = [episode.attempt for episode in episodes]
        scores = await self.services["reward"].score.route(attempts)
        for episode, score in zip(episodes, scores, strict=True):
            episode.score = score

    async def drain_spans(self) -> list[Span]:
        """Return the spans that the timed roles have recorded since the last call; dead roles
        contribute none."""
        calls = [service.drain_spans.fanout() for service in self._timed]
        spans: list[Span] = []
        for answer in chain.from_iterable(await asyncio.gather(*calls)):
            if isinstance(answer, Exception):
                continue
            # A trainer of several processes answers with a list for each: use that of rank 0.
            of_several = answer and isinstance(answer[0], list)
            spans += answer[0] if of_several else answer
        return spans


def service_of_one(role: str, actor_class: type, *args: Any) -> Service:
    """Return the service of a role with one process. Its requests may wait long, as a generator does for work."""
    options = ServiceOptions(probe_timeout=LAST_PROBE_SECONDS, irreplaceable=True, **MANY)
    return Service(role, replicas_of(actor_class, *args), options)


def stateless(
    role: str,
    start: ReplicaStart,
    endpoint: str,
    **more: Any,
) -> Service:
    """Return a service whose only ``endpoint`` may be called again if a replica fails."""
    names = (endpoint,)
    options = ServiceOptions(probe_timeout=PROBE_SECONDS, progress=names, idempotent=names, **more)
    return Service(role, start, options)


def services_of(
    config: Config,
    source: EnvironmentSource,
    hosts: Hosts,
    devices: dict[str, str],
) -> dict[str, Service]:
    """Return the services of ``config``, not yet open. ``source`` makes their environment."""
    tools = "tools" if config.tool_latency > 0 else None

    def on_hosts(
        actor_class: type,
        devices: Sequence[str],
        *args: Any,
    ) -> ReplicaStart:
        def start_on(config: Config, devices: Sequence[str], machine: Machine) -> ReplicaStart:
            return replicas_of(actor_class, config, *devices, *args, named=True, machine=machine)

        return hosts.start(start_on, devices)

    async def start_generator(name: str) -> Any:
        # A replacement has a higher number than any device.
        device = devices.get(name, devices["trainer rank 0"])
        return await on_hosts(GeneratorActor, [device], tools, source)(name)

    of_generators = ServiceOptions(
        replicas=config.services.generators,
        spares=int(config.services.spares),
        probe_timeout=PROBE_SECONDS,
        progress=("generate", "evaluate"),
    )
    start = replicas_of(actors.RewardActor, source, named=True)
    services = {
        "generator": Service("generator", start_generator, of_generators),
        "reward": stateless("reward", start, "score"),
    }
    if config.learner.kl_coefficient > 0 and not config.lora_rank:
        start = on_hosts(actors.ReferenceActor, [devices["reference"]])
        services["reference"] = stateless("reference", start, "logprobs")
    if tools:
        start = on_hosts(actors.ToolActor, [], source)
        services[tools] = stateless(tools, start, "execute", **MANY)
    return services
