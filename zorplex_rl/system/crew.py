"""All actors of one run, brought up together and stopped together, with the few things that both training loops do with them.

async with Crew.assemble(config, tier) as crew:
    await crew.collect(worker, numbers)      generate → score → replay buffer
    await crew.improve(batch)                advantages → train → publish
    await crew.evaluate()                    held-out accuracy
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from zorplex_rl.analysis.timeline import Span
from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import zero_variance_share
from zorplex_rl.system.actors import AdvantageActor, DatasetActor, Group, ReplayBufferActor, RewardActor, ToolActor
from zorplex_rl.system.devices import assign_devices, count_cuda_devices
from zorplex_rl.system.generators import GeneratorPool, Restart, Worker, WorkerDied
from zorplex_rl.system.runtime import Replica, ReplicaDied, spawn
from zorplex_rl.task.curriculum import Tier
from zorplex_rl.task.episode import Episode

Batch = list[tuple[int, Group]]


@dataclass(slots=True)
class Crew:
    """The actors of a run. ``on_restart`` is told of every replacement of a generator."""

    config: Config
    dataset: Any
    replay: Any
    reward: Any
    advantage: Any
    trainer: Any
    generators: GeneratorPool
    reference: Any = None
    on_restart: Callable[[Restart], None] = lambda restart: None
    replicas: dict[str, Replica] = field(default_factory=dict)

    @classmethod
    @contextlib.asynccontextmanager
    async def assemble(
        cls, config: Config, tier: Tier, say: Callable[[str], None] = lambda text: None
    ) -> AsyncIterator[Crew]:
        """Start every process of ``config``; stop them all on the way out, whatever happened."""
        replicas: dict[str, Replica] = {}
        pool: GeneratorPool | None = None
        source: asyncio.Future[Any] | None = None
        try:
            names = ["trainer", *(f"generator_{i}" for i in range(config.generators + config.spares)), "reference"]
            devices = assign_devices(config.device, names, count_cuda_devices())
            say(f"starting actors on {devices['trainer']}")
            replicas |= await _spawn_roles(config, tier, devices)
            tools = replicas["tools"].actor if "tools" in replicas else None
            # Trainer and generators load side by side; a generator only needs to know where weights come from once it has a model.
            source = asyncio.ensure_future(_load_roles(config, replicas))
            pool = GeneratorPool(
                lambda n: _start_generator(n, config, devices, tools, source), config.generators, config.spares
            )
            await pool.open()
            actors = {role: replicas[role].actor for role in ("dataset", "replay", "reward", "advantage", "trainer")}
            reference = replicas["reference"].actor if "reference" in replicas else None
            yield cls(config, **actors, generators=pool, reference=reference, replicas=replicas)
        finally:
            if source is not None:
                source.cancel()
            await asyncio.shield(_stop(replicas, pool))

    async def collect(self, worker: Worker, numbers: list[int]) -> None:
        """Have ``worker`` generate the groups ``numbers``, score them and hand them to the replay buffer.

        If the worker dies, its groups go back to be generated again and its place is filled; nothing is raised.
        """
        try:
            tasks = await self.dataset.tasks.call_one(numbers)
            groups = await worker.generate(list(zip(numbers, tasks, strict=True)))
        except WorkerDied as death:
            await self.replay.abandon.call_one(numbers)
            await self.replace(worker, death)
            return
        await self.score([episode for _, group in groups for episode in group])
        for number, group in groups:
            await self.replay.add.call_one(number, group)

    async def improve(self, batch: Batch) -> dict[str, float]:
        """One training step on ``batch``, published; its diagnostics."""
        episodes = [episode for _, group in batch for episode in group]
        rewards = [[episode.score.reward for episode in group] for _, group in batch]
        advantages = [a for group in await self.advantage.compute.call_one(rewards) for a in group]
        reference = await self.reference.logprobs.call_one(episodes) if self.reference else None
        metrics = await self.trainer.step.call_one(episodes, advantages, reference)
        await self.publish()
        return metrics | {"zero_variance_share": zero_variance_share(rewards)}

    async def publish(self) -> int:
        """Publish the trainer's weights and tell generators that wait for them."""
        version = await self.trainer.publish.call_one()
        await self.replay.published.call_one(version)
        return version

    async def evaluate(self, worker: Worker | None = None) -> tuple[list[Episode], list[Episode]]:
        """Greedy and sampled episodes on the held-out tasks, scored, with the weights that the worker has."""
        tasks = await self.dataset.held_out.call_one(self.config.eval_tasks)
        chosen = worker or self.generators.workers[0]
        greedy = await chosen.evaluate(tasks, 0.0)
        sampled = await chosen.evaluate(tasks, self.config.temperature)
        await self.score(greedy + sampled)
        return greedy, sampled

    async def score(self, episodes: list[Episode]) -> None:
        """Have the reward actor score ``episodes``, in place."""
        attempts = [(e.task, e.sampled_text, e.tool_calls, e.finish) for e in episodes]
        for episode, score in zip(episodes, await self.reward.score.call_one(attempts), strict=True):
            episode.score = score

    async def admit(self, version: int, count: int) -> list[int] | None:
        """Group numbers that weights ``version`` may be used for, as soon as there are any; see ``ReplayBufferActor.admit``."""
        return await self.replay.admit.call_one(version, count)

    async def replace(self, worker: Worker, death: WorkerDied) -> None:
        """Fill the place of ``worker``, once, however many calls have died with its process."""
        if restart := await self.generators.replace(worker, death):
            self.on_restart(restart)

    async def retry(self, worker: Worker, action: Callable[[Worker], Awaitable[Any]]) -> Any:
        """``action(worker)``, again with a new process whenever the worker dies in it."""
        while True:
            try:
                return await action(worker)
            except WorkerDied as death:
                await self.replace(worker, death)

    async def drain_spans(self) -> list[Span]:
        """What all timed actors have recorded since the last call; a dead one says nothing."""
        timed = [r for role, r in self.replicas.items() if role in ("trainer", "reward", "tools", "reference")]
        timed += [worker.replica for worker in self.generators.workers]
        answers = await asyncio.gather(*(_drain(replica) for replica in timed))
        return [span for spans in answers for span in spans]


