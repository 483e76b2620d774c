"""What do faults cost: a run in which every role is killed once, against the same run left alone?

    after this share of all steps    1/5              2/5                  3/5            4/5
    kill -9 for                      the tools        the reward service   a generator    the trainer

Both train on the same groups, asynchronously at lag 1. Each group that was started must be trained
on once or given back: the counters of the replay buffer show that, and this program fails if they do
not. The accuracy is that of the last weights on held-out tasks, sampled at temperature 1. One
repetition is one seed; the two runs of a repetition take turns in going first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

import tyro
from table import describe_machine, print_table

from zorplex_rl.config import Config
from zorplex_rl.run.folder import MetricsRow, RunFolder
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import run_training

VICTIMS = ("tools", "reward", "generator", "trainer")
CONTENDERS = {"left alone": (), "every role killed once": VICTIMS}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    repeats: int = 3
    """Seeds."""
    steps: int = 120
    """Training steps of a run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds of training, accuracy of its last weights, groups that were given back, and
    for how many seconds each role had no process."""

    seconds: float
    sampled: float
    greedy: float
    given_back: int
    recoveries: dict[str, float]


def run(options: Options, seed: int, victims: tuple[str, ...]) -> Measured:
    """Train once, and kill one of ``victims`` after equal shares of the steps."""
    # Tools have their own processes only if they take time.
    config = Config(
        steps=options.steps, seed=seed, tool_latency=0.02, eval_every=1_000_000, eval_tasks=200
    )
    due = {
        options.steps * (index + 1) // (len(victims) + 1): role
        for index, role in enumerate(victims)
    }
    controllers: list[Controller] = []

    def show(row: MetricsRow) -> None:
        if row["event"] == "step" and row["step"] in due:
            os.kill(pid_of(controllers[0], due[row["step"]]), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config)
        _, last = asyncio.run(run_training(config, folder, show=show, on_start=controllers.append))
        counters = folder.controller_state(folder.newest_checkpoint())["replay_buffer"]["counters"]
        restarts = {
            row["role"]: row["recovery_seconds"]
            for row in folder.metrics()
            if row["event"] == "restart"
        }
    groups = config.steps * config.prompts_per_step
    if counters["trained"] != groups or counters["started"] != groups + counters["abandoned"]:
        raise RuntimeError(
            f"the books do not balance: {groups} groups were to be trained on, {counters}"
        )
    if set(restarts) != set(victims):
        raise RuntimeError(f"killed: {sorted(victims)}; restarted: {sorted(restarts)}")
    accuracies = last["sampled_accuracy"], last["greedy_accuracy"]
    return Measured(last["seconds"], *accuracies, counters["abandoned"], restarts)


def pid_of(controller: Controller, role: str) -> int:
    """Return the id of a live process of ``role``."""
    if role == "trainer":
        return controller.roles.trainer.service.replicas[0].pid
    return controller.roles.services[role].router.ready[0].pid


def tabulate(found: dict[str, list[Measured]]) -> None:
    """Print accuracy and time of both, then the recoveries."""
    rows = []
    for name, runs in found.items():
        spread = f" ± {stdev(r.sampled for r in runs):.3f}" if len(runs) > 1 else ""
        sampled, greedy = (
            f"{mean(r.sampled for r in runs):.3f}{spread}",
            f"{mean(r.greedy for r in runs):.3f}",
        )
        seconds, given_back = median(r.seconds for r in runs), sum(r.given_back for r in runs)
        rows.append([name, sampled, greedy, f"{seconds:.0f}", str(given_back)])
    columns = [
        "run",
        "sampled accuracy",
        "greedy",
        "seconds of training",
        "groups given back and started again",
    ]
    note = "Each group was trained on once, and none was lost. Accuracy: mean and standard deviation over the seeds."
    print_table("With and without faults", columns, rows, note)
    rows = []
    for role in VICTIMS:
        seconds = [run.recoveries[role] for run in found["every role killed once"]]
        rows.append([role, f"{median(seconds):.1f}", f"{min(seconds):.1f} – {max(seconds):.1f}"])
    title = "Seconds from the notice of a death until another process has taken over"
    print_table(title, ["role", "median", "range"], rows)


def main(options: Options) -> None:
    # Every death here is meant.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)
    found: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
    for seed in range(options.repeats):
        for name in list(CONTENDERS)[:: -1 if seed % 2 else 1]:
            found[name].append(run(options, seed, CONTENDERS[name]))
            print(
                f"seed {seed}, {name}: {found[name][-1].seconds:.0f} s", file=sys.stderr, flush=True
            )
    print(describe_machine())
    tabulate(found)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
