"""The small roles of an RL run as Monarch actors, in the order in which a group meets them.

    DatasetActor        Environment       which task has which number
    ToolActor           Environment       what a tool answers, after its latency
    RewardActor         Environment       the score of an episode
    ReplayBufferActor   ReplayBuffer      which groups may start, and which are trained on; bounds their age
    ReferenceActor      Policy            log-probs of the starting policy, for the KL penalty

Each actor wraps one object from the folders below. All endpoints are concurrent and computing runs
in a thread, so an actor that waits or computes still answers other calls.

The controller imports these files too, but it uses no model, and torch takes a second to load. So
modules that need torch are imported where they are used. A new process imports those in ``imports``
before its actor is made.
"""

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zorplex_rl.config import Config
from zorplex_rl.devices import prepare
from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.policy.auto import resolved
from zorplex_rl.run.timeline import Span, SpanRecorder
from zorplex_rl.services.runtime import Actor, Result, concurrent_endpoint
from zorplex_rl.task.episode import Episode, Finish, Score, Task
from zorplex_rl.task.latency import lognormal
from zorplex_rl.task.own_task import EnvironmentSource, OwnTask
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import Split

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy

Group = list[Episode]
NumberedGroup = tuple[int, Group]
VARIATION = 1.5
"""Coefficient of variation of a tool's latency."""


class TimedActor(Actor):
    """An actor that records how it spends its time."""

    def __init__(self, name: str) -> None:
        self.recorder = SpanRecorder(name)

    @concurrent_endpoint
    async def drain_spans(self) -> list[Span]:
        """Return the spans recorded since the last call."""
        return self.recorder.drain()

    @concurrent_endpoint
    async def ping(self) -> int:
        """Return the process id; the answer shows that the actor is there."""
        return os.getpid()


class ModelActor(TimedActor):
    """An actor with a policy. It computes in a thread, one call at a time, so it can still answer."""

    imports: tuple[str, ...] = (
        "zorplex_rl.learning.learner",
        "zorplex_rl.policy.rollout",
        "zorplex_rl.training.transports",
    )
    policy: "Policy"
    """Set by ``setup``."""

    def __init__(self, name: str, config: Config, device: str) -> None:
        super().__init__(name)
        self.config = resolved(config)
        self.device = device
        self._one_at_a_time = asyncio.Lock()

    @concurrent_endpoint
    async def setup(self) -> None:
        """Load the policy."""
        await self.compute(self._load)

    async def compute(
        self,
        function: Callable[..., Result],
        *args: Any,
    ) -> Result:
        """Return ``function(*args)``. Waits for earlier calls, then runs it in a thread."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(function, *args)

    def _load(self) -> None:
        from zorplex_rl.policy.load import load_policy_of

        prepare(self.device, self.config.threads)
        self.policy = load_policy_of(self.config, self.device)


class DatasetActor(Actor):
    """Maps numbers to tasks: a group's task depends only on its number."""

    def __init__(self, source: EnvironmentSource) -> None:
        self._environment = source.make()

    @concurrent_endpoint
    async def tasks(
        self,
        numbers: Sequence[int],
        split: Split = "train",
    ) -> list[Task]:
        """Return the task of each of ``numbers``."""
        task = self._environment.task
        return await asyncio.to_thread(lambda: [task(number, split) for number in numbers])


class ToolActor(TimedActor):
    """Runs tools. Each call first waits for a random latency."""

    def __init__(
        self,
        name: str,
        config: Config,
        source: EnvironmentSource | None = None,
    ) -> None:
        super().__init__(name)
        self._environment = (source or EnvironmentSource.of(config)).make()
        self._mean = config.tool_latency
        self._rng = random.Random(f"latency:{config.seed}:{name}")

    @concurrent_endpoint
    async def execute(self, task: Task, call: ToolCall) -> str:
        """Return the tool's answer to ``call`` in ``task``."""
        if self._mean > 0:
            with self.recorder.span("tool"):
                await asyncio.sleep(lognormal(self._rng, self._mean, VARIATION))
        execute = self._environment.execute
        if isinstance(self._environment, OwnTask):
            return await asyncio.to_thread(execute, task, call)
        return execute(task, call)


