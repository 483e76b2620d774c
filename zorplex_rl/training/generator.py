"""A generator, both ends of it: the actor that samples, and the controller's handle on it.

    GeneratorHandle 0 ──► place 0 ──► generator_0   ✗ killed; the service puts generator_2 there, a spare that was loaded already
    GeneratorHandle 1 ──► place 1 ──► generator_1

A handle belongs to a place in the generator service, whatever process fills it. A new process has
no weights yet.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zorplex_rl.config import Config
from zorplex_rl.errors import WeightPullError
from zorplex_rl.policy.requests import (
    EngineEvent,
    RolloutRequest,
    Sampling,
    group_requests,
    held_out_requests,
)
from zorplex_rl.policy.tool_loop import Execute
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.registry import get_service
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.services.service import Service, ServiceClient
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.training.actors import Group, ModelActor

if TYPE_CHECKING:
    from zorplex_rl.policy.rollout import RolloutEngine, RolloutStream
    from zorplex_rl.training.trainer import TrainerHandle
    from zorplex_rl.training.transports import Subscriber

NO_WEIGHTS = -1
UNREADABLE_SECONDS = 30.0  # so long a generator tries to read the weights of one trainer
PAUSE_SECONDS = 0.5
History = tuple[
    str, int, list[EngineEvent]
]  # a generator's name, how many events came before, and these


@dataclass(slots=True, eq=False)
class UnderWay:
    """A call, and how many have ended of the groups, or held-out tasks, that it asked for."""

    asked: int
    ended: int = 0

    def count(self, ended: object) -> None:
        self.ended += 1


class GeneratorActor(ModelActor):
    """Samples groups of episodes with the newest weights that it has pulled."""

    # Set by ``setup``, ``subscribe`` and ``generate``, in this order.
    _stream: "RolloutStream"
    _source: "Subscriber"
    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        name: str,
        config: Config,
        device: str,
        tools: str | None = None,
        source: EnvironmentSource | None = None,
    ) -> None:
        super().__init__(name, config, device)
        self.dtype = self.config.sampled_in
        self._tools = tools
        self._environment = (source or EnvironmentSource.of(config)).make()
        self._client: ServiceClient | None = None
        self._version = NO_WEIGHTS
        self._calls: list[UnderWay] = []

    def _load(self) -> None:
        from zorplex_rl.policy.rollout import RolloutStream

        super()._load()
        self._stream = RolloutStream(
            lambda: self._engine(self.config.temperature, self._call_tool),
            self._one_at_a_time,
            lambda: self.recorder.span("generate", version=self._version),
        )

    @concurrent_endpoint
    async def subscribe(self, trainer: Any) -> None:
        """Read weights from the actor ``trainer`` from now on. Raises WeightPullError."""
        from zorplex_rl.training.transports import answer_of, subscribe

        model, transport = self.policy.model, self.config.transport
        if (ranks := self.config.services.trainer_processes) > 1:
            # It loads DTensor, which takes half a second.
            from zorplex_rl.training.shard_transports import subscribe_to_group

            self._source = await subscribe_to_group(trainer, ranks, model, transport)
            return
        source = replace(await answer_of(trainer.source.call_one()), owner=trainer)
        self._source = await subscribe(source, transport, model)

    @concurrent_endpoint
    async def pull(self) -> int:
        """Pull the newest published weights. Returns their version, or raises WeightPullError. They
        arrive while sampling goes on, and are put into the model between two of its steps."""
        with self.recorder.span("pull") as pull:
            pull["transport"] = self._source.transport
            pull["version"] = await self._source.fetch()
        async with self._one_at_a_time:
            self._version = self._source.swap()
            self._stream.use_version(self._version)
        return self._version

    @concurrent_endpoint
    async def generate(
        self, tasks: list[tuple[int, Task]]
    ) -> tuple[list[tuple[int, Group]], History]:
        """Return ``group_size`` episodes for each (group number, task), sampled beside others, and
        what the engine was told since the last call."""
        self._loop = asyncio.get_running_loop()
        size = self.config.group_size

        async def sample(number: int, task: Task) -> tuple[int, Group]:
            group = await self._stream.sample(
                group_requests([(number, task)], size, self.config.seed)
            )
            for episode in group:
                episode.generator = self.recorder.actor
            call.count(group)
            return number, group

        with self._counted(len(tasks)) as call:
            groups = await asyncio.gather(*(sample(*numbered) for numbered in tasks))
        return groups, (self.recorder.actor, *self._stream.take_history())

    @concurrent_endpoint
    async def evaluate(self, tasks: list[Task], temperature: float) -> list[Episode]:
        """Return an episode for each of ``tasks``, sampled with the same draws every time."""
        with self._counted(len(tasks)) as call:
            return await self.compute(self._evaluate, held_out_requests(tasks), temperature, call)

    @contextmanager
    def _counted(self, asked: int) -> Iterator[UnderWay]:
        """Count a call as under way until it is over, however it ends."""
        call = UnderWay(asked)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)

    @concurrent_endpoint
    async def how_far(self) -> str:
        """Return how many have ended of the groups, or held-out tasks, that are under way."""
        return f"{sum(call.ended for call in self._calls)} of {sum(call.asked for call in self._calls)}"

    def _evaluate(
        self, requests: Sequence[RolloutRequest], temperature: float, call: UnderWay
    ) -> list[Episode]:
        engine = self._engine(temperature, self._environment.execute)
        engine.version = self._version
        with self.recorder.span("evaluate", version=engine.version):
            return engine.run(requests, call.count)

    def _engine(self, temperature: float, execute: Execute) -> "RolloutEngine":
        from zorplex_rl.policy.rollout import RolloutEngine

        return RolloutEngine(
            self.policy, execute, Sampling.of(self.config, temperature), self._environment
        )

    def _call_tool(self, task: Task, call: ToolCall) -> str | Future[str]:
        """Run a tool. Returns its answer, or a future of it where the tool service runs it."""
        if self._tools is None:
            return self._environment.execute(task, call)
        return asyncio.run_coroutine_threadsafe(self._ask_tool(self._tools, task, call), self._loop)

    async def _ask_tool(self, service: str, task: Task, call: ToolCall) -> str:
        self._client = self._client or await get_service(service)
        return await self._client.execute.route(task, call)


class GeneratorHandle:
    """Handle one generator for the controller. Calls raise ReplicaFailed if it was lost."""

    def __init__(self, service: Service, index: int) -> None:
        self.service, self.index = service, index
        self._replica: Replica | None = None
        self._read_from: Any = None
        self._version = NO_WEIGHTS

    @property
    def version(self) -> int:
        """The version of the weights that the present process has, or -1."""
        ready = self._replica is not None and self._replica.state is State.READY
        return self._version if ready else NO_WEIGHTS

    async def pull(self, trainer: "TrainerHandle") -> int:
        """Pull the newest weights, when the trainer is there. Returns their version. Raises
        WeightPullError if a trainer's cannot be read for ``UNREADABLE_SECONDS``."""
        unreadable, since = None, 0.0
        while True:
            replica = await self.service.replica_at(self.index)
            # Ask for the trainer last: it may have died while this waited for a generator.
            publisher = await trainer.actor()
            if replica is not self._replica:
                self._replica = replica
                self._read_from = None
                self._version = NO_WEIGHTS
            try:
                if publisher is not self._read_from:
                    await replica.call("subscribe", publisher)
                    self._read_from = publisher
                self._version = await replica.call("pull")
                return self._version
            except WeightPullError as error:
                if publisher is not unreadable:
                    unreadable, since = publisher, time.monotonic()
                if time.monotonic() - since > UNREADABLE_SECONDS:
                    why = f"generator {self.index} cannot read the trainer's weights: {error}"
                    raise WeightPullError(why) from error
            # If the trainer is gone, this waits until it is back.
            await trainer.call("ping")
            await asyncio.sleep(PAUSE_SECONDS)

    async def progress(self) -> str:
        """Return how many have ended of the groups, or held-out tasks, that are under way; "" if its
        process was lost."""
        try:
            return await self.call("how_far")
        except ReplicaFailed:
            return ""

    async def call(self, endpoint: str, *args: Any) -> Any:
        """Return what ``generate`` or ``evaluate`` of the process with the weights answers."""
        if self._replica is None or self.version == NO_WEIGHTS:
            raise ReplicaFailed(f"the process of generator {self.index} was replaced; pull first")
        return await self._replica.call(endpoint, *args)
