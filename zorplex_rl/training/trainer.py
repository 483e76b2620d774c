"""The trainer: the actor that owns the weights, and its service, which brings it back when it dies.

    checkpoint 20 ── step 21 ── step 22 ── step 23 ✗        the process is gone, and with it three steps
         └────► new process: load checkpoint 20 ── 21 ── 22 ── 23     the same batches again, the same weights

The service replaces the process like any other. What is added here is the set-up of the new one:
every batch since the last checkpoint is kept, with its advantages. A step is a function of weights
and batch, so the same steps give the weights that were lost, on a CPU bit for bit: no group is lost,
and none counts twice. Meanwhile generators go on with the weights that they have.
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

# Saving a large model can hold up a process, and a start takes all steps since the last checkpoint.
OPTIONS = ServiceOptions(probe_timeout=30.0, start_timeout=3600.0, progress=("step",))
LAST_WORDS_SECONDS = 5.0


class TrainerActor(ModelActor):
    """Owns the weights: trains them, publishes every version, saves and restores them."""

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
        groups = group_latencies(episodes)
        with self.recorder.span(
            "train", step=self._learner.version, episodes=len(episodes), groups=groups
        ):
            return await self.compute(self._learner.step, episodes, advantages, reference_logprobs)

    @concurrent_endpoint
    async def publish(self) -> int:
        """Make the present weights the newest in the ring. Returns their version."""
        with self.recorder.span("publish", version=self._learner.version):
            await self.compute(self._publisher.publish, self.policy.model, self._learner.version)
        return self._learner.version

    @concurrent_endpoint
    async def source(self) -> "WeightSource":
        """Return what generators subscribe to."""
        return self._publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> "Tensor":
        """Return the headers of all slots, for the ``message`` transport."""
        return self._publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int) -> "Tensor":
        """Return one slot, for the ``message`` transport."""
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

        if policy := await self.compute(self._whole_policy):
            with storing("the trained policy"):
                await self.compute(save_model, policy.model, policy.tokenizer, Path(folder))

    def _whole_policy(self) -> "Policy | None":
        """Return the policy to write, with all its weights; None if another rank writes it."""
        return self.policy


class TrainerHandle:
    """Calls the trainer's process, whichever it is; ``start(name)`` brings it up, loaded."""

    def __init__(self, start: ReplicaStart, options: ServiceOptions = OPTIONS) -> None:
        self.service = Service("trainer", self._bring_back, options)
        self._start = start
        self._checkpoint: Path | None = None
        self.since_checkpoint: list[tuple[Any, ...]] = []
        self._last: Replica | None = None

    @property
    def is_up(self) -> bool:
        """False from the moment at which its death was noticed until the next one is ready."""
        return self.service.replicas[0].state is State.READY

    async def actor(self) -> Any:
        """Return the actor to read weights from, waiting for it; else raises ServiceError."""
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
        """Have ``endpoint`` read this machine's ``folder`` (``load``) or fill it (``save``,
        ``export``); if the process dies, the next one. Raises StorageError."""
        while True:
            replica = await self.service.replica_at(0)
            with (
                suppress(ReplicaFailed, HostError),
                storing(f"the trainer's files in {str(folder)!r}"),
            ):
                async with replica.machine.lend(folder, is_filled=endpoint == "load") as there:
                    await self._ask(replica, endpoint, there)
                return

    def checkpointed(self, folder: Path, steps: int | None = None) -> None:
        """Note that a restart begins in ``folder``: it has the first ``steps`` since the checkpoint
        before, or all."""
        self._checkpoint = folder
        del self.since_checkpoint[:steps]

    async def call(self, endpoint: str, *args: Any) -> Any:
        """Call ``endpoint``; if the process dies, call the next one. Returns the answer."""
        while True:
            replica = await self.service.replica_at(0)
            with suppress(ReplicaFailed):
                return await self._ask(replica, endpoint, *args)

    async def _ask(self, replica: Replica, endpoint: str, *args: Any) -> Any:
        """Return the answer of ``replica``, that of rank 0 if it has several processes."""
        try:
            answer = await replica.call(endpoint, *args)
        except EndpointError as error:
            # A rank whose partner dies may report a broken connection before the death is noticed.
            if replica.width > 1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(replica.ended.wait(), LAST_WORDS_SECONDS)
                    raise ReplicaFailed(f"{replica.name}: {replica.reason}") from error
            raise
        return answer if replica.width == 1 else answer[0]

    async def _bring_back(self, name: str) -> Replica:
        """Start a process with the weights that the last one had."""
        if self._last:
            # There is never more than one trainer, not even on a host that cannot be seen.
            await self._last.machine.end(self._last.pids)
        replica = self._last = await self._start(name.removesuffix("_0"))
        # Both of one moment: a checkpoint of the last process may come while this one catches up.
        checkpoint, batches = self._checkpoint, list(self.since_checkpoint)
        try:
            if checkpoint:
                await asyncio.to_thread(verify, checkpoint.parent)
                async with replica.machine.lend(checkpoint, is_filled=True) as there:
                    await replica.call("load", there)
            for batch in batches:
                await replica.call("step", *batch)
            await replica.call("publish")
            # These steps are part of its start, and do not show that it does its work.
            await replica.unless_lost(replica.probe.begin.call().as_asyncio())
            replica.answered.clear()
        except BaseException as error:
            await replica.stop()
            if isinstance(error, CheckpointError):
                raise CheckpointError(
                    "the trainer died, and the checkpoint that it comes back from is not whole any more"
                ) from error
            if isinstance(error, HostError):
                # Another host may be left.
                raise ReplicaFailed(f"{name}: {error}") from error
            raise
        return replica
