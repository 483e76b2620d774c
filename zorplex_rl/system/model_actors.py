"""The roles that hold a model: generator, reference, trainer.

TrainerActor.step ──► Publisher (ring in host memory) ──► GeneratorActor.pull ──► GeneratorActor.generate

The controller imports this module too, to start the actors. It has no use for models, and transformers takes seconds to load: so whatever needs
it is imported where it is used, and each actor's own process, at its start, imports what ``imports`` names.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zorplex_rl.analysis.recorded import group_latencies
from zorplex_rl.config import Config
from zorplex_rl.manifest import storing
from zorplex_rl.policy.row import Execute, Request, Sampling
from zorplex_rl.system.actors import Group, Loaded, TimedActor
from zorplex_rl.system.discovery import get_service
from zorplex_rl.system.runtime import ReplicaDied, concurrent_endpoint
from zorplex_rl.task.curriculum import Zorplex
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.parser import ToolCall

if TYPE_CHECKING:
    from torch import Tensor

    from zorplex_rl.learning.learner import Metrics
    from zorplex_rl.policy.load import Policy
    from zorplex_rl.policy.rollout import RolloutEngine
    from zorplex_rl.policy.stream import RolloutStream
    from zorplex_rl.system.transports import Subscriber, WeightSource

Result = TypeVar("Result")
log = logging.getLogger(__name__)
EVALUATION_SEED = 1_000_003


class ModelActor(TimedActor):
    """An actor with a policy. Its compute runs in a thread, one call at a time, so that the actor stays answerable."""

    imports = ("zorplex_rl.learning.learner", "zorplex_rl.policy.stream", "zorplex_rl.system.transports")

    def __init__(self, name: str, config: Config, device: str) -> None:
        super().__init__(name)
        self.config, self.device = config, device
        self._one_at_a_time = asyncio.Lock()
        self.policy: Policy | None = None

    @concurrent_endpoint
    async def setup(self) -> Loaded:
        """Load the policy; say what was loaded."""
        await self.compute(self._load)
        return Loaded(self.policy.name, os.getpid(), self.device, self.policy.parameter_count)

    async def compute(self, function: Callable[..., Result], *args: Any) -> Result:
        async with self._one_at_a_time:
            return await asyncio.to_thread(function, *args)

    def _load(self) -> None:
        import torch

        from zorplex_rl.policy.load import load_policy

        if self.device == "cpu":
            torch.set_num_threads(self.config.threads)
        self.policy = load_policy(self.config.policy, self.device, self.config.dtype)


class GeneratorActor(ModelActor):
    """Samples groups of episodes with the newest weights that it has pulled."""

    def __init__(self, name: str, config: Config, device: str, tools: str | None = None) -> None:
        super().__init__(name, config, device)
        self._zorplex = Zorplex(config.seed, config.hints)
        self._tools, self._tool_client = tools, None
        self._source: Subscriber | None = None
        self._stream: RolloutStream | None = None
        self._version = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    def _load(self) -> None:
        from zorplex_rl.policy.stream import RolloutStream

        super()._load()
        self._stream = RolloutStream(
            lambda: self._engine(self.config.temperature, self._call_tool), self._one_at_a_time, self._generating
        )

    @concurrent_endpoint
    async def subscribe(self, trainer: Any) -> bool:
        """Have ``pull`` read from the actor ``trainer``; False if its weights cannot be read."""
        from zorplex_rl.system.transports import subscribe
        from zorplex_rl.weights.ring import WeightPullError

        try:
            source = replace(await trainer.source.call_one(), owner=trainer)
            self._source = await subscribe(source, self.config.transport, self.policy.model)
        except (WeightPullError, ReplicaDied) as error:
            log.warning("%s", error)
            return False
        return True

    @concurrent_endpoint
    async def pull(self) -> int | None:
        """Take over the newest published weights; their version, or None if they cannot be read.

        They arrive while sampling goes on, and are put into the model between two of its steps.
        """
        from zorplex_rl.weights.ring import WeightPullError

        try:
            with self.recorder.span("pull") as pull:
                pull["version"] = await self._source.fetch()
        except WeightPullError as error:
            log.warning("%s", error)
            return None
        async with self._one_at_a_time:
            self._version = self._source.swap()
            self._stream.use_version(self._version)
        return self._version

    @concurrent_endpoint
    async def generate(self, tasks: list[tuple[int, Task]]) -> list[tuple[int, Group]]:
        """``group_size`` episodes for each (group number, task), together with whatever else is being generated."""
        self._loop = asyncio.get_running_loop()
        requests = [
            Request(task, episode_seed(self.config.seed, number, sample), number)
            for number, task in tasks
            for sample in range(self.config.group_size)
        ]
        episodes = await self._stream.sample(requests)
        for episode in episodes:
            episode.generator = self.recorder.actor
        size = self.config.group_size
        return [(number, episodes[i * size : (i + 1) * size]) for i, (number, _) in enumerate(tasks)]

    @concurrent_endpoint
    async def evaluate(self, tasks: list[Task], temperature: float) -> list[Episode]:
        """One episode for each of ``tasks``, with the same random draws every time."""
        requests = [Request(task, EVALUATION_SEED + index) for index, task in enumerate(tasks)]
        return await self.compute(self._evaluate, requests, temperature)

    def _evaluate(self, requests: Sequence[Request], temperature: float) -> list[Episode]:
        engine = self._engine(temperature, self._zorplex.execute)
        engine.version = self._version
        with self.recorder.span("evaluate", version=engine.version):
            return engine.run(requests)

    def _engine(self, temperature: float, execute: Execute) -> RolloutEngine:
        from zorplex_rl.policy.rollout import RolloutEngine

        config = self.config
        return RolloutEngine(
            self.policy, execute, Sampling(temperature, config.max_tokens, config.max_turns, config.slots)
        )

    def _generating(self) -> AbstractContextManager[object]:
        return self.recorder.span("generate", version=self._version)

    def _call_tool(self, task: Task, call: ToolCall) -> str | Future[str]:
        """What a tool says: at once where it runs in this process, else a future of the tool service's answer."""
        if self._tools is None:
            return self._zorplex.execute(task, call)
        return asyncio.run_coroutine_threadsafe(self._ask_tool(task, call), self._loop)

    async def _ask_tool(self, task: Task, call: ToolCall) -> str:
        if self._tool_client is None or not self._tool_client.is_current:
            self._tool_client = await get_service(self._tools)
        return await self._tool_client.execute.route(task, call)


