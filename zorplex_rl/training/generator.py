"""A generator: the actor that samples, and the controller's handle on it.

    GeneratorHandle 0 ──► place 0 ──► generator_0   ✗ killed; the service puts a loaded spare there, generator_2
    GeneratorHandle 1 ──► place 1 ──► generator_1

A handle belongs to a place in the generator service; the process at that place may change. A new
process has no weights.
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
from zorplex_rl.training.actors import ModelActor, NumberedGroup

if TYPE_CHECKING:
    from zorplex_rl.policy.rollout import RolloutEngine, RolloutStream
    from zorplex_rl.training.trainer import TrainerHandle
    from zorplex_rl.training.transports import Subscriber

NO_WEIGHTS = -1
UNREADABLE_SECONDS = 30.0
"""How long a generator tries to read the weights of one trainer."""
PAUSE_SECONDS = 0.5
History = tuple[str, int, list[EngineEvent]]
"""A generator's name, the number of events before, and these events."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A call, with the number of groups (or held-out episodes) that it asked for, and that have ended."""

    asked: int
    ended: int = 0

    def count(self, ended: object) -> None:
        self.ended += 1


class GeneratorActor(ModelActor):
    """Samples groups of episodes with the weights that it pulled last."""

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
        self._tools = tools
        self._environment = (source or EnvironmentSource.of(config)).make()
        self._client: ServiceClient | None = None
        self._version = NO_WEIGHTS
        self._calls: list[UnderWay] = []

    def _load(self) -> None:
        from zorplex_rl.policy.rollout import RolloutStream

        super()._load()
        self._stream = RolloutStream(
            lambda: self._engine(self._call_tool),
            self._one_at_a_time,
            lambda: self.recorder.span("generate", version=self._version),
        )

    @concurrent_endpoint
    async def subscribe(self, trainer: Any) -> None:
        """Connect to the weights of the actor ``trainer``. Raises WeightPullError."""
        from zorplex_rl.training.transports import answer_of, subscribe

        model = self.policy.model
        transport = self.config.transport
        ranks = self.config.services.trainer_processes
        if ranks > 1:
            # Imported here, because DTensor takes half a second.
            from zorplex_rl.training.shard_transports import subscribe_to_group

            self._source = await subscribe_to_group(trainer, ranks, model, transport)
            return
        source = replace(await answer_of(trainer.source.call_one()), owner=trainer)
        self._source = await subscribe(source, transport, model)

    @concurrent_endpoint
    async def pull(self) -> int:
        """Pull the newest published weights. Returns their version. Sampling goes on while they are fetched;
        the model changes between two of its steps. Raises WeightPullError."""
        from zorplex_rl.policy.lora import merge_to_sample

        with self.recorder.span("pull") as pull:
            pull["transport"] = self._source.transport
            pull["version"] = await self._source.fetch()
        async with self._one_at_a_time:
            before = self._source.version
            self._version = self._source.swap()
            if self._version != before:
                await asyncio.to_thread(merge_to_sample, self.policy.model)
            self._stream.use_version(self._version)
        return self._version

    @concurrent_endpoint
    async def generate(self, tasks: list[tuple[int, Task]]) -> tuple[list[NumberedGroup], History]:
        """Return ``group_size`` episodes for each (group number, task), and the engine's events since the last
        call. Calls are sampled side by side."""
        self._loop = asyncio.get_running_loop()
        size = self.config.group_size
        seed = self.config.seed

        async def sample(number: int, task: Task) -> NumberedGroup:
            requests = group_requests([(number, task)], size, seed)
            group = await self._stream.sample(requests)
            for episode in group:
                episode.generator = self.recorder.actor
            call.count(group)
            return number, group

        with self._counted(len(tasks)) as call:
            groups = await asyncio.gather(*(sample(*numbered) for numbered in tasks))
        return groups, (self.recorder.actor, *self._stream.take_history())

    @concurrent_endpoint
    async def evaluate(self, tasks: list[Task]) -> list[Episode]:
        """Return the episodes of ``held_out_requests``."""
        requests = held_out_requests(tasks)
        with self._counted(len(requests)) as call:
            return await self.compute(self._evaluate, requests, call)

    @contextmanager
    def _counted(self, asked: int) -> Iterator[UnderWay]:
        """Yield a call that ``progress`` counts until it is over."""
        call = UnderWay(asked)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)

    @concurrent_endpoint
    async def progress(self) -> str:
        """Return how many groups, or held-out episodes, of the present calls have ended: ``3 of 8``."""
        ended = sum(call.ended for call in self._calls)
        asked = sum(call.asked for call in self._calls)
        return f"{ended} of {asked}"

    def _evaluate(
        self,
        requests: Sequence[RolloutRequest],
        call: UnderWay,
    ) -> list[Episode]:
        engine = self._engine(self._environment.execute)
        engine.version = self._version
        with self.recorder.span("evaluate", version=engine.version):
            return engine.run(requests, call.count)

    def _engine(self, execute: Execute) -> "RolloutEngine":
        from zorplex_rl.policy.rollout import RolloutEngine

        sampling = Sampling.of(self.config)
        return RolloutEngine(self.policy, execute, sampling, self._environment)

    def _call_tool(self, task: Task, call: ToolCall) -> str | Future[str]:
        """Run a tool. Returns its answer; from the tool service, a future of it."""
        if self._tools is None:
            return self._environment.execute(task, call)
        return asyncio.run_coroutine_threadsafe(self._ask_tool(self._tools, task, call), self._loop)

    async def _ask_tool(self, service: str, task: Task, call: ToolCall) -> str:
        self._client = self._client or await get_service(service)
        return await self._client.execute.route(task, call)


class GeneratorHandle:
    """Call one generator. Raises ReplicaFailed if its process was lost."""

    def __init__(self, service: Service, index: int) -> None:
        self.service = service
        self.index = index
        self._replica: Replica | None = None
        self._read_from: Any = None
        self._version = NO_WEIGHTS

    @property
    def version(self) -> int:
        """The version of the weights in the present process, or ``NO_WEIGHTS``."""
        ready = self._replica is not None and self._replica.state is State.READY
        return self._version if ready else NO_WEIGHTS

    async def pull(self, trainer: "TrainerHandle") -> int:
        """Pull the newest weights. Waits for generator and trainer. Returns the version. Raises WeightPullError
        if the weights of one trainer cannot be read for ``UNREADABLE_SECONDS``."""
        unreadable = None
        since = 0.0
        while True:
            replica = await self.service.replica_at(self.index)
            # Ask for the trainer last: it may die while this waits for a generator.
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
                    unreadable = publisher
                    since = time.monotonic()
                if time.monotonic() - since > UNREADABLE_SECONDS:
                    why = f"generator {self.index} cannot read the trainer's weights: {error}"
                    raise WeightPullError(why) from error
            # If the trainer has died, this waits for the next one.
            await trainer.call("ping")
            await asyncio.sleep(PAUSE_SECONDS)

    async def progress(self) -> str:
        """Return how many groups, or held-out episodes, have ended; "" if the process was lost."""
        try:
            return await self.call("progress")
        except ReplicaFailed:
            return ""

    async def call(self, endpoint: str, *args: Any) -> Any:
        """Call ``endpoint`` of the process into which weights were pulled. Returns its answer."""
        if self._replica is None or self.version == NO_WEIGHTS:
            raise ReplicaFailed(f"the process of generator {self.index} was replaced; pull first")
        return await self._replica.call(endpoint, *args)
