"""``zorplex-rl replay``: execute a run again from its journal, in this process alone; unchanged, or
with one thing changed.

    zorplex-rl replay RUN                       is it the same, bit for bit? exit code 1 and the first difference if not
    zorplex-rl replay RUN --max-lag 4           what would it have been? the difference in accuracy, and the seconds
    zorplex-rl replay RUN --loss tis --out a.svg
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from zorplex_rl.cli.eval import check_writable
from zorplex_rl.cli.failures import DONE, FAILED
from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import Config, Device, LearnerConfig
from zorplex_rl.run_folder import read_config

if TYPE_CHECKING:
    from rich.console import Console

    from zorplex_rl.drawing.two_runs import Curves
    from zorplex_rl.simulation.replay import Progress, Recording
    from zorplex_rl.simulation.what_if import Pair, WhatIf

CHANGES = {
    f"--{name.replace('_', '-')}"
    for name in (
        *(f.name for f in fields(LearnerConfig)),
        "max_lag",
        "temperature",
        "without_fault",
        "seeds",
        "out",
    )
}
"""Flags with which the replay is not unchanged."""


@dataclass(frozen=True)
class Replay(Command):
    """Execute a run again from its journal, in this process alone. Unchanged, it is compared with
    the run bit for bit. With a setting changed, both are executed on the same random draws. What is
    left out is as in the run; the defaults shown are those of a new run."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """How the learner makes the next version of the weights from a batch."""
    max_lag: int = Config.max_lag
    """How many versions old the weights that sampled a group may be. Another one has another
    schedule, which the simulator makes from the run's timeline."""
    temperature: float = Config.temperature
    """Temperature of sampling in training."""
    without_fault: bool = False
    """No process dies; the schedule is the simulator's."""
    seeds: int = 3
    """With something changed: repeat both with so many seeds, the run's own first."""
    out: Path | None = None
    """With something changed: draw both runs beside one another into this SVG file."""
    device: Device = "auto"
    """auto is CUDA where there is one. Bit for bit a replay is the same only on the run's device, a
    CPU, and its machine."""
    task: str | None = None
    """Of a run with a task of your own: its file again."""
    task_data: str | None = None
    """Likewise the text file that the task reads."""


def defaults_of(command: Replay) -> Replay:
    """Return the command with the settings of its run, which are in force where a flag is left
    out. Raises ConfigError if there is no run."""
    config = read_config(command.run, "the run")
    return replace(
        command,
        learner=config.learner,
        max_lag=config.max_lag,
        temperature=config.temperature,
        device=config.device,
    )


def replay(command: Replay, given: Sequence[str]) -> int:
    """Replay the run as the command line ``given`` says. Returns the exit code: 1 if an unchanged
    replay differs."""
    from zorplex_rl.drawing.two_runs import two_runs
    from zorplex_rl.simulation import what_if
    from zorplex_rl.simulation.replay import read_recording
    from zorplex_rl.training.devices import assign_devices, prepare

    if command.out:
        check_writable("--out", command.out)
    device = assign_devices(command.device, ["policy"])["policy"]
    prepare(device, read_config(command.run, "the run").threads)
    recording = read_recording(command.run, device, command.task, command.task_data)
    config = recording.config.changed(max_lag=command.max_lag, temperature=command.temperature, **vars(command.learner))
    config = what_if.with_own_knobs(config, recording.config)
    console = plain_console()
    if not CHANGES & {argument.partition("=")[0].replace("_", "-") for argument in given}:
        return _unchanged(recording, console)
    # What changes nothing is said before the work begins.
    what_if.expect_change(recording, config, command.without_fault)
    with _progress(console, 2 * command.seeds * recording.journal.steps) as on_step:
        found = what_if.what_if(recording, config, command.without_fault, command.seeds, on_step)
    _tell(found, console)
    if command.out:
        command.out.write_text(two_runs([curves_of(pair) for pair in found.pairs], found.change, found.why))
        console.print(f"the two runs are drawn in {command.out}")
    return DONE


def _unchanged(recording: Recording, console: Console) -> int:
    """Replay the run unchanged, and say whether it is the same."""
    from zorplex_rl.simulation.replay import replay as replay_unchanged

    with _progress(console, recording.journal.steps) as on_step:
        found = replay_unchanged(recording, on_step)
    counts = {
        "episodes": (found.same_episodes, found.episodes),
        "steps": (found.same_steps, found.steps),
        "evaluations": (found.same_evaluations, found.evaluations),
        "files of weights": (len(found.same_weights), len(found.weights)),
    }
    told = ", ".join(f"{same} of {all_} {name}" for name, (same, all_) in counts.items())
    console.print(f"the same, bit for bit: {told}")
    if found.is_equal:
        return DONE
    console.print(f"the first difference: {found.first_difference}")
    console.print(f"the likeliest reason: {found.why}")
    return FAILED


def _tell(found: WhatIf, console: Console) -> None:
    """Print where the runs part, the differences in accuracy, and the seconds."""
    from rich.table import Table

    seeds = f"{len(found.pairs)} seed{'s' if len(found.pairs) > 1 else ''}"
    table = Table(title=f"{found.change}; {seeds}", title_justify="left")
    table.add_column("held-out accuracy")
    for column in ("as it was", "changed", "difference", "95 % interval"):
        table.add_column(column, justify="right")
    for measure in found.measures:
        difference, interval = found.difference(measure)
        between = f"{interval[0]:+.1%} to {interval[1]:+.1%}" if interval else "needs two seeds"
        was, now = found.means(measure)
        table.add_row(measure, f"{was:.1%}", f"{now:.1%}", f"{difference:+.1%}", between)
    console.print(table)
    console.print(f"seed {found.pairs[0].seed}: {found.why}")
    before, after = found.predicted
    said = f"seconds of training: {found.seconds:.1f} measured"
    said += f", {before:.1f} simulated as it was" if before is not None else ""
    said += f", {after:.1f} simulated with the change" if after is not None else "; the change keeps the schedule"
    console.print(said)
    if found.note:
        console.print(found.note)


def curves_of(pair: Pair) -> Curves:
    """Return what ``two_runs`` draws of a pair."""
    from zorplex_rl.drawing.two_runs import Curves

    first, second = ([(e.version, e.sampled) for e in run.evaluations] for run in (pair.original, pair.changed))
    return Curves((first, second), (pair.original.lags, pair.changed.lags), pair.same_episodes(), pair.parted)


@contextlib.contextmanager
def _progress(console: Console, steps: int) -> Iterator[Progress]:
    """Yield what is called after each step, which moves a bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("steps", total=steps)
        yield lambda step: bar.advance(task)
