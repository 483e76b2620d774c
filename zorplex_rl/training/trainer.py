"""The trainer: the actor that owns the weights, and the handle that restores it after a crash.

    checkpoint 20 ── step 21 ── step 22 ── step 23 ✗        the process has ended, and three steps are lost
         └────► new process: load checkpoint 20 ── 21 ── 22 ── 23     the same batches, so the same weights

The trainer's service replaces the process like any other. The new process is set up here: the handle
keeps every batch since the last checkpoint, with its advantages. A step is a function of weights and
batch, so repeating the steps gives the lost weights, on a CPU bit for bit. No group is lost, and none
is trained on twice. Meanwhile generators go on with the weights that they have.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import CheckpointError, HostError
from zorplex_rl.run.folder import storing, verify
from zorplex_rl.run.timeline import group_latencies
from zorplex_rl.services.options import ReplicaFailed, ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, State
from zorplex_rl.services.runtime import EndpointError, concurrent_endpoint
from zorplex_rl.services.service import Service
from zorplex_rl.task.episode import Episode
from zorplex_rl.training.actors import ModelActor

if TYPE_CHECKING:
    from torch import Tensor

    from zorplex_rl.learning.ratios import Diagnostics
    from zorplex_rl.policy.load import Policy
    from zorplex_rl.training.transports import WeightSource

OPTIONS = ServiceOptions(probe_timeout=30.0, start_timeout=3600.0, progress=("step",))
"""Saving a large model can block a process, and a start repeats all steps since the last checkpoint."""
DEATH_NOTICE_SECONDS = 5.0
"""How long the death of a process may be noticed after its partner's error."""


class TrainerActor(ModelActor):
    """Owns the weights: trains, publishes, saves and restores them."""

    def _load(self) -> None:
        import torch

        from zorplex_rl.learning.learner import Learner
        from zorplex_rl.training.transports import Publisher

        super()._load()
        config = self.config
        torch.manual_seed(config.seed)
        self._learner = Learner(self.policy, config.learner, config.steps, config.temperature)
        self._publisher = Publisher(self.policy.model, config=config)

    @concurrent_endpoint
    async def step(
        self,
        episodes: list[Episode],
        advantages: list[float],
        reference_logprobs: list[list[float]] | None = None,
    ) -> "Diagnostics":
        """Take one training step. Returns its diagnostics."""
        with self.recorder.span(
            "train",
            step=self._learner.version,
            episodes=len(episodes),
            groups=group_latencies(episodes),
        ):
            return await self.compute(self._learner.step, episodes, advantages, reference_logprobs)

    @concurrent_endpoint
    async def publish(self) -> int:
        """Publish the present weights. Returns their version."""
        version = self._learner.version
        with self.recorder.span("publish", version=version):
            await self.compute(self._publisher.publish, self.policy.model, version)
        return version

    @concurrent_endpoint
    async def source(self) -> "WeightSource":
        """Return the handles through which generators read the weights."""
        return self._publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> "Tensor":
        """Return the headers of all slots, for the ``message`` transport."""
        return self._publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int) -> "Tensor":
        """Return the weights in ``slot``, for the ``message`` transport."""
        return self._publisher.read_slot(slot)

    @concurrent_endpoint
    async def save(self, folder: str) -> None:
        """Write weights, optimizer, version and random state to ``folder``."""
        from zorplex_rl.learning.checkpoint import save_learner

        with self.recorder.span("checkpoint", version=self._learner.version):
            await self.compute(save_learner, self._learner, Path(folder))

    @concurrent_endpoint
    async def load(self, folder: str) -> int:
        """Continue from what ``save`` wrote. Returns the version."""
        from zorplex_rl.learning.checkpoint import load_learner

        await self.compute(load_learner, self._learner, Path(folder))
        return self._learner.version

    @concurrent_endpoint
    async def export(self, folder: str) -> None:
        """Write the policy as a folder that ``load_policy`` reads. Raises StorageError."""
        from zorplex_rl.policy.load import save_model

        policy = await self.compute(self._whole_policy)
        if policy:
            with storing("the trained policy"):
                await self.compute(save_model, policy.model, policy.tokenizer, Path(folder))

    def _whole_policy(self) -> "Policy | None":
        """Return the policy with all its weights; None if another rank writes it."""
        return self.policy


