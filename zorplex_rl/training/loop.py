"""The two training loops.

          tasks            episodes             scored groups           batch
    dataset ──► generators ────────► reward ──────────────► replay ────────► trainer
                    ▲                                      (bounded age)        │
                    └───────────────────── weights ◄────────────────────────────┘

    who           sync: waits for                   async: waits for
    generators    the trainer, every step           the age bound: no group may start that would be too old when used
    trainer       the generators, every step        a complete batch
    both          —                                 with max_lag 0 exactly as in sync, and with the same result, on a CPU bit for bit

``train_sync`` is the algorithm. ``train_async`` is the same parts with the turns taken out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from zorplex_rl.config import Config
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.requests import ReplicaFailed
from zorplex_rl.services.runtime import run_together
from zorplex_rl.task.curriculum import ladder_of, tier_of
from zorplex_rl.training.crew import Crew
from zorplex_rl.training.generators import Worker
from zorplex_rl.training.journal import Journal, Row, StopRequested

Result = TypeVar("Result")


async def train_sync(crew: Crew, journal: Journal) -> None:
    """Generate a whole batch with the newest weights, train on it, publish; again."""
    config, workers = crew.config, crew.workers
    for step in range(journal.step, config.steps):
        # Once, normally. A worker that dies gives its groups back, and they are started again.
        while numbers := await crew.replay.admit_now.call_one(step, config.prompts_per_step):
            await asyncio.gather(*(pull(crew, worker) for worker in workers))
            shares = [numbers[first : first + config.share] for first in range(0, len(numbers), config.share)]
            await asyncio.gather(*(crew.collect(w, share) for w, share in zip(workers, shares, strict=False)))
        batch = await crew.next_batch()
        metrics = await crew.improve(batch)
        await journal.after_step(crew, batch, metrics)
        if journal.evaluation_is_due(journal.step):
            await measure(crew, journal)


async def train_async(crew: Crew, journal: Journal) -> None:
    """Generators and trainer side by side, each at its own pace within the age bound."""
    await run_together(train(crew, journal), *(generate(crew, journal, worker) for worker in crew.workers))


async def generate(crew: Crew, journal: Journal, worker: Worker) -> None:
    """One generator: pull the newest weights and start what they may still be used for, until all has been trained on.

    What has been started is sampled and handed in on the side, so that a slow group does not hold up the next ones.
    """
    config = crew.config
    sampling: set[asyncio.Task[Any]] = set()
    collecting: set[asyncio.Task[None]] = set()
    try:
        while True:
            # While the trainer is being restarted, old weights will do, as far as the age bound allows.
            if worker.version < crew.published and (crew.trainer.is_up or worker.version < 0):
                if config.update == "groups":
                    await asyncio.gather(*sampling)
                try:
                    version = await worker.pull(crew.trainer)
                    if worker.index == 0 and journal.evaluation_is_due(version):
                        await journal.evaluate(crew, worker)
                except ReplicaFailed:
                    continue
            numbers = await _beside(collecting, crew.admit(worker.version, config.share))
            if numbers is None:
                return
            if numbers:
                sampled = asyncio.create_task(crew.sample(worker, numbers))
                sampling.add(sampled)
                sampled.add_done_callback(sampling.discard)
                collecting.add(asyncio.create_task(_hand_in(crew, sampled)))
            else:
                # Only newer weights help.
                await _beside(collecting, crew.trainer.wait_until_up())
    finally:
        for task in (*sampling, *collecting):
            task.cancel()
        await asyncio.gather(*sampling, *collecting, return_exceptions=True)


async def train(crew: Crew, journal: Journal) -> None:
    """The trainer: improve on one batch while the next is fetched, publish."""
    upcoming = asyncio.ensure_future(crew.next_batch())
    try:
        while (batch := await upcoming) is not None:
            upcoming = asyncio.ensure_future(crew.next_batch())
            metrics = await crew.improve(batch)
            await journal.after_step(crew, batch, metrics)
    finally:
        upcoming.cancel()
        await crew.replay.close.call_one()


async def pull(crew: Crew, worker: Worker) -> int:
    """Have ``worker`` take the newest weights, whichever process it has."""
    return await crew.retry(lambda: worker.pull(crew.trainer))


async def _hand_in(crew: Crew, sampled: asyncio.Task[Any]) -> None:
    await crew.hand_in(await sampled)


async def _beside(tasks: set[asyncio.Task[None]], coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``coroutine``, unless one of ``tasks`` fails before: then that failure. Tasks that have ended are forgotten."""
    mine = asyncio.ensure_future(coroutine)
    try:
        while not mine.done():
            done, _ = await asyncio.wait({mine, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {mine}:
                tasks.discard(task)
                task.result()
        return mine.result()
    finally:
        mine.cancel()


async def run_training(
    config: Config,
    folder: RunFolder,
    resume: Path | None = None,
    show: Callable[[Row], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
    on_start: Callable[[Crew, Journal], None] = lambda crew, journal: None,
) -> tuple[Row, Row]:
    """A whole run: bring up the actors, evaluate, train, save, evaluate, stop everything. Returns the first and the last evaluation.

    ``resume`` is the checkpoint of ``folder`` to continue from. A resumed run makes the evaluations that were still due at the checkpoint, and no
    others: an extra one could climb the curriculum before its time.

    Raises StopRequested if ``journal.stop_requested`` was set (``on_start`` hands out both it and the crew) and the run was checkpointed;
    ConfigError if another process writes to ``folder``; StorageError when ``folder`` can no longer be written.
    """
    ladder = ladder_of(config.task) if config.curriculum else (tier_of(config.task, config.difficulty),)
    journal = Journal(config, folder, ladder, show, say)
    with folder.locked():
        async with Crew.assemble(config, ladder[0], say) as crew:
            crew.on_restart = journal.restarted
            on_start(crew, journal)
            if resume:
                await journal.restore(crew, resume)
            await crew.publish()
            if journal.evaluation_is_due(journal.step):
                await measure(crew, journal)
            await crew.services["generator"].spares_ready()
            journal.begin()
            await (train_sync if config.mode == "sync" else train_async)(crew, journal)
            journal.under_way = False
            unfinished = folder.begin_policy()
            await crew.trainer.export(unfinished)
            folder.finish_policy(unfinished)
            # The last row of all: with it the run is finished.
            after = await measure(crew, journal, final=True)
        folder.save_timeline(journal.timeline)
    return folder.evaluations()[0], after


async def measure(crew: Crew, journal: Journal, final: bool = False) -> Row:
    """Evaluate the newest weights, while nothing else goes on."""
    worker = crew.workers[0]

    async def pull_and_evaluate() -> Row:
        await worker.pull(crew.trainer)
        return await journal.evaluate(crew, worker, final)

    return await crew.retry(pull_and_evaluate)


__all__ = ["StopRequested", "run_training", "train_async", "train_sync"]
