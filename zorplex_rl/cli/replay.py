"""Execute a run again from its journal, in this process alone; unchanged, or with one thing changed.

zorplex-rl replay RUN                is it the same, bit for bit? If not: exit code 1, the first difference
zorplex-rl replay RUN --max-lag 4    what would it have been? The difference in accuracy, and the seconds
zorplex-rl replay RUN --task B.py    what would the reward of B.py have paid? Nothing is sampled
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from zorplex_rl.config import Config, Device, LearnerConfig
from zorplex_rl.run.folder import read_config

if TYPE_CHECKING:
    from zorplex_rl.simulation.rescore import Paid
    from zorplex_rl.simulation.what_if import PairedRuns, Replayed


@dataclass(frozen=True)
class Replay:
    """Execute a run again from its journal, in this process alone. Unchanged, it is compared with
    the run bit for bit. With a setting changed, both are executed on the same random draws."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    learner: LearnerConfig = Config.learner
    max_lag: int = Config.max_lag
    """How many versions old a group's weights may be. Another lag needs another schedule, which the
    simulator makes from the run's timeline."""
    temperature: float = Config.temperature
    """Temperature of sampling in training."""
    without_fault: bool = False
    """As if no process had died; the schedule is the simulator's."""
    seeds: int = 3
    """With something changed: execute both with this many seeds, first the run's."""
    device: Device = "auto"
    """A replay is the same bit for bit only on a CPU, and on the machine of the run."""
    task: str | None = None
    """The file of your own task, for a run that has one. Another file: its reward scores what the
    run has recorded."""
    task_data: str | None = None
    """The text file that this task reads."""

    def defaults(self) -> "Replay":
        """Return the command with the settings of its run."""
        config = read_config(self.folder)
        return replace(
            self,
            learner=config.learner,
            max_lag=config.max_lag,
            temperature=config.temperature,
            device=config.device,
        )

    def run(self) -> int:
        from rich.progress import Progress

        from zorplex_rl.devices import assign_devices, prepare
        from zorplex_rl.simulation import rescore, what_if

        device = assign_devices(self.device, ["policy"])["policy"]
        prepare(device, read_config(self.folder).threads)
        recording = what_if.read_recording(self.folder, device, self.task, self.task_data)
        if other := rescore.other_task(recording, self.task, self.task_data):
            print_paid(rescore.rescore(recording, other))
            return 0
        config = self.changed(recording.config)
        is_changed = config != recording.config or self.without_fault
        executions = 2 * self.seeds if is_changed else 1
        with Progress(transient=True) as bar:
            steps = bar.add_task("steps", total=len(recording.batches) * executions)

            def on_step(*_: Any) -> None:
                bar.advance(steps)

            if is_changed:
                pairs = what_if.what_if(recording, config, self.without_fault, self.seeds, on_step)
            else:
                replayed = what_if.replay(recording, on_step)
        if is_changed:
            print_pairs(pairs)
            return 0
        print_comparison(replayed)
        return 0 if replayed.is_equal else 1

    def changed(self, config: Config) -> Config:
        """Return ``config`` with the settings of this command."""
        from zorplex_rl.learning.learner import LOSS_SETTINGS

        changed = config.changed(
            max_lag=self.max_lag,
            temperature=self.temperature,
            **vars(self.learner),
        )
        if changed.learner.loss == config.learner.loss:
            return changed
        # Each loss has bounds of its own: those of the run's loss do not apply to another.
        before = config.settings()
        after = changed.settings()
        kept = [name for name in LOSS_SETTINGS if after[name] == before[name]]
        return changed.changed(**dict.fromkeys(kept))


def print_comparison(replayed: "Replayed") -> None:
    """Print how much was the same, and the first difference."""
    counts = []
    for kind, count in replayed.compared.items():
        counts.append(f"{replayed.same[kind]} of {count} {kind}")
    print(f"the same, bit for bit: {', '.join(counts)}")
    if not replayed.is_equal:
        print(f"the first difference: {replayed.first_difference}; {replayed.why}")


def print_paid(paid: "list[Paid]") -> None:
    """Print the mean reward of each step, as recorded and by the other task, and their sums."""
    for step in paid:
        recorded, other = step.means
        print(f"step {step.step}: paid {recorded:.3f}, the other reward {other:.3f}")
    differing = sum(
        before != after
        for step in paid
        for before, after in zip(step.recorded, step.other, strict=True)
    )
    episodes = sum(len(step.recorded) for step in paid)
    print(f"{differing} of {episodes} episodes would have been paid otherwise")


def print_pairs(runs: "PairedRuns") -> None:
    """Print the differences in accuracy, where the runs part, and the seconds."""
    from rich.console import Console
    from rich.table import Table

    from zorplex_rl.simulation.what_if import MEASURES

    columns = ("held-out accuracy", "as it was", "changed", "difference", "95 % interval")
    title = f"{runs.change}; seeds: {len(runs.pairs)}"
    table = Table(*columns, title=title, title_justify="left")
    for measure in MEASURES:
        original, changed = runs.means(measure)
        difference, interval = runs.difference(measure)
        between = f"{interval[0]:+.1%} to {interval[1]:+.1%}" if interval else "needs two seeds"
        table.add_row(measure, f"{original:.1%}", f"{changed:.1%}", f"{difference:+.1%}", between)
    Console(highlight=False).print(table)
    pair = runs.pairs[0]
    print(f"seed {pair.seed}: the weights part in step {pair.parted}")
    before, after = (f"{seconds:.1f}" if seconds else "none" for seconds in runs.predicted)
    simulated = f"simulated: {before} as it was, {after} changed"
    print(f"seconds of training: {runs.seconds:.1f} measured; {simulated}")