class RewardActor(TimedActor):
    """Scores episodes with the environment of ``source``."""

    def __init__(self, name: str, source: EnvironmentSource) -> None:
        super().__init__(name)
        self._environment = source.make()

    @concurrent_endpoint
    async def score(self, attempts: list[tuple[Task, list[str], int, Finish]]) -> list[Score]:
        """Return the score of each (task, sampled text turn by turn, tool calls, finish)."""
        score = self._environment.score
        with self.recorder.span("reward", episodes=len(attempts)):
            return await asyncio.to_thread(lambda: [score(*attempt) for attempt in attempts])


@dataclass(frozen=True, slots=True)
class Admission:
    """What a generator may do next: start these groups, pull newer weights and ask again, or stop because
    training is over."""

    case: Literal["start", "pull", "over"]
    numbers: tuple[int, ...] = ()


class ReplayBufferActor(Actor):
    """A ``ReplayBuffer`` whose ``admit`` and ``take`` wait until there is an answer."""

    def __init__(self, config: Config) -> None:
        total = config.steps * config.prompts_per_step
        self._buffer = ReplayBuffer(config.prompts_per_step, config.max_lag, total)
        self._published = 0
        self._closed = False
        self._changed = asyncio.Condition()

    @concurrent_endpoint
    async def admit(self, version: int, count: int) -> Admission:
        """Return what a generator with weights ``version`` may do, as soon as there is something. It gets up to
        ``count`` group numbers, all of one step."""
        async with self._changed:
            while not self._is_over:
                numbers = self._buffer.admit(version, min(count, self._buffer.left_of_step))
                if numbers:
                    return Admission("start", tuple(numbers))
                if self._published > version:
                    return Admission("pull")
                await self._changed.wait()
            return Admission("over")

    @property
    def _is_over(self) -> bool:
        return self._closed or self._buffer.finished

    @concurrent_endpoint
    async def admit_now(self, version: int, count: int) -> list[int]:
        """Return up to ``count`` group numbers that may start now with weights ``version``."""
        async with self._changed:
            return self._buffer.admit(version, count)

    @concurrent_endpoint
    async def add(self, groups: list[tuple[int, int]]) -> list[bool]:
        """Add generated groups: (number, version of the oldest token). Returns whether each was accepted."""
        async with self._changed:
            added = [self._buffer.add(number, version) for number, version in groups]
            self._changed.notify_all()
            return added

    @concurrent_endpoint
    async def abandon(self, numbers: list[int]) -> None:
        """Queue groups for generation again, since their generator has died."""
        async with self._changed:
            self._buffer.abandon(numbers)
            self._changed.notify_all()

    @concurrent_endpoint
    async def take(self) -> list[int] | None:
        """Return the groups of the next training batch once it is complete, or None after training."""
        async with self._changed:
            while not self._is_over:
                batch = self._buffer.take()
                if batch is not None:
                    self._changed.notify_all()
                    return batch
                await self._changed.wait()
            return None

    @concurrent_endpoint
    async def published(self, version: int) -> None:
        """Note that weights ``version`` are published: the steps up to it are done, and generators may pull."""
        async with self._changed:
            self._published = version
            self._buffer.forget_taken(version)
            self._changed.notify_all()

    @concurrent_endpoint
    async def end(self) -> None:
        """Wake all waiters: training is over."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    @concurrent_endpoint
    async def state(self) -> dict[str, Any]:
        """Return the state for ``load_state``; see ``ReplayBuffer.state_dict``."""
        return self._buffer.state_dict()

    @concurrent_endpoint
    async def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._buffer.load_state_dict(state)
        self._published = state["version"]


class ReferenceActor(ModelActor):
    """The policy as it was before training, for the KL penalty."""

    @concurrent_endpoint
    async def logprobs(self, episodes: list[Episode]) -> list[list[float]]:
        """Return the log-probability of every response token; 0.0 for injected ones."""
        from zorplex_rl.learning.learner import response_logprobs

        with self.recorder.span("reference", episodes=len(episodes)):
            return await self.compute(
                response_logprobs,
                self.policy,
                episodes,
                self.config.temperature,
                self.config.learner.token_budget,
            )
