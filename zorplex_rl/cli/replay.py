"""Execute a run again from its journal, in this process alone; unchanged, or with one thing changed.

zorplex-rl replay RUN                       is it the same, bit for bit? exit code 1 and the first difference if not
zorplex-rl replay RUN --max-lag 4           what would it have been? the difference in accuracy, and the seconds
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from zorplex_rl.config import Config, Device, LearnerConfig
from zorplex_rl.run.folder import read_config

if TYPE_CHECKING:
    from zorplex_rl.simulation.what_if import PairedRuns, Replayed


@dataclass(frozen=True)
class Replay:
    """Execute a run again from its journal, in this process alone. Unchanged, it is compared with
    the run bit for bit. With a setting changed, both are executed on the same random draws."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    max_lag: int = Config.max_lag
    """How many versions old a group's weights may be. Another one has another schedule, which the
    simulator makes from the run's timeline."""
    temperature: float = Config.temperature
    """Temperature of sampling in training."""
    without_fault: bool = False
    """No process dies; the schedule is the simulator's."""
    seeds: int = 3
    """With something changed: repeat both with so many seeds, the run's own first."""
    device: Device = "auto"
    """Only on a CPU, and on the machine of the run, is a replay the same bit for bit."""
    task: str | None = None
    """Of a run with a task of your own: its file again."""
    task_data: str | None = None
    """Likewise the text file that the task reads."""

    def defaults(self) -> "Replay":
        """Return the command with the settings of its run."""
        of_run = read_config(self.folder)
        same = {
            name: getattr(of_run, name) for name in ("learner", "max_lag", "temperature", "device")
        }
        return replace(self, **same)

    def run(self) -> int:
        from rich.progress import Progress

        from zorplex_rl.devices import assign_devices, prepare
        from zorplex_rl.learning.learner import LOSS_SETTINGS
        from zorplex_rl.simulation import what_if

        device = assign_devices(self.device, ["policy"])["policy"]
        prepare(device, read_config(self.folder).threads)
        recording = what_if.read_recording(self.folder, device, self.task, self.task_data)
        earlier = recording.config
        config = earlier.changed(
            max_lag=self.max_lag, temperature=self.temperature, **vars(self.learner)
        )
        if config.learner.loss != earlier.learner.loss:
            # Each loss has its own bounds.
            kept = [
                knob
                for knob in LOSS_SETTINGS
                if config.settings()[knob] == earlier.settings()[knob]
            ]
            config = config.changed(**dict.fromkeys(kept))
        is_changed = config != earlier or self.without_fault
        with Progress(transient=True) as bar:
            bar_of_steps = bar.add_task(
                "steps", total=len(recording.batches) * (2 * self.seeds if is_changed else 1)
            )

            def on_step(step: int) -> None:
                bar.advance(bar_of_steps)

            if is_changed:
                pairs = what_if.what_if(recording, config, self.without_fault, self.seeds, on_step)
            else:
                same = what_if.replay(recording, lambda step, policy: on_step(step))
        return print_pairs(pairs) if is_changed else print_whether_same(same)


def print_whether_same(found: "Replayed") -> int:
    told = ", ".join(
        f"{found.same[what]} of {count} {what}" for what, count in found.compared.items()
    )
    print(f"the same, bit for bit: {told}")
    if not found.is_equal:
        print(f"the first difference: {found.first_difference}; {found.why}")
    return 0 if found.is_equal else 1


def print_pairs(found: "PairedRuns") -> int:
    """Print where the runs part, the differences in accuracy, and the seconds."""
    from rich.console import Console
    from rich.table import Table

    from zorplex_rl.simulation.what_if import MEASURES

    columns = ("held-out accuracy", "as it was", "changed", "difference", "95 % interval")
    table = Table(
        *columns, title=f"{found.change}; seeds: {len(found.pairs)}", title_justify="left"
    )
    for measure in MEASURES:
        (was, now), (difference, interval) = found.means(measure), found.difference(measure)
        between = f"{interval[0]:+.1%} to {interval[1]:+.1%}" if interval else "needs two seeds"
        table.add_row(measure, f"{was:.1%}", f"{now:.1%}", f"{difference:+.1%}", between)
    Console(highlight=False).print(table)
    print(f"seed {found.pairs[0].seed}: the weights part in step {found.pairs[0].parted}")
    before, after = (f"{seconds:.1f}" if seconds else "none" for seconds in found.predicted)
    print(
        f"seconds of training: {found.seconds:.1f} measured; simulated: {before} as it was, {after} changed"
    )
    return 0