async def _drain(replica: Replica) -> list[Span]:
    try:
        return await replica.actor.drain_spans.call_one()
    except ReplicaDied:
        return []


async def _spawn_roles(config: Config, tier: Tier, devices: dict[str, str]) -> dict[str, Replica]:
    """Every role but the generators, each in its own process."""
    from zorplex_rl.system.model_actors import ReferenceActor, TrainerActor

    replicas = {
        "trainer": await spawn("trainer", TrainerActor, "trainer", config, devices["trainer"]),
        "dataset": await spawn("dataset", DatasetActor, config, tier),
        "replay": await spawn("replay", ReplayBufferActor, config),
        "reward": await spawn("reward", RewardActor, "reward"),
        "advantage": await spawn("advantage", AdvantageActor, config),
    }
    if config.kl_coefficient > 0:
        replicas["reference"] = await spawn("reference", ReferenceActor, "reference", config, devices["reference"])
    if config.tool_latency > 0:
        replicas["tools"] = await spawn("tools", ToolActor, "tools", config)
    return replicas


async def _load_roles(config: Config, replicas: dict[str, Replica]) -> Any:
    """Have those with a model load it; then what a generator subscribes to."""
    with_model = [replicas[role] for role in ("trainer", "reference") if role in replicas]
    loaded = await asyncio.gather(*(replica.actor.setup.call_one() for replica in with_model))
    for replica, found in zip(with_model, loaded, strict=True):
        replica.pid = found.pid
    trainer = replicas["trainer"].actor
    if config.transport == "rdma":
        return await trainer.rdma_handle.call_one()
    return await trainer.layout.call_one(), trainer


async def _start_generator(
    number: int, config: Config, devices: dict[str, str], tools: Any, source: asyncio.Future[Any]
) -> Replica:
    from zorplex_rl.system.model_actors import GeneratorActor

    name = f"generator_{number}"
    replica = await spawn(name, GeneratorActor, name, config, devices.get(name, devices["trainer"]), tools)
    replica.pid = (await replica.actor.setup.call_one()).pid
    await replica.actor.subscribe.call_one(await asyncio.shield(source))
    return replica


async def _stop(replicas: dict[str, Replica], pool: GeneratorPool | None) -> None:
    if pool is not None:
        await pool.close()
    await asyncio.gather(*(replica.stop() for replica in replicas.values()))
