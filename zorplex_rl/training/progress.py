"""The progress of a run: its steps, its evaluations and its checkpoints.

    step 19 ── step 20 ── checkpoint written ── step 21 …
                               └── sealed (read back, hashed, renamed) during the next step

The state in a checkpoint and the rows of the log belong to one moment: all rows of an evaluation are
written before the state is taken, or after it.
"""

import asyncio
import contextlib
import time
from pathlib import Path

from zorplex_rl.config import Config
from zorplex_rl.learning.signal import LearningSignal
from zorplex_rl.run import journal
from zorplex_rl.run.folder import MetricsRow
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.training.generator import GeneratorHandle
from zorplex_rl.training.groups import Batch
from zorplex_rl.training.roles import Roles
from zorplex_rl.training.run_log import RunLog

SECONDS_BETWEEN_SPANS = 1.0


class Progress:
    """Count and log the steps, evaluations and checkpoints of a run."""

    def __init__(self, config: Config, roles: Roles, log: RunLog) -> None:
        self.config = config
        self.step = 0
        """Steps done so far."""
        self._episodes = 0
        self._roles = roles
        self._log = log
        self._next_evaluation = 0
        self._signal = LearningSignal()
        self._sealing: asyncio.Task[None] | None = None

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether to write a checkpoint after the present step."""
        return self.step >= self.config.steps or self.step % self.config.checkpoint_every == 0

    async def note_step(self, batch: Batch, metrics: MetricsRow, is_last: bool) -> None:
        """Count and log a step on ``batch``. Also collect the spans of all actors if it ``is_last``, before a
        checkpoint, and once every ``SECONDS_BETWEEN_SPANS``."""
        self.step += 1
        self._episodes += int(metrics["episodes"])
        waited = self._log.seconds_since_spans >= SECONDS_BETWEEN_SPANS
        if waited or is_last or self.is_checkpoint_due:
            self._log.add_spans(await self._roles.drain_spans())
        metrics = metrics | {"zero_variance_share": batch.zero_variance_share}
        self._log.folder.append_journal(journal.batch_row(self.step, batch.groups))
        episodes = batch.episodes
        self._log.step(self.step, metrics, self._episodes, episodes[0])
        warning = self._signal.note(episodes, batch.advantages)
        if warning:
            self._log.warn(self.step, warning)

    def evaluation_is_due(self, version: int) -> bool:
        """Return whether to evaluate the weights ``version``. The last ones are evaluated by ``finish``."""
        return self._next_evaluation <= version < self.config.steps

    async def evaluate_newest(self, writing: "asyncio.Task[None] | None" = None) -> MetricsRow:
        """Evaluate the newest weights with the first generator, again if its process dies. Returns the row."""
        generator = self._roles.generators[0]
        while True:
            with contextlib.suppress(ReplicaFailed):
                await generator.pull(self._roles.trainer)
                return await self.evaluate(generator, writing)

    async def evaluate(
        self,
        generator: GeneratorHandle,
        writing: "asyncio.Task[None] | None" = None,
    ) -> MetricsRow:
        """Evaluate ``generator`` on held-out tasks. Returns the row, whose ``seconds`` are those of
        its beginning. With ``writing``, the task that writes the trained policy, it is the run's last row, and
        comes after the policy."""
        began = time.monotonic()
        seconds = self._log.seconds
        tasks = await self._roles.dataset.tasks.route(range(self.config.eval_tasks), "held_out")
        async with self._log.waiting("evaluating", generator.progress):
            episodes = await generator.call("evaluate", tasks)
        await self._roles.score(episodes)
        if writing:
            await writing
        version = generator.version
        every = self.config.eval_every
        self._next_evaluation = version - version % every + every
        row = self._log.evaluation(
            version,
            episodes[::2],
            episodes[1::2],
            seconds=seconds,
            final=writing is not None,
            evaluation_seconds=time.monotonic() - began,
        )
        await asyncio.to_thread(self._log.draw)
        return row

    async def checkpoint(self) -> None:
        """Write a checkpoint, from which the run can be continued once it is ``sealed``."""
        trainer = self._roles.trainer
        folder = self._log.folder
        steps = len(trainer.since_checkpoint)
        unfinished = folder.begin_checkpoint(self.step)
        async with self._log.waiting("writing a checkpoint"):
            await trainer.transfer("save", unfinished / "trainer")
        # Asked for first: nothing else runs while the rest is collected.
        replay_buffer = await self._roles.replay_buffer.state.route()
        state = {
            "step": self.step,
            "episodes": self._episodes,
            "next_evaluation": self._next_evaluation,
            "replay_buffer": replay_buffer,
        } | self._log.state()
        # Saved first: the checkpoint says how much of the timeline belongs to it.
        folder.save_timeline(self._log.timeline)

        async def seal() -> None:
            # This reads back and hashes all that was written.
            finished = await asyncio.to_thread(folder.finish_checkpoint, unfinished, state)
            trainer.checkpointed(finished / "trainer", steps)

        self._sealing = asyncio.create_task(seal())

    async def sealed(self) -> None:
        """Wait until the last checkpoint is complete. Raises StorageError."""
        if self._sealing:
            await asyncio.shield(self._sealing)

    async def restore(self, checkpoint: Path) -> None:
        """Set the roles, these counts and the log back to ``checkpoint``."""
        state = self._log.folder.controller_state(checkpoint)
        async with self._log.waiting("reading the checkpoint"):
            await self._roles.trainer.load(checkpoint / "trainer")
        await self._roles.replay_buffer.load_state.route(state["replay_buffer"])
        self.step = state["step"]
        self._episodes = state["episodes"]
        self._next_evaluation = state["next_evaluation"]
        self._log.resume(state)
        self._log.folder.rewind(checkpoint, state["written"])
        self._log.write("resume", self.step)
        self._log.say(f"continuing after step {self.step}")
