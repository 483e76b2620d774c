"""``zorplex-rl replay``: execute a run again from its journal, in this process alone; unchanged, or
with one thing changed.

    zorplex-rl replay RUN                       is it the same, bit for bit? exit code 1 and the first difference if not
    zorplex-rl replay RUN --max-lag 4           what would it have been? the difference in accuracy, and the seconds
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from zorplex_rl.cli.failures import DONE, FAILED
from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import LOSS_KNOBS, Config, Device, LearnerConfig, check_range
from zorplex_rl.run.folder import read_config

if TYPE_CHECKING:
    from rich.console import Console

    from zorplex_rl.simulation.what_if import PairedRuns, Replayed


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
    kept = {name: getattr(config, name) for name in ("learner", "max_lag", "temperature", "device")}
    return replace(command, **kept)


def replay(command: Replay) -> int:
    """Replay the run. Returns the exit code: 1 if an unchanged replay differs."""
    from rich.progress import Progress

    from zorplex_rl.simulation import what_if
    from zorplex_rl.training.devices import assign_devices, prepare

    check_range("seeds", command.seeds, 1, 1000)
    device = assign_devices(command.device, ["policy"])["policy"]
    prepare(device, read_config(command.run, "the run").threads)
    recording = what_if.read_recording(command.run, device, command.task, command.task_data)
    earlier = recording.config
    config = earlier.changed(max_lag=command.max_lag, temperature=command.temperature, **vars(command.learner))
    # What the run's loss has and the new one has not.
    foreign = [knob for knob, losses in LOSS_KNOBS.items() if config.learner.loss not in losses]
    config = config.changed(**{k: None for k in foreign if config.settings()[k] == earlier.settings()[k]})
    console = plain_console()
    with Progress(console=console, transient=True) as bar:
        is_changed = config != earlier or command.without_fault
        task = bar.add_task("steps", total=recording.journal.steps * (2 * command.seeds if is_changed else 1))

        def on_step(step: int) -> None:
            bar.advance(task)

        if not is_changed:
            same = what_if.replay(recording, on_step)
        else:
            found = what_if.what_if(recording, config, command.without_fault, command.seeds, on_step)
    return _tell(found, console) if is_changed else _tell_whether_same(same, console)


def _tell_whether_same(found: Replayed, console: Console) -> int:
    told = ", ".join(f"{found.same[what]} of {count} {what}" for what, count in found.compared.items())
    console.print(f"the same, bit for bit: {told}")
    if found.is_equal:
        return DONE
    console.print(f"the first difference: {found.first_difference}; {found.why}")
    return FAILED


def _tell(found: PairedRuns, console: Console) -> int:
    """Print where the runs part, the differences in accuracy, and the seconds."""
    from rich.table import Table

    from zorplex_rl.simulation.what_if import MEASURES

    columns = ("held-out accuracy", "as it was", "changed", "difference", "95 % interval")
    table = Table(*columns, title=f"{found.change}; seeds: {len(found.pairs)}", title_justify="left")
    for measure in MEASURES:
        (was, now), (difference, interval) = found.means(measure), found.difference(measure)
        between = f"{interval[0]:+.1%} to {interval[1]:+.1%}" if interval else "needs two seeds"
        table.add_row(measure, f"{was:.1%}", f"{now:.1%}", f"{difference:+.1%}", between)
    console.print(table)
    console.print(f"seed {found.pairs[0].seed}: the weights part in step {found.pairs[0].parted}")
    before, after = (f"{seconds:.1f}" if seconds else "none" for seconds in found.predicted)
    console.print(f"seconds of training: {found.seconds:.1f} measured; simulated: {before} as it was, {after} changed")
    if found.note:
        console.print(found.note)
    return DONE
