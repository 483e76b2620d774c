"""Train a policy: ``zorplex-rl train``, in a new folder, or continued in an old one.

Ctrl-C, SIGTERM, SIGHUP             stop after this step, with a checkpoint
the same again, a second later      stop at once
"""

import asyncio
import contextlib
import io
import logging
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zorplex_rl.cli.live import LiveView
from zorplex_rl.cli.presets import PresetName, preset_config
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TrainingDiverged, ZorplexError
from zorplex_rl.run.folder import KEPT_CHECKPOINTS, RunFolder, step_of

if TYPE_CHECKING:
    from zorplex_rl.training.controller import Controller

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE = 0
FAILED = 1
INTERRUPTED = 130
FREE = ("steps", "trainer_processes", "hosts", "insecure", "task_data")
"""Settings that may change when a run is continued."""
SAME_WISH_SECONDS = 1.0
"""Two signals within this time count as one: ``timeout`` sends two."""


@dataclass(frozen=True)
class Train:
    """Train a policy with reinforcement learning, each role in its own process."""

    config: Config = Config()
    preset: PresetName | None = None
    """Tuned settings; explicit flags win."""
    out: Path | None = None
    """Run folder, or runs/<date>-<time>."""
    resume: Path | None = None
    """Continue a run; --steps extends it."""

    def defaults(self) -> "Train | None":
        """Return the command with what a preset, or the run to continue, sets."""
        if self.resume and (self.preset or self.out):
            problem = "--resume keeps the run's settings and folder"
            raise ConfigError(f"{problem}; leave out --preset and --out")
        if self.preset:
            return Train(preset_config(self.preset))
        if not self.resume:
            return None
        _, earlier = RunFolder.reopen(self.resume)
        # A folder must not decide what code runs, and where: the user gives these flags again.
        hosts = "this" if earlier.hosts.startswith(("attach", "job")) else earlier.hosts
        task = Config.task if earlier.is_own_task else earlier.task
        return Train(replace(earlier, hosts=hosts, insecure=False, task=task, task_data=None))

    def run(self) -> int:
        from zorplex_rl.policy.auto import resolved

        self.config.check()
        if self.resume:
            return self.continue_run(self.resume)
        config = resolved(self.config)
        # Several runs may begin in one second.
        path = self.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        return train(config, RunFolder.create(path, config, check_needs(config)))

    def continue_run(self, path: Path) -> int:
        """Continue the run in ``path``. Returns the exit code."""
        config = self.config
        folder, earlier = RunFolder.reopen(path)
        settings = config.settings()
        expected = earlier.changed(**{name: settings[name] for name in FREE})
        if difference := expected.difference(config):
            raise ConfigError(
                f"--resume {str(path)!r} was begun with another configuration: {difference}"
            )
        if folder.is_finished(config.steps):
            print(
                f"the run in {path} is finished; to go on, give it more --steps than {config.steps}"
            )
            return DONE
        checkpoint = folder.newest_checkpoint()
        step = step_of(checkpoint)
        if config.steps < step:
            raise ConfigError(f"--steps is {config.steps}, but the run has done {step} already")
        check_needs(config)
        with folder.locked():
            folder.save_config(config)
        return train(config, folder, checkpoint)


