"""The controller: it composes a training step from three parts. Groups and progress call the roles.

roles       the processes of the run                    roles.py
groups      start, sample, score, collect batches       groups.py
progress    steps, evaluations, checkpoints             progress.py

train_step      train → publish → log → checkpoint, if due; the checkpoint is sealed during the next step
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.hosts.hosts import Hosts, open_hosts
from zorplex_rl.policy.auto import resolved
from zorplex_rl.policy.load import policy_folder
from zorplex_rl.run import journal
from zorplex_rl.run.folder import MetricsRow
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.sizing.model_shape import shape_of
from zorplex_rl.training.generator import GeneratorHandle
from zorplex_rl.training.groups import Batch, Groups
from zorplex_rl.training.progress import Progress
from zorplex_rl.training.roles import Roles
from zorplex_rl.training.run_log import RunLog


class StopRequest(Exception):
    """The run has stopped on request, after a checkpoint."""


class Controller:
    """Control one run."""

    def __init__(self, config: Config, log: RunLog, hosts: Hosts) -> None:
        self.config = config
        self.log = log
        self.roles = Roles(config, hosts, self._restarted)
        log.say(
            f"starting actors on {self.roles.device}, {config.dtype}, threads: {config.threads}"
        )
        if config.lora_rank:
            trained = shape_of(policy_folder(config.policy)).trained(config.lora_rank)
            log.say(f"adapters of rank {config.lora_rank}: {4 * trained / 1e6:.1f} MB a version")
        self.groups = Groups(config, self.roles, log)
        self.progress = Progress(config, self.roles, log)
        self.stop_requested = False
        """Set it to stop after the present step, with a checkpoint."""
        self.under_way = False
        """Whether another step will follow."""

    @classmethod
    @contextlib.asynccontextmanager
    async def assemble(
        cls,
        config: Config,
        log: RunLog,
        meshes: Sequence[Any] = (),
    ) -> AsyncIterator[Self]:
        """Start every process of ``config``, and stop all of them at the end, whatever happens."""
        config = resolved(config)
        log.folder.save_config(config)
        async with open_hosts(config, meshes) as hosts:
            controller = cls(config, log, hosts)
            try:
                async with log.waiting("loading"):
                    await controller.roles.open()
                yield controller
            finally:
                with contextlib.suppress(Exception):
                    await controller.progress.sealed()
                await controller.roles.close()

    async def begin(self, checkpoint: Path | None = None) -> None:
        """Restore ``checkpoint``, if given. Publish the weights, evaluate them if due, and start the clock."""
        if checkpoint:
            await self.progress.restore(checkpoint)
        self.log.folder.append_journal(journal.session_row(self.progress.step, self.config.steps))
        self.log.write("started", self.progress.step, processes=self.roles.processes)
        await self.groups.publish()
        await self.evaluate_if_due()
        async with self.log.waiting("loading spares"):
            await self.roles.services["generator"].spares_ready()
        self.log.start_clock()
        self.under_way = True

    async def train_step(self, batch: Batch) -> None:
        """Train on ``batch``, publish, log the step and, if due, write a checkpoint. Raises StopRequest."""
        async with self.log.waiting("training"):
            metrics = await self.roles.trainer.step(
                batch.episodes, batch.advantages, batch.reference_logprobs
            )
            await self.groups.publish()
        progress = self.progress
        await progress.sealed()
        await progress.note_step(batch, metrics, is_last=self.stop_requested)
        # Read again: a stop may be requested while the step is logged.
        if progress.is_checkpoint_due or self.stop_requested:
            await progress.checkpoint()
        if self.stop_requested:
            await progress.sealed()
            raise StopRequest

    async def evaluate_if_due(self) -> None:
        """Evaluate the newest weights if due. Nothing else runs meanwhile."""
        if self.progress.evaluation_is_due(self.progress.step):
            await self.progress.evaluate_newest()

    async def pull(self, generator: GeneratorHandle) -> int:
        """Pull into ``generator``, again if its process dies. Returns the version of its weights."""
        while True:
            with contextlib.suppress(ReplicaFailed):
                return await generator.pull(self.roles.trainer)

    async def refresh(self, generator: GeneratorHandle) -> bool:
        """Pull into ``generator``; generator 0 also evaluates if due. Returns False if it died."""
        try:
            version = await generator.pull(self.roles.trainer)
            if generator.index == 0 and self.progress.evaluation_is_due(version):
                await self.progress.evaluate(generator)
        except ReplicaFailed:
            return False
        return True

    async def finish(self) -> MetricsRow:
        """Evaluate the trained policy while it is written. Returns the evaluation."""
        self.under_way = False
        self.log.add_spans(await self.roles.drain_spans())
        writing = asyncio.create_task(self._write_policy())
        try:
            evaluation = await self.progress.evaluate_newest(writing)
        finally:
            writing.cancel()
        await self.progress.sealed()
        return evaluation

    async def _write_policy(self) -> None:
        """Write the trained policy."""
        folder = self.log.folder
        unfinished = folder.begin_policy()
        async with self.log.waiting("writing the policy"):
            await self.roles.trainer.transfer("export", unfinished)
        folder.finish_policy(unfinished)

    def _restarted(self, role: str, restart: Restart) -> None:
        self.log.restarted(self.progress.step, role, restart)
