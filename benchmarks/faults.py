"""Measure what faults cost: a run in which every role is killed once, against the same run without
faults.

    after this share of all steps    1/5              2/5                3/5            4/5
    kill -9 for                      a tool replica   a reward replica   a generator    the trainer

Both train on the same groups, asynchronously at lag 1. Each group that was started must be trained
on once or given back. The counters of the replay buffer show that, and this program fails if they
do not. The accuracy is that of the last weights on held-out tasks, sampled at temperature 1. One
repetition is one seed. The two runs of a repetition take turns in going first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev

import tyro
from log import Report, append_report, print_report
from rich.progress import Progress

from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.run_folder import MetricsRow, RunFolder
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import run_training

ASKED = "What does it cost if a tool, a reward, a generator and the trainer are each killed once in one run?"
EXPECTED = "The run completes, no group is lost or trained on twice, and the accuracy is that of a run without faults."
VICTIMS = ("tools", "reward", "generator", "trainer")


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    task: str = "compositional"
    """The task to train on."""
    repeats: int = 3
    """Seeds."""
    steps: int = 120
    """Training steps of a run."""
    tool_latency: float = 0.02
    """Mean seconds of a tool call; above 0, because only then do tools have their own processes."""
    eval_tasks: int = 200
    """Held-out tasks in the last evaluation."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold one run: seconds of training, accuracy of its last weights, and for how many seconds
    each role had no process."""

    seconds: float
    sampled: float
    greedy: float
    given_back: int
    recoveries: dict[str, float]


def run(options: Options, seed: int, victims: tuple[str, ...], on_step: Callable[[], None]) -> Measured:
    """Train once, and kill one of ``victims`` after equal shares of the steps. Returns the
    result."""
    config = Config(
        task=options.task, steps=options.steps, seed=seed, tool_latency=options.tool_latency, eval_every=1_000_000,
        eval_tasks=options.eval_tasks, services=ServicesConfig(tool_replicas=2, reward_replicas=2),
    )  # fmt: skip
    due = {options.steps * (index + 1) // (len(victims) + 1): role for index, role in enumerate(victims)}
    controllers: list[Controller] = []

    def show(row: MetricsRow) -> None:
        if row["event"] == "step":
            on_step()
            if role := due.get(row["step"]):
                os.kill(pid_of(controllers[0], role), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config)
        _, last = asyncio.run(run_training(config, folder, show=show, on_start=controllers.append))
        counters = folder.controller_state(folder.newest_checkpoint())["replay"]["counters"]
        restarts = {row["role"]: row["recovery_seconds"] for row in folder.metrics() if row["event"] == "restart"}
    groups = config.steps * config.prompts_per_step
    if counters["trained"] != groups or counters["started"] != groups + counters["abandoned"]:
        raise RuntimeError(f"the books do not balance: {groups} groups were to be trained on, {counters}")
    if set(restarts) != set(victims):
        raise RuntimeError(f"killed: {sorted(victims)}; restarted: {sorted(restarts)}")
    accuracy = last["sampled_accuracy"], last["greedy_accuracy"]
    return Measured(last["seconds"], *accuracy, counters["abandoned"], restarts)


def pid_of(controller: Controller, role: str) -> int:
    """Return the id of a live process of ``role``."""
    if role == "trainer":
        return controller.trainer.replica.pid
    return next(row.pid for row in controller.services[role].status().replicas if row.state == "ready")


def measure(options: Options) -> dict[str, list[Measured]]:
    """Run both contenders for every seed. Returns the runs."""
    contenders = {"left alone": (), "every role killed once": VICTIMS}
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    with Progress(transient=True) as progress:
        bar = progress.add_task("training", total=options.repeats * len(contenders) * options.steps)
        for seed in range(options.repeats):
            for name in list(contenders)[:: -1 if seed % 2 else 1]:
                found[name].append(run(options, seed, contenders[name], lambda: progress.advance(bar)))
    return found


def tabulate(found: dict[str, list[Measured]]) -> list[Report]:
    """Return the tables: accuracy and time of both, then the recoveries."""
    rows = []
    for name, runs in found.items():
        spread = f" ± {stdev(r.sampled for r in runs):.3f}" if len(runs) > 1 else ""
        sampled = f"{mean(r.sampled for r in runs):.3f}{spread}"
        greedy, seconds = mean(r.greedy for r in runs), median(r.seconds for r in runs)
        rows.append([name, sampled, f"{greedy:.3f}", f"{seconds:.0f}", str(sum(r.given_back for r in runs))])
    columns = ["run", "sampled accuracy", "greedy", "seconds of training", "groups given back and started again"]
    note = "In every run each group was trained on once, and none was lost. Accuracy: mean and standard deviation over the seeds."
    times = {role: [r.recoveries[role] for runs in found.values() for r in runs if r.recoveries] for role in VICTIMS}
    recoveries = [[role, f"{median(t):.1f}", f"{min(t):.1f} – {max(t):.1f}"] for role, t in times.items()]
    return [
        Report("With and without faults", columns, rows, [note]),
        Report("Seconds from the notice of a death until another process has taken over", ["role", "median", "range"], recoveries),
    ]  # fmt: skip


def main(options: Options) -> None:
    # Every death here is meant.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)
    reports = tabulate(measure(options))
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/faults.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
