"""The two training loops. Both use only the controller (``controller.py``).

          tasks            episodes             scored groups           batch
    dataset ──► generators ────────► reward ──────────────► groups ────────► trainer
                    ▲                                      (bounded age)        │
                    └───────────────────── weights ◄────────────────────────────┘

    who           sync waits for                    async waits for
    generators    the trainer, every step           the age bound: no group starts that would be too old when used
    trainer       the generators, every step        a complete batch

With ``max_lag`` 0 a run uses ``train_sync``, which is the algorithm. Otherwise it uses ``train_async``:
the generators write the next batch while the trainer works on this one. At ``max_lag`` 0 that waits
exactly as ``train_sync`` does, and has the same result; on a CPU, bit for bit.
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
from zorplex_rl.training.run_log import RunLog, ignore

TrainingLoop = Callable[[Controller], Coroutine[Any, Any, None]]


async def train_sync(controller: Controller) -> None:
    """Repeat for each step: sample a whole batch with the newest weights, train on it, publish."""
    generators = controller.roles.generators
    groups = controller.groups
    while controller.progress.step < controller.config.steps:
        # Normally this runs once. If a generator dies, its groups are sampled again.
        while shares := await groups.admit_step():
            await run_together(*map(controller.pull, generators))
            sampled = map(groups.sample, generators, shares)
            await run_together(*map(groups.score_and_store, sampled))
        batch = await groups.next_batch()
        assert batch is not None, "there is a batch for every step"
        await controller.train_step(batch)
        await controller.evaluate_if_due()


async def train_async(controller: Controller) -> None:
    """Run generators and trainer side by side, each at its own pace within the age bound. Evaluations are part
    of ``controller.refresh``."""
    generators = controller.roles.generators
    await run_together(
        train(controller), *(generate(controller, generator) for generator in generators)
    )


async def train(controller: Controller) -> None:
    """Run the trainer until there is no batch left: train on one and publish, while the next is collected."""
    upcoming = asyncio.create_task(controller.groups.next_batch())
    try:
        while (batch := await upcoming) is not None:
            upcoming = asyncio.create_task(controller.groups.next_batch())
            await controller.train_step(batch)
    finally:
        upcoming.cancel()
        await controller.groups.end()


async def generate(controller: Controller, generator: GeneratorHandle) -> None:
    """Run one generator until training is over: pull the newest weights, and start the groups that they may
    sample. Each call is a task, so a slow group does not delay the next ones."""
    groups = controller.groups
    sampling: set[asyncio.Task[Any]] = set()
    async with asyncio.TaskGroup() as side:
        while True:
            if groups.is_behind(generator):
                if controller.config.on_update == "wait":
                    # With "wait" a group has one version, so it ends before the weights change.
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
                    # The next round pulls. If the trainer has died, this waits for the next one.
                    await controller.roles.trainer.actor()
                case Admission("over"):
                    break
        for task in sampling:
            # These groups are not needed any more.
            task.cancel()


async def run_training(
    config: Config,
    folder: RunFolder,
    resume: Path | None = None,
    show: Callable[[MetricsRow], None] = ignore,
    say: Callable[[str], None] = ignore,
    draw: Callable[[], None] = ignore,
    on_start: Callable[[Controller], None] = ignore,
    loop: TrainingLoop | None = None,
    meshes: Sequence[Any] = (),
) -> tuple[MetricsRow, MetricsRow]:
    """Run a whole training: start the actors, evaluate, train, save, evaluate, stop everything.
    Returns the first and the last evaluation.

    ``resume`` is the checkpoint of ``folder`` to continue from. ``show``, ``say`` and ``draw`` are
    those of ``RunLog``. ``on_start`` is called with the controller when all actors are ready.
    ``loop`` replaces the one that ``max_lag`` selects. ``meshes`` are hosts that a job has started.

    Raises GivenUp if a role cannot be kept alive, StopRequest after a requested stop, ConfigError
    if another process writes to ``folder``, and StorageError.
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
