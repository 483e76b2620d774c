"""The controller: it says what one step is made of, from what three parts do, none of which knows the
inside of another.

    roles       the processes of the run            roles.py
    groups      which start, sampled, scored        groups.py
    progress    steps, evaluations, checkpoints     progress.py

    train_step      train → publish → write down → checkpoint, if one is due; sealed beside the next step
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.hosts.hosts import Hosts, open_hosts
from zorplex_rl.policy.auto import resolved
from zorplex_rl.run import journal
from zorplex_rl.run.folder import MetricsRow
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.training.generator import GeneratorHandle
from zorplex_rl.training.groups import Batch, Groups
from zorplex_rl.training.progress import Progress
from zorplex_rl.training.roles import Roles
from zorplex_rl.training.run_log import RunLog


class StopRequest(Exception):
    """The run was asked to stop, and has written a checkpoint."""


class Controller:
    """One run. Set ``stop_requested`` to have it stop after the next step, with a checkpoint; while
    it is ``under_way``, another step will follow."""

    def __init__(self, config: Config, log: RunLog, hosts: Hosts) -> None:
        self.config = config
        self.log = log
        self.roles = Roles(config, hosts, self._restarted)
        log.say(
            f"starting actors on {self.roles.device}, {config.dtype}, threads: {config.threads}"
        )
        self.groups = Groups(config, self.roles, log)
        self.progress = Progress(config, self.roles, log)
        self.stop_requested = False
        self.under_way = False

    @classmethod
    @contextlib.asynccontextmanager
    async def assemble(
        cls, config: Config, log: RunLog, meshes: Sequence[Any] = ()
    ) -> AsyncIterator[Self]:
        """Start every process of ``config``; stop them all on the way out, whatever happened."""
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
        """Publish and evaluate the first weights, if due, and start the clock; from ``checkpoint``."""
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
        """Train on ``batch``, publish, write the step and, if due, a checkpoint. Raises StopRequest."""
        async with self.log.waiting("training"):
            metrics = await self.roles.trainer.step(
                batch.episodes, batch.advantages, batch.reference_logprobs
            )
            await self.groups.publish()
        await self.progress.sealed()
        await self.progress.note_step(batch, metrics, is_last=self.stop_requested)
        if self.progress.step == 2 and (hint := advice(self.config, self.log.busy)):
            self.log.warn(self.progress.step, hint)
        # A stop may be asked for while the step is written down.
        if self.progress.is_checkpoint_due or self.stop_requested:
            await self.progress.checkpoint()
        if self.stop_requested:
            await self.progress.sealed()
            raise StopRequest

    async def evaluate_if_due(self) -> None:
        """Evaluate the newest weights, if that is due, while nothing else goes on."""
        if self.progress.evaluation_is_due(self.progress.step):
            await self.progress.evaluate_newest()

    async def pull(self, generator: GeneratorHandle) -> int:
        """Have ``generator`` pull, in whichever process. Returns its weights' version."""
        while True:
            with contextlib.suppress(ReplicaFailed):
                return await generator.pull(self.roles.trainer)

    async def refresh(self, generator: GeneratorHandle) -> bool:
        """Have ``generator`` pull, and number 0 evaluate if due. Returns False if it died."""
        try:
            version = await generator.pull(self.roles.trainer)
            if generator.index == 0 and self.progress.evaluation_is_due(version):
                await self.progress.evaluate(generator)
        except ReplicaFailed:
            return False
        return True

    async def finish(self) -> MetricsRow:
        """Write the trained policy and evaluate it: the run is finished. Returns the evaluation."""
        self.under_way = False
        self.log.add_spans(await self.roles.drain_spans())
        folder = self.log.folder
        unfinished = folder.begin_policy()
        async with self.log.waiting("writing the policy"):
            await self.roles.trainer.transfer("export", unfinished)
        folder.finish_policy(unfinished)
        evaluation = await self.progress.evaluate_newest(final=True)
        await self.progress.sealed()
        return evaluation

    def _restarted(self, role: str, restart: Restart) -> None:
        self.log.restarted(self.progress.step, role, restart)


def advice(config: Config, busy: Mapping[str, float]) -> str | None:
    """Return a sentence if, with these ``busy`` shares, one role idles more than half of the time and
    would have more threads in turns; else None."""
    of_trainer = [share for actor, share in busy.items() if actor.startswith("trainer")]
    of_generators = [share for actor, share in busy.items() if actor.startswith("generator")]
    if not of_trainer or not of_generators:
        return None
    trainer, generator = fmean(of_trainer), fmean(of_generators)
    in_turns = resolved(config.changed(max_lag=0, threads="auto"))
    if min(trainer, generator) >= 0.5 or int(in_turns.threads) <= int(config.threads):
        return None
    return (
        f"the trainer works {trainer:.0%} of the time, a generator {generator:.0%}: "
        f"in turns (--max-lag 0), with {in_turns.threads} threads, a step is faster on this machine"
    )
