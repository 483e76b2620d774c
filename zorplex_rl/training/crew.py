"""All actors of one run, brought up together and stopped together, with the few things that both training loops do with them.

async with Crew.assemble(config, tier) as crew:
    await crew.collect(worker, numbers)      generate → score → replay buffer
    await crew.next_batch()                  replay buffer → advantages
    await crew.improve(batch)                train → publish
    await crew.evaluate(worker)              held-out accuracy

    services        generators, reward, tools, reference: any replica may die at any time
    trainer         comes back from its last checkpoint
    dataset, replay buffer, advantages      small, and one of each: if one of these dies, so does the run
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
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.replica import Replica
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.requests import Failure, ReplicaFailed
from zorplex_rl.services.runtime import run_together
from zorplex_rl.services.service import Service
from zorplex_rl.task.curriculum import Tier
from zorplex_rl.task.episode import Episode
from zorplex_rl.training.actors import Group
from zorplex_rl.training.generators import Worker
from zorplex_rl.training.roles import services_of, singletons_of, start_trainer
from zorplex_rl.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one training step, by number, and what the trainer needs besides."""

    groups: list[tuple[int, Group]]
    advantages: list[float]
    reference_logprobs: list[list[float]] | None
    zero_variance_share: float

    @property
    def episodes(self) -> list[Episode]:
        return [episode for _, group in self.groups for episode in group]


@dataclass(slots=True)
class Crew:
    """The actors of a run. ``published`` is the version of the newest weights that generators can have."""

    config: Config
    services: dict[str, Service]
    singletons: dict[str, Replica]
    trainer: Trainer
    workers: list[Worker] = field(default_factory=list)
    published: int = -1
    on_restart: Callable[[str, Restart], None] = lambda role, restart: None

    @classmethod
    @contextlib.asynccontextmanager
    async def assemble(
        cls, config: Config, tier: Tier, say: Callable[[str], None] = lambda text: None
    ) -> AsyncIterator[Crew]:
        """Start every process of ``config``; stop them all on the way out, whatever happened."""
        crew = cls(config, services_of(config, say), {}, Trainer(lambda name: start_trainer(name, config)))
        for role, service in crew.services.items():
            service.on_restart = lambda restart, role=role: crew.on_restart(role, restart)
        crew.trainer.service.on_restart = lambda restart: crew.on_restart("trainer", restart)
        try:
            crew.singletons |= await singletons_of(config, tier)
            # All load side by side; a generator asks where weights come from only when it has a model to put them into.
            await run_together(crew.trainer.open(), *(service.open() for service in crew.services.values()))
            if "tools" in crew.services:
                await register_service(crew.services["tools"])
            crew.workers = [Worker(crew.services["generator"], index) for index in range(config.generators)]
            yield crew
        finally:
            await asyncio.shield(crew._stop())

    @property
    def dataset(self) -> Any:
        return self.singletons["dataset"].actor

    @property
    def replay(self) -> Any:
        return self.singletons["replay"].actor

    async def collect(self, worker: Worker, numbers: list[int]) -> None:
        """Have ``worker`` generate the groups ``numbers``, and hand them in."""
        await self.hand_in(await self.sample(worker, numbers))

    async def sample(self, worker: Worker, numbers: list[int]) -> list[tuple[int, Group]]:
        """The groups ``numbers``. If the worker's process dies, they go back to be generated again, and there are none; nothing is raised."""
        try:
            tasks = await self.dataset.tasks.call_one(numbers)
            return await worker.generate(list(zip(numbers, tasks, strict=True)))
        except ReplicaFailed:
            await self.replay.abandon.call_one(numbers)
            return []

    async def hand_in(self, groups: list[tuple[int, Group]]) -> None:
        """Have ``groups`` scored and put into the replay buffer."""
        if groups:
            await self.score([episode for _, group in groups for episode in group])
            await self.replay.add.call_one(groups)

    async def next_batch(self) -> Batch | None:
        """What to train on next, as soon as it is complete; None once all has been trained on."""
        if (groups := await self.replay.take.call_one()) is None:
            return None
        rewards = [[episode.score.reward for episode in group] for _, group in groups]
        advantages = await self.singletons["advantage"].actor.compute.call_one(rewards)
        reference = self.services.get("reference")
        episodes = [episode for _, group in groups for episode in group]
        logprobs = await reference.logprobs.route(episodes) if reference else None
        return Batch(groups, [a for group in advantages for a in group], logprobs, zero_variance_share(rewards))

    async def improve(self, batch: Batch) -> dict[str, float]:
        """One training step on ``batch``, published; its diagnostics."""
        metrics = await self.trainer.step(batch.episodes, batch.advantages, batch.reference_logprobs)
        await self.publish()
        return metrics | {"zero_variance_share": batch.zero_variance_share}

    async def publish(self) -> int:
        """Publish the trainer's weights and tell generators that wait for them."""
        self.published = await self.trainer.publish()
        await self.replay.published.call_one(self.published)
        return self.published

    async def evaluate(self, worker: Worker) -> tuple[list[Episode], list[Episode]]:
        """Greedy and sampled episodes on the held-out tasks, scored, with the weights that ``worker`` has."""
        tasks = await self.dataset.held_out.call_one(self.config.eval_tasks)
        greedy = await worker.evaluate(tasks, 0.0)
        sampled = await worker.evaluate(tasks, self.config.temperature)
        await self.score(greedy + sampled)
        return greedy, sampled

    async def score(self, episodes: list[Episode]) -> None:
        """Have the reward service score ``episodes``, in place."""
        attempts = [(e.task, e.sampled_text, e.tool_calls, e.finish) for e in episodes]
        for episode, score in zip(episodes, await self.services["reward"].score.route(attempts), strict=True):
            episode.score = score

    async def admit(self, version: int, count: int) -> list[int] | None:
        """Group numbers that weights ``version`` may be used for, as soon as there are any; see ``ReplayBufferActor.admit``."""
        return await self.replay.admit.call_one(version, count)

    async def retry(self, action: Callable[[], Awaitable[Any]]) -> Any:
        """``action()``, again whenever a generator dies in it."""
        while True:
            with contextlib.suppress(ReplicaFailed):
                return await action()

    async def drain_spans(self) -> list[Span]:
        """What all timed actors have recorded since the last call; a dead one says nothing."""
        timed = (self.trainer.service, *self.services.values())
        answers = await asyncio.gather(*(service.drain_spans.fanout() for service in timed))
        spans = [part for answer in answers for part in answer if not isinstance(part, Failure)]
        return [span for part in spans for span in part]

    async def _stop(self) -> None:
        stops = (replica.stop() for replica in self.singletons.values())
        await asyncio.gather(self.trainer.close(), *(service.close() for service in self.services.values()), *stops)