class TrainerHandle:
    """Calls the trainer, whichever process it is. ``start(name)`` starts one with the first weights."""

    def __init__(self, start: ReplicaStart, options: ServiceOptions = OPTIONS) -> None:
        self.service = Service("trainer", self._bring_back, options)
        self._start = start
        self._checkpoint: Path | None = None
        self.since_checkpoint: list[tuple[Any, ...]] = []
        """The batches since that checkpoint."""
        self._last: Replica | None = None

    @property
    def is_up(self) -> bool:
        """Whether a process is ready: False from the notice of its death until the next one is."""
        return self.service.replicas[0].state is State.READY

    async def actor(self) -> Any:
        """Wait for the trainer and return its actor. Raises ServiceError on timeout."""
        return (await self.service.replica_at(0)).actor

    async def step(self, *batch: Any) -> dict[str, float]:
        """Train on ``batch`` (episodes, advantages, reference log-probs). Returns diagnostics."""
        metrics = await self.call("step", *batch)
        self.since_checkpoint.append(batch)
        return metrics

    async def load(self, folder: Path) -> None:
        """Continue from what ``save`` wrote to ``folder``."""
        await self.transfer("load", folder)
        self.checkpointed(folder)

    async def transfer(self, endpoint: str, folder: Path) -> None:
        """Call ``endpoint``, which reads this machine's ``folder`` (``load``) or fills it (``save``, ``export``);
        again if the process dies. Raises StorageError."""
        what = f"the trainer's files in {str(folder)!r}"
        is_filled = endpoint == "load"
        while True:
            replica = await self.service.replica_at(0)
            with suppress(ReplicaFailed, HostError), storing(what):
                async with replica.machine.mirror(folder, is_filled) as there:
                    await self._ask(replica, endpoint, there)
                return

    def checkpointed(self, folder: Path, steps: int | None = None) -> None:
        """Restart from ``folder`` from now on. It contains the first ``steps`` since the last checkpoint; by default,
        all."""
        self._checkpoint = folder
        del self.since_checkpoint[:steps]

    async def call(self, endpoint: str, *args: Any) -> Any:
        """Call ``endpoint``, again if the process dies. Returns the answer."""
        while True:
            replica = await self.service.replica_at(0)
            with suppress(ReplicaFailed):
                return await self._ask(replica, endpoint, *args)

    async def _ask(
        self,
        replica: Replica,
        endpoint: str,
        *args: Any,
    ) -> Any:
        """Return the answer of ``replica``; of rank 0 if it has several processes."""
        try:
            answer = await replica.call(endpoint, *args)
        except EndpointError as error:
            # If a rank dies, its partner may report a broken connection before the death is noticed.
            if replica.width > 1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(replica.ended.wait(), DEATH_NOTICE_SECONDS)
                    raise ReplicaFailed(f"{replica.name}: {replica.reason}") from error
            raise
        return answer if replica.width == 1 else answer[0]

    async def _bring_back(self, name: str) -> Replica:
        """Start a process, and restore the weights that the last one had."""
        if self._last:
            # There must never be two trainers, not even if the host of the last one is cut off.
            await self._last.machine.end(self._last.pids)
        replica = self._last = await self._start(name.removesuffix("_0"))
        # Read together: a checkpoint of the last process may be sealed while this one catches up.
        checkpoint = self._checkpoint
        batches = list(self.since_checkpoint)
        try:
            if checkpoint:
                await asyncio.to_thread(verify, checkpoint.parent)
                async with replica.machine.mirror(checkpoint, is_filled=True) as there:
                    await replica.call("load", there)
            for batch in batches:
                await replica.call("step", *batch)
            await replica.call("publish")
            # These calls belong to its start. They do not count as work done.
            await replica.wait_for(replica.probe.begin.call().as_asyncio())
            replica.answered.clear()
        except BaseException as error:
            await replica.stop()
            if isinstance(error, CheckpointError):
                raise CheckpointError(
                    "the trainer died, and its last checkpoint is damaged, so it cannot be restored"
                ) from error
            if isinstance(error, HostError):
                # It is tried again: another host may be left.
                raise ReplicaFailed(f"{name}: {error}") from error
            raise
        return replica