def check_needs(config: Config) -> int:
    """Check what a run of ``config`` needs: its loss, hosts, task, model and devices. Returns the bytes
    of its checkpoints. Raises ConfigError."""
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
    # Each has what is trained and two moments of it in float32. A new one is written before an old one is removed.
    checkpoints = min(-(-config.steps // config.checkpoint_every), KEPT_CHECKPOINTS + 1)
    return 4 * (shape.trained(config.lora_rank) * 3 * checkpoints + shape.parameters)


def train(config: Config, folder: RunFolder, checkpoint: Path | None = None) -> int:
    """Train, from ``checkpoint`` if given, and show how it goes. Returns the exit code."""
    view = LiveView(config.steps)
    with logged_to(folder.log, view.log), folder.locked(), view:
        try:
            return asyncio.run(_train(config, folder, checkpoint, view))
        except Exception as error:
            logging.getLogger("zorplex_rl.cli").debug("the run has failed", exc_info=error)
            message = in_a_sentence(error, folder)
            view.log(f"zorplex-rl: {message}; the traceback is in {folder.log}")
            return FAILED


def in_a_sentence(error: Exception, folder: RunFolder) -> str:
    """Return what has ended a run, and how to go on, in words."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    problem = str(error)
    if not isinstance(error, ZorplexError):
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    advice = folder.how_to_go_on
    if isinstance(error, TrainingDiverged):
        advice = "start again with a lower --learning-rate"
    elif re.search("OutOfMemoryError|MemoryError|allocate memory", problem):
        advice = "start again with a lower --token-budget, --slots or --max-tokens"
    return f"{problem}; {advice}"


async def _train(config: Config, folder: RunFolder, checkpoint: Path | None, view: LiveView) -> int:
    from zorplex_rl.run.plots import learning_curve
    from zorplex_rl.training.controller import Controller, StopRequest
    from zorplex_rl.training.loop import run_training

    controllers: list[Controller] = []

    def draw() -> None:
        folder.save_curve(learning_curve(folder.metrics()))

    run = run_training(config, folder, checkpoint, view.update, view.log, draw, controllers.append)
    training = asyncio.ensure_future(run)
    StopSignals(training, controllers, view).listen()
    try:
        before, after = await training
    except (StopRequest, asyncio.CancelledError) as stopped:
        when = "after a checkpoint" if isinstance(stopped, StopRequest) else "at once"
        view.log(f"stopped {when}; {folder.how_to_go_on}")
        return INTERRUPTED
    for name in ("greedy", "sampled"):
        accuracies = f"{before[f'{name}_accuracy']:.2f} → {after[f'{name}_accuracy']:.2f}"
        view.log(f"held-out accuracy, {name}: {accuracies}")
        view.log(f"    {what_changed(before['outcomes'][name], after['outcomes'][name])}")
    view.log(f"{after['seconds']:.0f} s of training; everything is in {folder.path}")
    return DONE


@dataclass
class StopSignals:
    """Stop ``training`` on a signal: first after the present step, the second time at once."""

    training: "asyncio.Future[Any]"
    controllers: "list[Controller]"
    """The run's controller, as soon as there is one."""
    view: LiveView
    first: float = -math.inf
    """When the first signal came."""

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            # A signal that the program was started to ignore (nohup) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self.stop, number)

    def stop(self, number: int) -> None:
        if number == signal.SIGHUP:
            # The terminal is gone: writing to it would fail.
            sys.stdout = io.StringIO()
        for controller in self.controllers:
            if controller.under_way and not controller.stop_requested:
                controller.stop_requested = True
                self.first = time.monotonic()
                self.view.log(
                    "stopping after this step; press Ctrl-C again to stop without a checkpoint"
                )
                return
        if time.monotonic() - self.first > SAME_WISH_SECONDS:
            self.training.cancel()


def what_changed(before: dict[str, float], after: dict[str, float]) -> str:
    """Return the shares of outcomes before and after: ``success 25 → 100 %, wrong format 75 → 0 %``."""
    changes = []
    for outcome, share in before.items():
        if share or after[outcome]:
            name = outcome.replace("_", " ")
            changes.append(f"{name} {100 * share:.0f} → {100 * after[outcome]:.0f} %")
    return ", ".join(changes)


@contextlib.contextmanager
def logged_to(file: Path, show: Callable[[str], Any]) -> Iterator[None]:
    """Write all that is logged, and Python's warnings, to ``file``; ``show`` the package's warnings."""
    log = logging.FileHandler(file, encoding="utf-8", delay=True)
    log.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    # On a full disk there is no log; the terminal shows what has ended the run.
    log.handleError = lambda record: None  # type: ignore[method-assign]
    shown = logging.Handler(logging.WARNING)
    shown.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    package = logging.getLogger("zorplex_rl")
    root.addHandler(log)
    package.addHandler(shown)
    package.setLevel(logging.DEBUG)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(log)
        package.removeHandler(shown)
        with contextlib.suppress(OSError):
            log.close()
