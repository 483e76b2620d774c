"""Train a policy: ``zorplex-rl train``, in a new folder, or further in an old one.

    train ──► _begin, _continue ──► check_needs ──► run: the live view, signals, the last words

Ctrl-C, SIGTERM, SIGHUP, a closed pipe    see ``stop_wish.py``
a disk that is full                       a stop at once, with the way to go on
an exception, a role that is lost         the same; what to lower or to do, and the file with the traceback
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from zorplex_rl.cli.failures import DONE, FAILED, INTERRUPTED, cause_of, sentence_of, settings_to_lower
from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.log_file import logged_to, record_traceback
from zorplex_rl.cli.output import Output, one_line
from zorplex_rl.cli.train_checks import check_needs, show_plan
from zorplex_rl.config import Config, HostsConfig
from zorplex_rl.errors import (
    CheckpointError,
    ConfigError,
    HostError,
    StorageError,
    TaskError,
    TrainingDiverged,
    WeightPullError,
)
from zorplex_rl.manifest import storing
from zorplex_rl.run_folder import RunFolder, expect_task_named, step_of
from zorplex_rl.sizing.presets import PresetName

if TYPE_CHECKING:
    from zorplex_rl.cli.live import LiveView
    from zorplex_rl.cli.stop_wish import StopWish


@dataclass(frozen=True)
class Train(Command):
    """Train a policy with reinforcement learning, every role in a process of its own."""

    config: Config = field(default_factory=Config)
    preset: PresetName | None = None
    """Settings for a policy of this size; explicit flags win. sizing/presets.py has the reasons."""
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint. Another --steps makes it longer,
    or shorter: from here on the learning rate falls as in a run of that many steps."""
    from_checkpoint: int | None = None
    """With --resume: from the checkpoint of this step. What the run did after it is dropped."""
    plan: bool = False
    """Only say which process would live on which host of --hosts. Starts and writes nothing."""


def cluster_of(earlier: HostsConfig) -> HostsConfig:
    """Return the hosts of ``earlier`` if all are on this machine, else "": where a run goes on.
    Others have to be named again: a host is trusted, and the folder could name anybody's."""
    if earlier.is_elsewhere:
        return HostsConfig(hosts="")
    kept = {name: getattr(earlier, name) for name in ("hosts", "trainer_host", "generators_on", "lease")}
    return HostsConfig(**kept)


def train(command: Train) -> int:
    if command.plan:
        return show_plan(command.config)
    if command.resume:
        if command.out:
            raise ConfigError("--out and --resume exclude each other; a resumed run goes on in its own folder")
        return _continue(command, command.resume)
    if command.from_checkpoint is not None:
        raise ConfigError("--from-checkpoint needs a run to continue; name its folder with --resume")
    return _begin(command)


def _begin(command: Train) -> int:
    """Train in a new folder."""
    from zorplex_rl.cli.stop_wish import stops_held

    config = command.config
    # Weights and two moments in float32, for each kept checkpoint and one more, and the policy.
    source = check_needs(config)
    weight_bytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    bytes_needed = 10 * weight_bytes * (1 if config.dtype == "float32" else 2)
    with contextlib.ExitStack() as stack:
        with stops_held():
            if command.out:
                folder = RunFolder.create(command.out, config, bytes_needed)
            else:
                path = Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
                folder = RunFolder.create_beside(path, config, bytes_needed)
            stack.enter_context(folder.locked())
            stack.callback(_remove_bare, folder)
        return run(config, folder, debug=command.debug)


def _remove_bare(folder: RunFolder) -> None:
    """Remove the run's folder if there is nothing in it, so that the same command can be given again."""
    from zorplex_rl.cli.stop_wish import stops_held

    with stops_held():
        if folder.is_bare:
            folder.remove()