class ReferenceActor(ModelActor):
    """The policy as it was before training, for the KL penalty."""

    @concurrent_endpoint
    async def logprobs(self, episodes: list[Episode]) -> list[list[float]]:
        """The reference's log-probability of every token of each response, 0.0 where injected."""
        from zorplex_rl.learning.learner import response_logprobs

        with self.recorder.span("reference", episodes=len(episodes)):
            temperature, budget = self.config.temperature, self.config.token_budget
            return await self.compute(response_logprobs, self.policy, episodes, temperature, budget)


class TrainerActor(ModelActor):
    """Owns the weights: trains them, publishes every version, saves and restores them."""

    def _load(self) -> None:
        import torch

        from zorplex_rl.learning.learner import Learner, Learning
        from zorplex_rl.system.transports import Publisher

        super()._load()
        config = self.config
        torch.manual_seed(config.seed)
        self._learner = Learner(self.policy, Learning.of(config))
        dtype = torch.bfloat16 if config.transfer_dtype == "bfloat16" else None
        self._publisher = Publisher(self.policy.model, dtype=dtype)

    @concurrent_endpoint
    async def step(
        self, episodes: list[Episode], advantages: list[float], reference_logprobs: list[list[float]] | None = None
    ) -> Metrics:
        """One training step; its diagnostics."""
        groups, sampled_by = group_latencies(episodes), {episode.group: episode.generator for episode in episodes}
        with self.recorder.span(
            "train", step=self._learner.version, episodes=len(episodes), groups=groups, sampled_by=sampled_by
        ):
            return await self.compute(self._learner.step, episodes, advantages, reference_logprobs)

    @concurrent_endpoint
    async def publish(self) -> int:
        """Make the present weights the newest in the ring; their version."""
        with self.recorder.span("publish", version=self._learner.version):
            await self.compute(self._publisher.publish, self.policy.model, self._learner.version)
        return self._learner.version

    @concurrent_endpoint
    async def source(self) -> WeightSource:
        """What generators subscribe to."""
        return self._publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> Tensor:
        return self._publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int) -> Tensor:
        """The bytes of one slot, for the ``message`` transport."""
        return self._publisher.read_slot(slot)

    @concurrent_endpoint
    async def save(self, folder: str) -> None:
        """Write weights, optimizer, version and random state to ``folder``."""
        from zorplex_rl.learning.checkpoint import save_learner

        await self.compute(save_learner, self._learner, Path(folder))

    @concurrent_endpoint
    async def load(self, folder: str) -> int:
        """Continue from what ``save`` wrote; the version."""
        from zorplex_rl.learning.checkpoint import load_learner

        await self.compute(load_learner, self._learner, Path(folder))
        return self._learner.version

    @concurrent_endpoint
    async def export(self, folder: str) -> None:
        """Write the policy as a folder that ``load_policy`` and ``from_pretrained`` read. Raises StorageError if it cannot be written."""

        def write() -> None:
            with storing("the trained policy"):
                self.policy.model.save_pretrained(folder)
                self.policy.tokenizer.save_pretrained(folder)

        await self.compute(write)


def episode_seed(run_seed: int, group: int, sample: int) -> int:
    """The seed of one episode's random draws: its own, and the same whenever the group is generated again."""
    return (run_seed * 1_000_003 + group) * 1_009 + sample
