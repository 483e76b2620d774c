"""Train a policy: ``zorplex-rl train``, in a new folder, or further in an old one.

Ctrl-C, SIGTERM, SIGHUP             a checkpoint after this step, and a stop
the same again, a second later      a stop at once
"""

import asyncio
import contextlib
import io
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from zorplex_rl.cli.live import LiveView
from zorplex_rl.cli.presets import PresetName, preset_config
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TrainingDiverged, ZorplexError
from zorplex_rl.run.folder import KEPT_CHECKPOINTS, RunFolder, step_of

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE, FAILED, INTERRUPTED = 0, 1, 130
FREE = ("steps", "trainer_processes", "hosts", "insecure", "task_data")
"""Settings in which a continued run may differ."""
SAME_WISH_SECONDS = 1.0
"""Two signals within this time are one wish: ``timeout`` sends two."""


@dataclass(frozen=True)
class Train:
    """Train a policy with reinforcement learning, each role in its own process."""

    config: Config = field(default_factory=Config)
    preset: PresetName | None = None
    """Tuned settings; explicit flags win."""
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint; --steps makes it longer."""

    def defaults(self) -> "Train | None":
        """Return the command with what a preset, or the run to continue, sets."""
        if self.resume and (self.preset or self.out):
            raise ConfigError(
                "--resume keeps the run's settings and folder; leave out --preset and --out"
            )
        if self.preset:
            return Train(preset_config(self.preset))
        if not self.resume:
            return None
        _, earlier = RunFolder.reopen(self.resume)
        # A folder does not decide what code runs, and where: these flags are given again.
        hosts = "this" if earlier.hosts.startswith(("attach", "job")) else earlier.hosts
        task = Config.task if earlier.is_own_task else earlier.task
        return Train(replace(earlier, hosts=hosts, insecure=False, task=task, task_data=None))

    def run(self) -> int:
        from zorplex_rl.policy.auto import resolved

        config = self.config
        config.check()
        if not self.resume:
            config = resolved(config)
            # Several runs may begin in one second.
            path = self.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            return train(config, RunFolder.create(path, config, check_needs(config)))
        folder, earlier = RunFolder.reopen(self.resume)
        # A run may be made longer, and go on with other processes and machines.
        free = {name: config.settings()[name] for name in FREE}
        if difference := earlier.changed(**free).difference(config):
            raise ConfigError(
                f"--resume {str(self.resume)!r} was begun with another configuration: {difference}"
            )
        if folder.is_finished(config.steps):
            print(
                f"the run in {self.resume} is finished; to go on, give it more --steps than {config.steps}"
            )
            return DONE
        checkpoint = folder.newest_checkpoint()
        if config.steps < step_of(checkpoint):
            raise ConfigError(
                f"--steps is {config.steps}, but the run has done {step_of(checkpoint)} already"
            )
        check_needs(config)
        with folder.locked():
            folder.save_config(config)
        return train(config, folder, checkpoint)


def check_needs(config: Config) -> int:
    """Check what a run of ``config`` needs besides bounds. Returns the bytes of its checkpoints.
    Raises ConfigError."""
    from zorplex_rl.cli.size import warn_of_memory, workload_of
    from zorplex_rl.devices import devices_of
    from zorplex_rl.hosts.hosts import check_encryption, parse_hosts
    from zorplex_rl.policy.load import whole_folder
    from zorplex_rl.sizing.model_shape import shape_of
    from zorplex_rl.task.own_task import EnvironmentSource

    if {config.learner.clip_low, config.learner.clip_high, config.learner.truncation} != {None}:
        # Only then: it loads torch, which takes a second.
        from zorplex_rl.learning.learner import loss_of

        loss_of(config.learner)
    kind, addresses = parse_hosts(config.hosts)
    if kind == "attach":
        check_encryption(addresses, config.insecure)
    environment = EnvironmentSource.of(config).make()
    folder = whole_folder(config.policy)
    devices = devices_of(config)
    shape = shape_of(folder)
    work = workload_of(config, folder, shape, environment)
    if set(devices.values()) == {"cpu"}:
        warn_of_memory(config, shape, work)
    # Weights and two moments in float32 in each: the new one is written before an old one goes.
    checkpoints = min(-(-config.steps // config.checkpoint_every), KEPT_CHECKPOINTS + 1)
    return 4 * shape.parameters * (3 * checkpoints + 1)


def train(config: Config, folder: RunFolder, checkpoint: Path | None = None) -> int:
    """Train, from ``checkpoint`` if given, and tell of it. Returns the exit code."""
    view = LiveView(config.steps)
    with logged_to(folder.log, view.log), folder.locked(), view:
        try:
            return asyncio.run(_train(config, folder, checkpoint, view))
        except Exception as error:
            logging.getLogger("zorplex_rl.cli").debug("the run has failed", exc_info=error)
            view.log(
                f"zorplex-rl: {in_a_sentence(error, folder)}; the traceback is in {folder.log}"
            )
            return FAILED


def in_a_sentence(error: Exception, folder: RunFolder) -> str:
    """Say what has ended a run, and how to go on."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    said = (
        str(error)
        if isinstance(error, ZorplexError)
        else f"{type(error).__name__}: {error}".splitlines()[0]
    )
    if isinstance(error, TrainingDiverged):
        return f"{said}; start again with a lower --learning-rate"
    if any(words in said for words in ("OutOfMemoryError", "MemoryError", "allocate memory")):
        return f"{said}; start again with a lower --token-budget, --slots or --max-tokens"
    return f"{said}; {folder.how_to_go_on}"


