"""``zorplex-rl train``, once everything has been checked: the run as a person meets it, with its live view, Ctrl-C and last words."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TrainingDiverged
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.viz.live import LiveView

DONE, FAILED, INTERRUPTED = 0, 1, 130


def run(config: Config, folder: RunFolder, resume: bool) -> int:
    """Train, and tell how it went; the exit code."""
    from zorplex_rl.services.runtime import ActorError

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        with LiveView(config.steps) as view:
            return asyncio.run(_run(config, folder, resume, view))
    except ActorError as error:
        if isinstance(error.exception, ConfigError):
            raise error.exception from error
        if not isinstance(error.exception, TrainingDiverged):
            raise
        print(f"zorplex-rl: {_diverged(error.exception, config, folder)}", file=sys.stderr)
        return FAILED


def _diverged(error: TrainingDiverged, config: Config, folder: RunFolder) -> str:
    """Say what went wrong, what to lower, and what is left of the run."""
    lower = [f"--learning-rate (now {config.learning_rate:g})"]
    if config.kl_coefficient:
        lower.append(f"--kl-coefficient (now {config.kl_coefficient:g})")
    last = folder.newest_checkpoint()
    left = f"the last good checkpoint is {shlex.quote(str(last))}" if last else "there was no checkpoint yet"
    return f"training has diverged: {error}; start again with a lower {' or '.join(lower)}; {left}"


async def _run(config: Config, folder: RunFolder, resume: bool, view: LiveView) -> int:
    from zorplex_rl.system.loop import StopRequested, run_training

    write_tensorboard = _tensorboard(folder) if config.tensorboard else None

    def show(row: dict[str, Any]) -> None:
        view.update(row)
        if write_tensorboard:
            write_tensorboard(row)

    training = asyncio.ensure_future(
        run_training(
            config, folder, resume, show, view.log, lambda _, journal: _stop_on_signal(journal, training, view)
        )
    )
    try:
        before, after = await training
    except StopRequested:
        view.log(f"stopped after a checkpoint; continue with: zorplex-rl train --resume {folder.path}")
        return INTERRUPTED
    except asyncio.CancelledError:
        again = f"continue from the last checkpoint with: zorplex-rl train --resume {folder.path}"
        view.log("stopped at once; " + (again if folder.newest_checkpoint() else "there was no checkpoint yet"))
        return INTERRUPTED
    for name in ("greedy", "sampled"):
        view.log(f"held-out accuracy, {name}: {before[f'{name}_accuracy']:.2f} → {after[f'{name}_accuracy']:.2f}")
    view.log(f"{after['seconds']:.0f} s of training; everything is in {folder.path}")
    return DONE


def _stop_on_signal(journal: Any, training: asyncio.Future[Any], view: LiveView) -> None:
    """The first Ctrl-C asks for a checkpoint and a stop, the second stops at once."""

    def handle() -> None:
        if journal.stop_requested:
            training.cancel()
        else:
            journal.stop_requested = True
            view.log("stopping after this step; press Ctrl-C again to stop without a checkpoint")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)


def _tensorboard(folder: RunFolder) -> Any:
    """A function that writes the numbers of a row as TensorBoard scalars."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder.path / "tensorboard"))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                writer.add_scalar(f"{row['event']}/{name}", value, row["step"])
        writer.flush()

    return write
