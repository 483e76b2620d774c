"""The controller: it owns the roles, says what a step is made of, and keeps the run going.

    services        generators, reward, tools, reference: any replica may die at any time
    trainer         comes back from its last checkpoint
    dataset, replay buffer, advantages      small, and one of each: if one of these dies, so does the run

    sample, score_and_store         tasks → generator → reward → replay buffer
    next_batch                      replay buffer → advantages
    train_step                      train → publish → write down → checkpoint, if one is due; sealed beside the next step

A whole episode is sent four times: generator → controller → replay buffer → controller → trainer.
So one place knows what became of each group: it is given back if its generator dies, and kept until
a checkpoint, so that a trainer that died can take its steps again. docs/ARCHITECTURE.md has the way
of an episode through the files.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from zorplex_rl.config import Config
from zorplex_rl.hosts.devices import advice, devices_of, settled
from zorplex_rl.hosts.hosts import Hosts, open_hosts
from zorplex_rl.learning import journal
from zorplex_rl.learning.advantages import LearningSignal, zero_variance_share
from zorplex_rl.run.folder import MetricsRow
from zorplex_rl.run.timeline import Span
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.replica import Machine, ReplicaFailed, ReplicaStart, ServiceOptions, replicas_of
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.services.runtime import run_together
from zorplex_rl.services.service import Service
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.training import actors
from zorplex_rl.training.generator import NO_WEIGHTS, GeneratorActor, GeneratorHandle
from zorplex_rl.training.run_log import RunLog
from zorplex_rl.training.trainer import TrainerHandle
from zorplex_rl.training.trainer_group import trainer_of

Result = TypeVar("Result")
PROBE_SECONDS = 10.0  # torch can hold up all else in a replica that computes
LAST_PROBE_SECONDS = 60.0  # what cannot be replaced may also be slow: without it the run is over
# Options of a service whose requests only wait: a replica can have thousands.
MANY: dict[str, Any] = {"max_in_flight": 4096, "max_queue": 65536, "wait_timeout": 120.0}
SECONDS_BETWEEN_SPANS = 1.0
LONGEST_SILENCE = 5.0  # seconds


class StopRequest(Exception):
    """The run was asked to stop, and has written a checkpoint."""


@dataclass(slots=True)
class Batch:
    """The groups of one training step, by number, and what else the trainer needs."""

    groups: list[tuple[int, actors.Group]]
    advantages: list[float]
    zero_variance_share: float
    reference_logprobs: list[list[float]] | None = None

    @property
    def episodes(self) -> list[Episode]:
        return [episode for _, group in self.groups for episode in group]


class Controller:
    """The roles of one run, brought up together and stopped together.

    ``published`` is the version of the newest weights, ``step`` counts the steps done and written.
    Set ``stop_requested`` to have the run stop after the next step, with a checkpoint; it is
    ``under_way`` while there is one to come.
    """

    def __init__(self, config: Config, log: RunLog, hosts: Hosts) -> None:
        self.config, self.log = config, log
        source, devices = EnvironmentSource.of(config), devices_of(config)
        log.say(f"starting actors on {devices['trainer rank 0']}, {config.dtype}, threads: {config.threads}")
        self.services = services_of(config, source, hosts, devices)
        of_trainer = [device for name, device in devices.items() if name.startswith("trainer")]
        self.trainer = TrainerHandle(trainer_of(config, of_trainer, hosts))
        self.dataset = service_of_one("dataset", actors.DatasetActor, source)
        self.replay_buffer = service_of_one("replay_buffer", actors.ReplayBufferActor, config)
        self.advantage = service_of_one("advantage", actors.AdvantageActor, config)
        generators = range(config.services.generators)
        self.generators = [GeneratorHandle(self.services["generator"], index) for index in generators]
        self.published = -1
        self.step = self.episodes = 0
        self.stop_requested = self.under_way = False
        self._given_up: asyncio.Queue[Exception] = asyncio.Queue()
        self._next_evaluation = 0
        self._signal = LearningSignal()
        # An evaluation is written down as a whole before a checkpoint, or after it.
        self._state_lock = asyncio.Lock()
        self._sealing: asyncio.Task[None] | None = None
        self._timed = [*self.services.values(), self.trainer.service]
        self._all = [*self._timed, self.dataset, self.replay_buffer, self.advantage]
        for service in self._all:
            service.on_restart = partial(self._restarted, service.name)
            service.on_give_up = self._given_up.put_nowait

    @classmethod
    @contextlib.asynccontextmanager
    async def assemble(cls, config: Config, log: RunLog, meshes: Sequence[Any] = ()) -> AsyncIterator[Self]:
        """Start every process of ``config``; stop them all on the way out, whatever happened."""
        config = settled(config)
        log.folder.save_config(config)
        async with open_hosts(config, meshes) as hosts:
            controller = cls(config, log, hosts)
            try:
                # All load side by side; a generator asks for weights only when it has a model.
                async with controller._waiting("loading"):
                    await run_together(*(service.open() for service in controller._all))
                if "tools" in controller.services:
                    await register_service(controller.services["tools"])
                yield controller
            finally:
                with contextlib.suppress(Exception):
                    await controller._sealed()
                await asyncio.shield(asyncio.gather(*(service.close() for service in controller._all)))

    async def unless_given_up(self, doing: Coroutine[Any, Any, Result]) -> Result:
        """Return what ``doing`` returns. Cancels it, and raises why, if a role is given up."""
        asked, given_up = asyncio.create_task(doing), asyncio.create_task(self._given_up.get())
        try:
            await asyncio.wait({asked, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if given_up.done():
                raise given_up.result()
            return asked.result()
        finally:
            asked.cancel()
            given_up.cancel()
            await asyncio.gather(asked, given_up, return_exceptions=True)

    async def begin(self, checkpoint: Path | None = None) -> None:
        """Publish and evaluate the first weights, if due, and start the clock; from ``checkpoint``."""
        if checkpoint:
            await self._restore(checkpoint)
        self.log.folder.append_journal(journal.sitting_row(self.step, self.config.steps))
        processes = {replica.name: replica.pid for service in self._all for replica in service.replicas}
        self.log.write("started", self.step, processes=processes)
        await self._publish()
        await self.evaluate_if_due()
        async with self._waiting("loading spares"):
            await self.services["generator"].spares_ready()
        self.log.start_clock()
        self.under_way = True

    async def finish(self) -> MetricsRow:
        """Write the trained policy and evaluate it: the run is finished. Returns the evaluation."""
        self.under_way = False
        self.log.add_spans(await self._drain_spans())
        folder = self.log.folder
        unfinished = folder.begin_policy()
        async with self._waiting("writing the policy"):
            await self.trainer.transfer("export", unfinished)
        folder.finish_policy(unfinished)
        evaluation = await self._evaluate_newest(final=True)
        await self._sealed()
        return evaluation

    async def admit_step(self) -> list[Sequence[int]]:
        """Return each generator's share of groups to start now; nothing once a batch is there."""
        numbers = await self.replay_buffer.admit_now.route(self.published, self.config.prompts_per_step)
        share = self.config.share
        return [numbers[first : first + share] for first in range(0, len(numbers), share)]

    async def admit(self, generator: GeneratorHandle) -> actors.Admission:
        """Return what ``generator`` may do with its weights, as soon as there is something."""
        return await self.replay_buffer.admit.route(generator.version, self.config.share)

    def is_behind(self, generator: GeneratorHandle) -> bool:
        """Return whether ``generator`` should pull; while the trainer restarts, old weights do."""
        newer = generator.version < self.published
        return newer and (self.trainer.is_up or generator.version == NO_WEIGHTS)

    async def refresh(self, generator: GeneratorHandle) -> bool:
        """Have ``generator`` pull, and number 0 evaluate if due. Returns False if it died."""
        try:
            version = await generator.pull(self.trainer)
            if generator.index == 0 and self._evaluation_is_due(version):
                await self._evaluate(generator)
        except ReplicaFailed:
            return False
        return True

    async def pull(self, generator: GeneratorHandle) -> int:
        """Have ``generator`` pull, in whichever process. Returns its weights' version."""
        while True:
            with contextlib.suppress(ReplicaFailed):
                return await generator.pull(self.trainer)

    async def sample(self, generator: GeneratorHandle, numbers: Sequence[int]) -> list[tuple[int, actors.Group]]:
        """Return the groups ``numbers``; none if the generator dies: others make them again."""
        try:
            tasks = await self.dataset.tasks.route(numbers)
            async with self._waiting("sampling groups", generator):
                groups, history = await generator.call("generate", list(zip(numbers, tasks, strict=True)))
        except ReplicaFailed:
            await self.replay_buffer.abandon.route(numbers)
            return []
        if history[-1]:
            self.log.folder.append_journal(journal.history_row(*history))
        return groups

    async def score_and_store(self, sampled: Awaitable[list[tuple[int, actors.Group]]]) -> None:
        """Wait for ``sampled`` groups, have them scored, and put them into the replay buffer."""
        if groups := await sampled:
            await self._score([episode for _, group in groups for episode in group])
            await self.replay_buffer.add.route(groups)

    async def next_batch(self) -> Batch | None:
        """Return the next batch to train on, when complete; None once all is trained on."""
        if (groups := await self.replay_buffer.take.route()) is None:
            return None
        rewards = [[episode.scored.reward for episode in group] for _, group in groups]
        advantages = await self.advantage.compute.route(rewards)
        batch = Batch(groups, [a for group in advantages for a in group], zero_variance_share(rewards))
        if reference := self.services.get("reference"):
            batch.reference_logprobs = await reference.logprobs.route(batch.episodes)
        return batch

    async def train_step(self, batch: Batch) -> None:
        """Train on ``batch``, publish, write the step and, if due, a checkpoint. Raises StopRequest."""
        async with self._waiting("training"):
            metrics = await self.trainer.step(batch.episodes, batch.advantages, batch.reference_logprobs)
            await self._publish()
        await self._sealed()
        self.step += 1
        self.episodes += int(metrics["episodes"])
        is_due = self.step >= self.config.steps or self.step % self.config.checkpoint_every == 0
        if is_due or self.stop_requested or self.log.seconds_since_spans >= SECONDS_BETWEEN_SPANS:
            self.log.add_spans(await self._drain_spans())
        metrics = metrics | {"zero_variance_share": batch.zero_variance_share}
        self.log.folder.append_journal(journal.batch_row(self.step, batch.groups))
        self.log.step(self.step, metrics, self.episodes, batch.groups[0][1][0])
        if warning := self._signal.note(batch.episodes, batch.advantages):
            self.log.warn(self.step, warning)
        if self.step == 2 and (found := advice(self.config, self.log.busy)):
            self.log.warn(self.step, found)
        # A stop may be asked for while the row is written.
        if is_due or self.stop_requested:
            await self._checkpoint()
        if self.stop_requested:
            await self._sealed()
            raise StopRequest

    async def end_training(self) -> None:
        """Wake all waiters of the replay buffer: training is over."""
        await self.replay_buffer.end.route()

    async def evaluate_if_due(self) -> None:
        """Evaluate the newest weights, if that is due, while nothing else goes on."""
        if self._evaluation_is_due(self.step):
            await self._evaluate_newest()

    def _evaluation_is_due(self, version: int) -> bool:
        return self._next_evaluation <= version < self.config.steps

    async def _evaluate_newest(self, final: bool = False) -> MetricsRow:
        while True:
            with contextlib.suppress(ReplicaFailed):
                await self.pull(self.generators[0])
                return await self._evaluate(self.generators[0], final)

    async def _evaluate(self, generator: GeneratorHandle, final: bool = False) -> MetricsRow:
        """Measure ``generator`` on held-out tasks. Returns the row, with the seconds when it began."""
        began, seconds = time.monotonic(), self.log.seconds
        tasks = await self.dataset.tasks.route(range(self.config.eval_tasks), "held_out")
        answers = (generator.call("evaluate", tasks, temperature) for temperature in (0.0, self.config.temperature))
        async with self._waiting("evaluating", generator):
            greedy, sampled = await asyncio.gather(*answers)
        await self._score(greedy + sampled)
        version = generator.version
        async with self._state_lock:
            self._next_evaluation = version - version % self.config.eval_every + self.config.eval_every
            took = time.monotonic() - began
            row = self.log.evaluation(version, greedy, sampled, seconds=seconds, final=final, evaluation_seconds=took)
        await asyncio.to_thread(self.log.draw)
        return row

    async def _score(self, episodes: list[Episode]) -> None:
        """Have the reward service score ``episodes``, in place. It is sent their texts alone."""
        attempts = [episode.attempt for episode in episodes]
        for episode, score in zip(episodes, await self.services["reward"].score.route(attempts), strict=True):
            episode.score = score

    async def _publish(self) -> None:
        """Publish the trainer's weights and tell generators that wait for them."""
        self.published = await self.trainer.call("publish")
        await self.replay_buffer.published.route(self.published)

    async def _checkpoint(self) -> None:
        """Save everything from which the run can be continued. ``_sealed`` waits until it is safe."""
        log, folder = self.log, self.log.folder
        steps = len(self.trainer.since_checkpoint)
        unfinished = folder.begin_checkpoint(self.step)
        async with self._waiting("writing a checkpoint"):
            await self.trainer.transfer("save", unfinished / "trainer")
        async with self._state_lock:
            replay_buffer = await self.replay_buffer.state.route()
            own = {"step": self.step, "episodes": self.episodes, "next_evaluation": self._next_evaluation}
            state = own | {"replay_buffer": replay_buffer} | log.state()
        # Before the checkpoint, which says how much of it is part of the run up to here.
        folder.save_timeline(log.timeline)

        async def seal() -> None:
            # It reads back and hashes all that was written.
            finished = await asyncio.to_thread(folder.finish_checkpoint, unfinished, state)
            self.trainer.checkpointed(finished / "trainer", steps)

        self._sealing = asyncio.create_task(seal())

    async def _sealed(self) -> None:
        """Wait until the last checkpoint is in its place. Raises StorageError."""
        if self._sealing:
            await asyncio.shield(self._sealing)

    async def _restore(self, checkpoint: Path) -> None:
        """Set every actor, this controller and the rows on disk back to ``checkpoint``."""
        log, state = self.log, self.log.folder.controller_state(checkpoint)
        async with self._waiting("reading the checkpoint"):
            await self.trainer.load(checkpoint / "trainer")
        await self.replay_buffer.load_state.route(state["replay_buffer"])
        self.step, self.episodes = state["step"], state["episodes"]
        self._next_evaluation = state["next_evaluation"]
        log.resume(state)
        log.folder.rewind(checkpoint, state["written"])
        log.write("resume", self.step)
        log.say(f"continuing after step {self.step}")

    async def _drain_spans(self) -> list[Span]:
        """Return what timed actors recorded since the last call; dead ones say nothing."""
        answers = await asyncio.gather(*(service.drain_spans.fanout() for service in self._timed))
        parts = [part for of_service in answers for part in of_service if not isinstance(part, Exception)]
        # Of a trainer of several processes the first one counts.
        return [span for part in parts for span in (part[0] if part and isinstance(part[0], list) else part)]

    @contextlib.asynccontextmanager
    async def _waiting(self, what: str, generator: GeneratorHandle | None = None) -> AsyncIterator[None]:
        """Show every few seconds what the run waits for, and how far ``generator`` is with it."""
        began = time.monotonic()

        async def show() -> None:
            while True:
                await asyncio.sleep(LONGEST_SILENCE)
                with contextlib.suppress(ReplicaFailed):
                    done = f", {await generator.call('how_far')}" if generator else ""
                    self.log.waits(what + done, time.monotonic() - began)

        showing = asyncio.create_task(show())
        try:
            yield
        finally:
            showing.cancel()

    def _restarted(self, role: str, restart: Restart) -> None:
        self.log.restarted(self.step, role, restart)