async def _train(config: Config, folder: RunFolder, checkpoint: Path | None, view: LiveView) -> int:
    from zorplex_rl.run.plots import learning_curve
    from zorplex_rl.training.controller import Controller, StopRequest
    from zorplex_rl.training.loop import run_training

    controllers: list[Controller] = []

    def draw() -> None:
        folder.save_curve(learning_curve(folder.metrics()))

    run = run_training(config, folder, checkpoint, view.update, view.log, draw, controllers.append)
    training, asked = asyncio.ensure_future(run), -math.inf

    def stop() -> None:
        nonlocal asked
        if controllers and controllers[0].under_way and not controllers[0].stop_requested:
            controllers[0].stop_requested = True
            asked = time.monotonic()
            view.log("stopping after this step; press Ctrl-C again to stop without a checkpoint")
        elif time.monotonic() - asked > SAME_WISH_SECONDS:
            training.cancel()

    def hang_up() -> None:
        # The terminal is gone: what is written to it would fail.
        sys.stdout = io.StringIO()
        stop()

    for number in STOPS:
        # One that the program was started to ignore (nohup) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(
                number, hang_up if number == signal.SIGHUP else stop
            )
    try:
        before, after = await training
    except (StopRequest, asyncio.CancelledError) as stopped:
        when = "after a checkpoint" if isinstance(stopped, StopRequest) else "at once"
        view.log(f"stopped {when}; {folder.how_to_go_on}")
        return INTERRUPTED
    for name in ("greedy", "sampled"):
        view.log(
            f"held-out accuracy, {name}: {before[f'{name}_accuracy']:.2f} → {after[f'{name}_accuracy']:.2f}"
        )
        view.log(f"    {what_changed(before['outcomes'][name], after['outcomes'][name])}")
    view.log(f"{after['seconds']:.0f} s of training; everything is in {folder.path}")
    return DONE


def what_changed(before: dict[str, float], after: dict[str, float]) -> str:
    """Return the shares of outcomes before and after: ``success 25 → 100 %, wrong format 75 → 0 %``."""
    there = [outcome for outcome in before if before[outcome] or after[outcome]]
    return ", ".join(
        f"{o.replace('_', ' ')} {100 * before[o]:.0f} → {100 * after[o]:.0f} %" for o in there
    )


@contextlib.contextmanager
def logged_to(file: Path, say: Callable[[str], Any]) -> Iterator[None]:
    """Write all that is logged, and Python's warnings, to ``file``; ``say`` the package's own."""
    root, own = logging.getLogger(), logging.getLogger("zorplex_rl")
    kept, told = (
        logging.FileHandler(file, encoding="utf-8", delay=True),
        logging.Handler(logging.WARNING),
    )
    kept.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    told.emit = lambda record: say(record.getMessage())  # type: ignore[method-assign]
    # On a full disk there is no log; what has ended the run is said on the terminal.
    kept.handleError = lambda record: None  # type: ignore[method-assign]
    root.addHandler(kept)
    own.addHandler(told)
    own.setLevel(logging.DEBUG)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(kept)
        own.removeHandler(told)
        with contextlib.suppress(OSError):
            kept.close()
