"""``zorplex-rl train``, once everything has been checked: the run as a person meets it, with its live view, signals and last words.

Ctrl-C, SIGTERM, SIGHUP, a closed pipe    a checkpoint after this step, and a stop
the same again, a second later            a stop at once
a disk that is full                       a stop at once, with the way to go on
an exception, a role that is lost         the same; what to lower or to do, and the file with the traceback
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from zorplex_rl.cli.failures import cause_of, sentence_of, settings_to_lower
from zorplex_rl.cli.live import LiveView
from zorplex_rl.cli.log_file import logged_to, record_traceback
from zorplex_rl.cli.output import Output
from zorplex_rl.config import Config
from zorplex_rl.errors import CheckpointError, ConfigError, HostError, StorageError, TaskError, TrainingDiverged
from zorplex_rl.manifest import storing
from zorplex_rl.run_folder import RunFolder, step_of

if TYPE_CHECKING:
    from zorplex_rl.training.controller import Controller

DONE, FAILED, INTERRUPTED = 0, 1, 130
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_WISH_SECONDS = 1.0
"""``timeout`` signals its child and then the child's group, and a held key repeats: what comes within this time says nothing new."""


def run(config: Config, folder: RunFolder, resume: Path | None = None, debug: bool = False) -> int:
    """Train, from the checkpoint ``resume`` on if there is one, and tell how it went. Returns the exit code."""
    # Taken before the view is there, which takes over both streams of a terminal.
    output, errors = Output.of(sys.stdout), Output.of(sys.stderr)
    view = LiveView(config.steps, cast("IO[str]", output))
    wish = StopWish(view.log)
    with logged_to(folder.log, view.log, debug):
        try:
            if resume:
                # It may have become longer.
                folder.save_config(config)
            with view, wish.noted():
                return asyncio.run(_run(config, folder, resume, view, wish, output, errors))
        except Exception as error:
            cause = cause_of(error)
            if isinstance(cause, ConfigError) and not isinstance(cause, TaskError):
                raise cause from error
            record_traceback(error)
            begun = wish.controller is not None and wish.controller.under_way
            _complain(errors, _what_failed(error, cause, config, folder, None if begun else resume))
            return FAILED


def _what_failed(error: Exception, cause: BaseException, config: Config, folder: RunFolder, resume: Path | None) -> str:
    """Return what the user is told of ``error``, behind which is ``cause``: what has happened, what to do, where to read more.

    ``resume`` is the checkpoint that was being restored.
    """
    match cause:
        case StorageError():
            return f"{cause}; free some space; {_how_to_go_on(folder)}"
        case HostError():
            return f"{cause}; {_how_to_go_on(folder)}"
        case CheckpointError():
            # Its files are what was written, or this would have been said before.
            return folder.what_else_than(resume, cause) if resume else f"{cause}; {_what_is_intact(folder)}"
        case TrainingDiverged():
            return _diverged(cause, config, folder)
        case TaskError():
            said = str(cause)
        case _:
            said = sentence_of(error, config)
    go_on, kept = _how_to_go_on(folder), folder.keep_log()
    return f"{said}; {go_on}" + (f"; the traceback is in {shlex.quote(str(kept))}" if kept.exists() else "")


def _diverged(error: TrainingDiverged, config: Config, folder: RunFolder) -> str:
    """Say what went wrong, what to lower, and what is left of the run."""
    names = [name for name in ("learning_rate", "kl_coefficient", "weight_decay") if getattr(config.learner, name)]
    last = folder.newest_checkpoint()
    left = f"the last good checkpoint is {shlex.quote(str(last))}" if last else "there was no checkpoint yet"
    return f"training has diverged: {error}; start again with a lower {settings_to_lower(config, names)}; {left}"


async def _run(
    config: Config,
    folder: RunFolder,
    resume: Path | None,
    view: LiveView,
    wish: StopWish,
    output: Output,
    errors: Output,
) -> int:
    from zorplex_rl.training.controller import StopRequested
    from zorplex_rl.training.loop import run_training

    write_tensorboard = _tensorboard(folder) if config.tensorboard else None

    def show(row: dict[str, Any]) -> None:
        view.update(row)
        if write_tensorboard:
            write_tensorboard(row)

    def say_last(text: str) -> None:
        _complain(errors, text) if output.is_lost else view.log(text)

    training = asyncio.ensure_future(
        run_training(config, folder, resume, show, view.log, lambda: draw_curve(folder), wish.begin)
    )
    wish.listen(training, output)
    try:
        before, after = await training
    except StopRequested:
        why = "the output was closed: " if output.is_lost else ""
        say_last(f"{why}stopped after a checkpoint; {_how_to_go_on(folder)}")
        return INTERRUPTED
    except asyncio.CancelledError:
        if folder.is_finished(config.steps):
            say_last(f"everything is in {folder.path}")
        elif wish.training_is_done:
            say_last(f"the training is done, all but its last evaluation; to make up for that, {_how_to_go_on(folder)}")
        else:
            say_last(f"stopped at once; {_how_to_go_on(folder)}")
        return INTERRUPTED
    for name in ("greedy", "sampled"):
        view.log(f"held-out accuracy, {name}: {before[f'{name}_accuracy']:.2f} → {after[f'{name}_accuracy']:.2f}")
        view.log(f"    {_what_changed(before['outcomes'][name], after['outcomes'][name])}")
    view.log(f"{after['seconds']:.0f} s of training; everything is in {folder.path}")
    return DONE