def service_of_one(role: str, actor_class: type, *args: Any) -> Service:
    """Return a role's only service. Its requests may wait: a generator's for work."""
    options = ServiceOptions(probe_timeout=LAST_PROBE_SECONDS, irreplaceable=True, **MANY)
    return Service(role, replicas_of(actor_class, *args), options)


def services_of(config: Config, source: EnvironmentSource, hosts: Hosts, devices: dict[str, str]) -> dict[str, Service]:
    """Return the services of ``config``, not yet open. ``source`` is of their environment."""
    counts, tools = config.services, "tools" if config.tool_latency > 0 else None

    def on_hosts(actor_class: type, devices: Sequence[str], *args: Any) -> ReplicaStart:
        def start_on(config: Config, devices: Sequence[str], machine: Machine) -> ReplicaStart:
            return replicas_of(actor_class, config, *devices, *args, named=True, machine=machine)

        return hosts.start(start_on, devices)

    async def start_generator(name: str) -> Any:
        device = devices.get(name, devices["trainer rank 0"])
        return await on_hosts(GeneratorActor, [device], tools, source)(name)

    def stateless(role: str, start: ReplicaStart, endpoint: str, **options: Any) -> Service:
        only = (endpoint,)
        options |= {"probe_timeout": PROBE_SECONDS, "progress": only, "idempotent": only}
        return Service(role, start, ServiceOptions(**options))

    of_generators = ServiceOptions(
        counts.generators, int(counts.spares), probe_timeout=PROBE_SECONDS, progress=("generate", "evaluate")
    )
    services = {
        "generator": Service("generator", start_generator, of_generators),
        "reward": stateless("reward", replicas_of(actors.RewardActor, source, named=True), "score"),
    }
    if config.learner.kl_coefficient > 0:
        start = on_hosts(actors.ReferenceActor, [devices["reference"]])
        services["reference"] = stateless("reference", start, "logprobs")
    if tools:
        services[tools] = stateless(tools, on_hosts(actors.ToolActor, [], source), "execute", **MANY)
    return services