def _continue(command: Train, path: Path) -> int:
    """Train on in the folder ``path``, unless the run there is finished."""
    folder, earlier = RunFolder.reopen(path)
    config = command.config
    expect_task_named(path, earlier, config.task)
    # How many processes and machines a run goes on with, and how long it waits, may be others.
    names = ["steps", "tool_timeout"]
    if config.is_own_task and earlier.is_own_task:
        # The file may be elsewhere now.
        names += ["task", "task_data"]
    free = {name: getattr(config, name) for name in names} | asdict(config.cluster)
    free["trainer_processes"] = config.services.trainer_processes
    if difference := earlier.changed(**free).difference(config):
        raise ConfigError(
            f"--resume {str(path)!r} was begun with another configuration ({difference}); leave the flag out, or start anew"
        )
    with folder.locked():
        if command.from_checkpoint is None and config.steps == earlier.steps and folder.is_finished(config.steps):
            print(
                f"the run in {path} is already finished: {config.steps} of {config.steps} steps; to go on, give it more: "
                f"zorplex-rl train --resume {shlex.quote(str(path))} --steps {2 * config.steps}"
            )
            return 0
        checkpoint = folder.intact_checkpoint(command.from_checkpoint)
        if config.steps < step_of(checkpoint):
            raise ConfigError(
                f"--steps is {config.steps}, but the run in {str(path)!r} has done {step_of(checkpoint)} already; give at least as many"
            )
        folder.controller_state(checkpoint, config)
        check_needs(config)
        return run(config, folder, checkpoint, command.debug)


def run(config: Config, folder: RunFolder, resume: Path | None = None, debug: bool = False) -> int:
    """Train, from the checkpoint ``resume`` if given, and tell of it. Returns the exit code."""
    import asyncio

    from zorplex_rl.cli.live import LiveView
    from zorplex_rl.cli.stop_wish import StopWish

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
                return asyncio.run(_train(config, folder, resume, view, wish, output, errors))
        except Exception as error:
            cause = cause_of(error)
            if isinstance(cause, ConfigError) and not isinstance(cause, TaskError):
                raise cause from error
            record_traceback(error)
            begun = wish.controller is not None and wish.controller.under_way
            _complain(errors, _what_failed(error, cause, config, folder, None if begun else resume))
            return FAILED


def _what_failed(error: Exception, cause: BaseException, config: Config, folder: RunFolder, resume: Path | None) -> str:
    """Return what the user is told of ``error``, from ``cause``: what to do, where to read.
    ``resume`` is the checkpoint that was being restored."""
    match cause:
        case StorageError():
            return f"{cause}; free some space; {_how_to_go_on(folder)}"
        case HostError() | WeightPullError():
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
    names = [
        name
        for name in ("learning_rate", "scale_rate", "kl_coefficient", "weight_decay")
        if getattr(config.learner, name)
    ]
    last = folder.newest_checkpoint()
    left = f"the last good checkpoint is {shlex.quote(str(last))}" if last else "there was no checkpoint yet"
    return f"training has diverged: {error}; start again with a lower {settings_to_lower(config, names)}; {left}"


async def _train(
    config: Config,
    folder: RunFolder,
    resume: Path | None,
    view: LiveView,
    wish: StopWish,
    output: Output,
    errors: Output,
) -> int:
    import asyncio

    from zorplex_rl.training.controller import StopRequest
    from zorplex_rl.training.loop import run_training

    write_tensorboard = _tensorboard(folder) if config.tensorboard else None

    def show(row: dict[str, Any]) -> None:
        view.update(row)
        if write_tensorboard:
            write_tensorboard(row)

    def say_last(text: str) -> None:
        _complain(errors, text) if output.is_lost else view.log(text)

    running = run_training(config, folder, resume, show, view.log, lambda: draw_curve(folder), wish.begin)
    training = asyncio.ensure_future(running)
    wish.listen(training, output)
    try:
        before, after = await training
    except StopRequest:
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
    """Say which shares of outcomes there were before and after training, zeros left out.

    >>> _what_changed({"success": 0.25, "wrong_format": 0.75, "truncated": 0.0}, {"success": 1.0, "wrong_format": 0.0, "truncated": 0.0})
    'success 25 → 100 %, wrong format 75 → 0 %'
    """
    there = [outcome for outcome in before if before[outcome] or after[outcome]]
    return ", ".join(f"{o.replace('_', ' ')} {100 * before[o]:.0f} → {100 * after[o]:.0f} %" for o in there)


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
    print(f"zorplex-rl: {one_line(text)}", file=errors)
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