def _what_changed(before: dict[str, float], after: dict[str, float]) -> str:
    """Say which shares of outcomes were there before and after training; those that never occurred are left out.

    >>> _what_changed({"success": 0.25, "wrong_format": 0.75, "truncated": 0.0}, {"success": 1.0, "wrong_format": 0.0, "truncated": 0.0})
    'success 25 → 100 %, wrong format 75 → 0 %'
    """
    there = [outcome for outcome in before if before[outcome] or after[outcome]]
    return ", ".join(f"{o.replace('_', ' ')} {100 * before[o]:.0f} → {100 * after[o]:.0f} %" for o in there)


class StopWish:
    """That somebody wants the run to stop, and how soon."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.controller: Controller | None = None
        self._say = say
        self._training: asyncio.Future[Any] | None = None
        self._asked_at: float | None = None
        self._stop_after_step = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Take signals from now on, also before there is a loop: modules are imported, and an exception in the middle of that may get lost."""
        # Who started this with the signal ignored (``nohup``, a shell's background job) wants it ignored.
        taken = {n: usual for n in STOPS if (usual := signal.getsignal(n)) != signal.SIG_IGN}
        for number in taken:
            signal.signal(number, lambda *_: self._on_signal())
        try:
            yield
        finally:
            for number, usual in taken.items():
                signal.signal(number, usual)

    def begin(self, controller: Controller) -> None:
        """Know ``controller`` from now on, and tell it what was wished for before."""
        self.controller, controller.stop_requested = controller, self._stop_after_step

    @property
    def training_is_done(self) -> bool:
        """Whether only the last evaluation is missing, or in the way."""
        return (
            self.controller is not None
            and not self.controller.under_way
            and self.controller.step >= self.controller.config.steps
        )

    def listen(self, training: asyncio.Future[Any], output: Output) -> None:
        """Take signals, and the end of ``output``, for wishes to stop ``training``."""
        loop = asyncio.get_running_loop()
        self._training = training
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal)
        if self._asked_at is not None:
            training.cancel()
        # A view may redraw itself in a thread.
        output.on_loss = lambda: loop.call_soon_threadsafe(self._stop_soon)

    def _on_signal(self) -> None:
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at < SAME_WISH_SECONDS:
            return
        first, self._asked_at = self._asked_at is None, now
        if first and self.controller and self.controller.under_way:
            self._stop_soon()
            self._say("stopping after this step; press Ctrl-C again to stop without a checkpoint")
            return
        if first:
            done = "the training is done and saved; leaving out its last evaluation"
            self._say(done if self.training_is_done else "stopping")
        if self._training:
            self._training.cancel()

    def _stop_soon(self) -> None:
        self._stop_after_step = True
        if self.controller:
            self.controller.stop_requested = True


def draw_curve(folder: RunFolder) -> None:
    """Draw the learning curve of all rows so far."""
    from zorplex_rl.drawing.plots import learning_curve

    folder.save_curve(learning_curve(folder.metrics()))


def _how_to_go_on(folder: RunFolder) -> str:
    newest = folder.newest_checkpoint()
    if newest is None:
        if folder.is_bare:
            return "nothing has been trained, so start again"
        return "there is no checkpoint to continue from, so start again with another --out"
    return f"continue from the checkpoint of step {step_of(newest)} with: {folder.resume_command}"


def _what_is_intact(folder: RunFolder) -> str:
    try:
        folder.intact_checkpoint()
    except ConfigError as error:
        return str(error)
    return _how_to_go_on(folder)


def _complain(errors: Output, text: str) -> None:
    print(f"zorplex-rl: {text}", file=errors)
    errors.flush()


def _tensorboard(folder: RunFolder) -> Any:
    """A function that writes the numbers of a row as TensorBoard scalars."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder.path / "tensorboard"))

    def write(row: dict[str, Any]) -> None:
        with storing("the TensorBoard events"):
            for name, value in row.items():
                if isinstance(value, int | float) and name != "step":
                    writer.add_scalar(f"{row['event']}/{name}", value, row["step"])
            writer.flush()

    return write
