"""The two training loops. Both talk to the controller (``controller.py``) only.

          tasks            episodes             scored groups           batch
    dataset ──► generators ────────► reward ──────────────► groups ────────► trainer
                    ▲                                      (bounded age)        │
                    └───────────────────── weights ◄────────────────────────────┘

    who           sync: waits for                   async: waits for
    generators    the trainer, every step           the age bound: no group may start that would be too old when used
    trainer       the generators, every step        a complete batch
    both          —                                 at max_lag 0 exactly as in sync, and with the same result, on a CPU bit for bit

``max_lag`` 0 is ``train_sync``, which is the algorithm. More is ``train_async``, where the generators
already write the next batch while the trainer works on one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.run.folder import MetricsRow, RunFolder
from zorplex_rl.services.runtime import run_together
from zorplex_rl.training.actors import Admission
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.generator import GeneratorHandle
from zorplex_rl.training.run_log import RunLog

TrainingLoop = Callable[[Controller], Coroutine[Any, Any, None]]


async def train_sync(controller: Controller) -> None:
    """Generate a whole batch with the newest weights, train on it, publish; again."""
    generators = controller.roles.generators
    groups = controller.groups
    while controller.progress.step < controller.config.steps:
        # Once, normally. A generator that dies gives its groups back, and they are started again.
        while shares := await groups.admit_step():
            await run_together(*(controller.pull(generator) for generator in generators))
            sampled = (
                groups.sample(g, share) for g, share in zip(generators, shares, strict=False)
            )
            await run_together(*map(groups.score_and_store, sampled))
        batch = await groups.next_batch()
        assert batch is not None, "there is a batch for every step"
        await controller.train_step(batch)
        await controller.evaluate_if_due()


async def train_async(controller: Controller) -> None:
    """Run generators and trainer side by side, each at its own pace within the age bound.
    Evaluations are part of ``controller.refresh``."""
    generators = controller.roles.generators
    await run_together(
        train(controller), *(generate(controller, generator) for generator in generators)
    )


async def train(controller: Controller) -> None:
    """Run the trainer: improve on one batch while the next is fetched, and publish, until all has
    been trained on."""
    upcoming = asyncio.create_task(controller.groups.next_batch())
    try:
        while (batch := await upcoming) is not None:
            upcoming = asyncio.create_task(controller.groups.next_batch())
            await controller.train_step(batch)
    finally:
        upcoming.cancel()
        await controller.groups.end()


async def generate(controller: Controller, generator: GeneratorHandle) -> None:
    """Run one generator: pull the newest weights and start the groups that they may sample, until
    training is over. A slow group does not delay the next ones: each has a task."""
    groups = controller.groups
    sampling: set[asyncio.Task[Any]] = set()
    async with asyncio.TaskGroup() as side:
        while True:
            if groups.is_behind(generator):
                if controller.config.on_update == "wait":
                    # A group is of one version, so it ends before the weights change.
                    await asyncio.gather(*sampling)
                if not await controller.refresh(generator):
                    continue
            match await groups.admit(generator):
                case Admission("start", numbers):
                    sampled = side.create_task(groups.sample(generator, numbers))
                    sampling.add(sampled)
                    sampled.add_done_callback(sampling.discard)
                    side.create_task(groups.score_and_store(sampled))
                case Admission("pull"):
                    # The next round pulls. If there is no trainer to pull from, this waits for it.
                    await controller.roles.trainer.actor()
                case Admission("over"):
                    break
        for task in sampling:
            # Training is over: these groups are no longer needed.
            task.cancel()


async def run_training(
    config: Config,
    folder: RunFolder,
    resume: Path | None = None,
    show: Callable[[MetricsRow], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
    draw: Callable[[], None] = lambda: None,
    on_start: Callable[[Controller], None] = lambda controller: None,
    loop: TrainingLoop | None = None,
    meshes: Sequence[Any] = (),
) -> tuple[MetricsRow, MetricsRow]:
    """Run a whole training: start the actors, evaluate, train, save, evaluate, stop everything.
    Returns the first and the last evaluation.

    ``resume`` is the checkpoint of ``folder`` to continue from. ``show``, ``say`` and ``draw`` are
    those of ``RunLog``. ``on_start`` gets the controller when its actors are up. ``loop`` replaces
    the one that ``max_lag`` selects. ``meshes`` are the hosts, if a job has started them.

    Raises GivenUp when a role cannot be kept alive; StopRequest if ``controller.stop_requested``
    was set, after a checkpoint; ConfigError if another process writes to ``folder``; StorageError.
    """
    loop = loop or (train_sync if config.max_lag == 0 else train_async)
    log = RunLog(folder, show, say, draw)
    with folder.locked():
        async with Controller.assemble(config, log, meshes) as controller:
            on_start(controller)

            async def whole_run() -> MetricsRow:
                await controller.begin(resume)
                await loop(controller)
                return await controller.finish()

            last_evaluation = await controller.roles.unless_given_up(whole_run())
        folder.save_timeline(log.timeline)
    return folder.evaluations()[0], last_evaluation
