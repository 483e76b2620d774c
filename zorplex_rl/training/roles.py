"""Which processes a configuration calls for: what each role is made of, how many there are, and on which devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, replicas_of, spawn
from zorplex_rl.services.service import Service
from zorplex_rl.task.curriculum import Tier
from zorplex_rl.training.actors import AdvantageActor, DatasetActor, ReplayBufferActor, RewardActor, ToolActor
from zorplex_rl.training.devices import assign_devices, count_cuda_devices
from zorplex_rl.training.model_actors import GeneratorActor, ReferenceActor, TrainerActor

BUSY_PROBE_SECONDS = 10.0
"""How long a replica that computes may take to answer a probe: torch can hold up everything else in its process for seconds."""
TOOL_LIMITS = {"max_in_flight": 4096, "max_queue": 65536, "wait_timeout": 120.0}
"""A tool call only waits, so a replica can have thousands."""


def services_of(config: Config, say: Callable[[str], None] = lambda text: None) -> dict[str, Service]:
    """The services of a run, not yet open."""
    devices = _devices(config)
    say(f"starting actors on {devices['trainer']}")
    tools = "tools" if config.tool_latency > 0 else None

    def service(role: str, start: ReplicaStart, **options: Any) -> Service:
        return Service(role, start, ServiceOptions(probe_timeout=BUSY_PROBE_SECONDS, **options))

    async def start_generator(name: str) -> Replica:
        device = devices.get(name, devices["trainer"])
        return await replicas_of(GeneratorActor, name, config, device, tools)(name)

    async def start_reference(name: str) -> Replica:
        return await replicas_of(ReferenceActor, name, config, devices["reference"])(name)

    services = {
        "generator": service("generator", start_generator, replicas=config.generators, spares=config.spares),
        "reward": service(
            "reward",
            lambda name: spawn(name, RewardActor, name),
            replicas=config.reward_replicas,
            idempotent=("score",),
        ),
    }
    if config.kl_coefficient > 0:
        services["reference"] = service("reference", start_reference, idempotent=("logprobs",))
    if tools:
        services[tools] = service(
            tools,
            lambda name: spawn(name, ToolActor, name, config),
            replicas=config.tool_replicas,
            idempotent=("execute",),
            **TOOL_LIMITS,
        )
    return services


async def singletons_of(config: Config, tier: Tier) -> dict[str, Replica]:
    """The roles of which there is one, each in a process of its own."""
    return {
        "dataset": await spawn("dataset", DatasetActor, config, tier),
        "replay": await spawn("replay", ReplayBufferActor, config),
        "advantage": await spawn("advantage", AdvantageActor, config),
    }


async def start_trainer(name: str, config: Config) -> Replica:
    """Start the trainer's process, with the policy loaded."""
    return await replicas_of(TrainerActor, name, config, _devices(config)["trainer"])(name)


def _devices(config: Config) -> dict[str, str]:
    names = ["trainer", *(f"generator_{i}" for i in range(config.generators + config.spares)), "reference"]
    # On the CPU nobody asks CUDA anything, also where there is some.
    return assign_devices(config.device, names, 0 if config.device == "cpu" else count_cuda_devices())
