"""The roles of an RL run as Monarch actors. Each holds one object from the folders below this one and exposes it; the thinking is there.

    DatasetActor        Zorplex           which task has which number
    GeneratorActor      RolloutEngine     episodes
    ToolActor           Zorplex           what a tool answers, after its latency
    RewardActor         score_turns       what an episode is worth
    AdvantageActor      ADVANTAGES        how much better than expected
    ReferenceActor      Policy            log-probs of the starting policy, for the KL penalty
    ReplayBufferActor   ReplayBuffer      whole groups, bounded in age
    TrainerActor        Learner           better weights

All endpoints are concurrent, so that an actor which waits or computes can still be asked something else; compute goes to a thread.
``setup`` does the heavy work, once, and returns what it loaded.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from dataclasses import dataclass
from typing import Any

from zorplex_rl.analysis.timeline import Span, SpanRecorder
from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import ADVANTAGES
from zorplex_rl.learning.replay import ReplayBuffer
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.task.curriculum import Tier
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode, Finish, Task
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.rewards import Score, score_turns

Group = list[Episode]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an actor's ``setup`` has loaded, and the process that it lives in."""

    what: str
    pid: int
    device: str = "cpu"
    parameters: int = 0


class TimedActor(Actor):
    """An actor that records what it spends its time on."""

    def __init__(self, name: str) -> None:
        self.recorder = SpanRecorder(name)

    @concurrent_endpoint
    async def drain_spans(self) -> list[Span]:
        """The spans recorded since the last call."""
        return self.recorder.drain()

    @concurrent_endpoint
    async def ping(self) -> int:
        """The process id, as a sign of life."""
        return os.getpid()


class DatasetActor(Actor):
    """Numbers tasks. A group's task depends on its number and on the tier that was in force when its number first came up."""

    def __init__(self, config: Config, tier: Tier) -> None:
        self._zorplex = Zorplex(config.seed, config.hints)
        self._stages: list[tuple[int, Tier]] = [(0, tier)]

    @concurrent_endpoint
    async def tasks(self, numbers: list[int]) -> list[Task]:
        """The training task of each group number."""
        return [self._zorplex.task(self._tier_of(number), number, "train") for number in numbers]

    @concurrent_endpoint
    async def held_out(self, count: int) -> list[Task]:
        """The first ``count`` held-out tasks of the newest tier."""
        return self._zorplex.tasks(self._stages[-1][1], count, "held_out")

    @concurrent_endpoint
    async def advance(self, tier: Tier, first_number: int) -> None:
        """Draw tasks from ``tier`` from group ``first_number`` on."""
        self._stages.append((first_number, tier))

    @concurrent_endpoint
    async def state(self) -> list[tuple[int, Tier]]:
        return list(self._stages)

    @concurrent_endpoint
    async def load_state(self, stages: list[tuple[int, Tier]]) -> None:
        self._stages = [(first, tuple(tier)) for first, tier in stages]

    def _tier_of(self, number: int) -> Tier:
        return next(tier for first, tier in reversed(self._stages) if number >= first)


class ToolActor(TimedActor):
    """Runs tools, each call after a log-normal latency drawn for that call alone."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name)
        self._zorplex = Zorplex(config.seed, config.hints)
        self._mean, self._variation = config.tool_latency, config.tool_latency_variation
        self._rng = random.Random(f"latency:{config.seed}:{name}")

    @concurrent_endpoint
    async def execute(self, task: Task, call: ToolCall) -> str:
        if self._mean > 0:
            with self.recorder.span("tool"):
                await asyncio.sleep(lognormal(self._rng, self._mean, self._variation))
        return self._zorplex.execute(task, call)


class RewardActor(TimedActor):
    """Scores what policies wrote."""

    @concurrent_endpoint
    async def score(self, attempts: list[tuple[Task, list[str], int, Finish]]) -> list[Score]:
        """The score of each (task, sampled text turn by turn, tool calls, finish)."""
        with self.recorder.span("reward", episodes=len(attempts)):
            return [score_turns(*attempt) for attempt in attempts]


class AdvantageActor(Actor):
    """Turns the rewards of a batch into advantages."""

    def __init__(self, config: Config) -> None:
        self._estimate = ADVANTAGES[config.loss]

    @concurrent_endpoint
    async def compute(self, rewards: list[list[float]]) -> list[list[float]]:
        """One list of advantages for each group's rewards."""
        return self._estimate(rewards)


class ReplayBufferActor(Actor):
    """A ``ReplayBuffer`` whose two questions wait for their answer."""

    def __init__(self, config: Config) -> None:
        total = config.steps * config.prompts_per_step
        self._buffer: ReplayBuffer[Group] = ReplayBuffer(config.prompts_per_step, config.lag, total)
        self._published = 0
        self._closed = False
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def admit(self, version: int, count: int) -> list[int] | None:
        """Up to ``count`` group numbers of one step to start with weights ``version``, as soon as there are any.

        An empty list says that newer weights were published meanwhile: pull them and ask again. None says that the run is over.
        """
        async with self._changed:
            while not (self._closed or self._buffer.finished):
                if numbers := self._buffer.admit(version, min(count, self._buffer.left_of_step)):
                    return numbers
                if self._published > version:
                    return []
                await self._changed.wait()
            return None

    @concurrent_endpoint
    async def admit_now(self, version: int, count: int) -> list[int]:
        """``admit`` without waiting: what can be started at this moment, maybe nothing."""
        async with self._changed:
            return self._buffer.admit(version, count)

    @concurrent_endpoint
    async def add(self, groups: list[tuple[int, Group]]) -> list[bool]:
        """Hand in generated groups; False for those that nobody waits for any more."""
        async with self._changed:
            versions = [min(episode.policy_version for episode in group) for _, group in groups]
            added = [self._buffer.add(n, v, group) for (n, group), v in zip(groups, versions, strict=True)]
            self._changed.notify_all()
            return added

    @concurrent_endpoint
    async def abandon(self, numbers: list[int]) -> None:
        """Have groups generated again whose generator has died."""
        async with self._changed:
            self._buffer.abandon(numbers)
            self._changed.notify_all()

    @concurrent_endpoint
    async def take(self) -> list[tuple[int, Group]] | None:
        """The next training batch, as soon as it is complete; None once the run is over."""
        async with self._changed:
            while not (self._closed or self._buffer.finished):
                if (batch := self._buffer.take()) is not None:
                    self._changed.notify_all()
                    return batch
                await self._changed.wait()
            return None

    @concurrent_endpoint
    async def published(self, version: int) -> None:
        """The weights ``version`` have been published: waiting generators are told, and the steps before it are done."""
        async with self._changed:
            self._published = version
            self._buffer.forget_taken(version)
            self._changed.notify_all()

    @concurrent_endpoint
    async def close(self) -> None:
        """Send everybody home who waits."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    @concurrent_endpoint
    async def state(self) -> dict[str, Any]:
        return self._buffer.state_dict()

    @concurrent_endpoint
    async def load_state(self, state: dict[str, Any]) -> None:
        self._buffer.load_state_dict(state)
        self._published = state["version"]


def lognormal(rng: random.Random, mean: float, variation: float) -> float:
    """A log-normal draw with the given mean and coefficient of variation: σ² = ln(1 + variation²), μ = ln(mean) − σ²/2."""
    variance = math.log(1 + variation**2)
    return rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
