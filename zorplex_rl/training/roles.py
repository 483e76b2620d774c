"""The roles of a run: the processes that it consists of, opened together and stopped together.

services        generators, reward, tools, reference: any replica may die at any time
trainer         comes back from its last checkpoint
dataset, replay buffer      small, and one of each: if one of these dies, so does the run
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from zorplex_rl.config import Config
from zorplex_rl.devices import devices_of
from zorplex_rl.hosts.hosts import Hosts
from zorplex_rl.run.timeline import Span
from zorplex_rl.services.machine import Machine
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.replica import ReplicaStart
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.runtime import run_together
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.training import actors
from zorplex_rl.training.generator import GeneratorActor, GeneratorHandle
from zorplex_rl.training.trainer import TrainerHandle
from zorplex_rl.training.trainer_group import trainer_of

Result = TypeVar("Result")
PROBE_SECONDS = 10.0  # torch can hold up all else in a replica that computes
LAST_PROBE_SECONDS = 60.0  # what cannot be replaced may also be slow: without it the run is over
# Options of a service whose requests only wait: a replica can have thousands.
MANY: dict[str, Any] = {"max_in_flight": 4096, "max_queue": 65536, "wait_timeout": 120.0}


class Roles:
    """The services of one run. ``on_restart`` is told of each replica that was replaced, and in
    which role."""

    def __init__(
        self, config: Config, hosts: Hosts, on_restart: Callable[[str, Restart], None]
    ) -> None:
        source = EnvironmentSource.of(config)
        devices = devices_of(config)
        self.device = devices["trainer rank 0"]
        self.services = services_of(config, source, hosts, devices)
        of_trainer = [device for name, device in devices.items() if name.startswith("trainer")]
        self.trainer = TrainerHandle(trainer_of(config, of_trainer, hosts))
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
        """Start all processes; they load side by side. If one cannot, raises why."""
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
        """Return what ``work`` returns. Cancels it, and raises why, if a role is given up."""
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
        """Have ``episodes`` scored, in place. The reward service is sent their texts alone."""
        attempts = [episode.attempt for episode in episodes]
        scores = await self.services["reward"].score.route(attempts)
        for episode, score in zip(episodes, scores, strict=True):
            episode.score = score

    async def drain_spans(self) -> list[Span]:
        """Return what the timed roles have recorded since the last call; dead ones say nothing."""
        spans: list[Span] = []
        for answers in await asyncio.gather(
            *(service.drain_spans.fanout() for service in self._timed)
        ):
            for answer in answers:
                if isinstance(answer, Exception):
                    continue
                # A trainer of several processes answers with a list for each: the first one counts.
                of_several = bool(answer) and isinstance(answer[0], list)
                spans += answer[0] if of_several else answer
        return spans


def service_of_one(role: str, actor_class: type, *args: Any) -> Service:
    """Return a role's only service. Its requests may wait: a generator's for work."""
    options = ServiceOptions(probe_timeout=LAST_PROBE_SECONDS, irreplaceable=True, **MANY)
    return Service(role, replicas_of(actor_class, *args), options)


def services_of(
    config: Config, source: EnvironmentSource, hosts: Hosts, devices: dict[str, str]
) -> dict[str, Service]:
    """Return the services of ``config``, not yet open. ``source`` is of their environment."""
    tools = "tools" if config.tool_latency > 0 else None

    def on_hosts(actor_class: type, devices: Sequence[str], *args: Any) -> ReplicaStart:
        def start_on(config: Config, devices: Sequence[str], machine: Machine) -> ReplicaStart:
            return replicas_of(actor_class, config, *devices, *args, named=True, machine=machine)

        return hosts.start(start_on, devices)

    async def start_generator(name: str) -> Any:
        device = devices.get(name, devices["trainer rank 0"])
        start = on_hosts(GeneratorActor, [device], tools, source)
        return await start(name)

    def stateless(role: str, start: ReplicaStart, endpoint: str, **options: Any) -> Service:
        only = (endpoint,)
        return Service(
            role,
            start,
            ServiceOptions(probe_timeout=PROBE_SECONDS, progress=only, idempotent=only, **options),
        )

    of_generators = ServiceOptions(
        replicas=config.services.generators,
        spares=int(config.services.spares),
        probe_timeout=PROBE_SECONDS,
        progress=("generate", "evaluate"),
    )
    services = {
        "generator": Service("generator", start_generator, of_generators),
        "reward": stateless("reward", replicas_of(actors.RewardActor, source, named=True), "score"),
    }
    if config.learner.kl_coefficient > 0 and not config.lora_rank:
        start = on_hosts(actors.ReferenceActor, [devices["reference"]])
        services["reference"] = stateless("reference", start, "logprobs")
    if tools:
        services[tools] = stateless(
            tools, on_hosts(actors.ToolActor, [], source), "execute", **MANY
        )
    return services
