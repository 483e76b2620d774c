"""Measure what faults cost: a run in which every role is killed once, against the same run without
faults; and what is saved of unfinished episodes.

    after this share of all steps    1/5              2/5                3/5            4/5
    kill -9 for                      a tool replica   a reward replica   a generator    the trainer

Both train on the same groups, asynchronously at lag 1. Each group that was started must be trained
on once or given back. The counters of the replay buffer show that, and this program fails if they
do not. The accuracy is that of the last weights on held-out tasks, sampled at temperature 1. One
repetition is one seed. The two runs of a repetition take turns in going first.

The second part counts tokens: of those that generators sampled, how many were trained on. In
``DEATHS`` a generator is killed three times. In ``UPDATES`` episodes
are long and steps short, so new weights come several times during an episode: every
``--on-update``. What a generator sampled in the last hundredths of a second before its death is not
counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, get_args

import tyro
from log import Report, append_report, print_report
from rich.progress import Progress

from zorplex_rl.config import Config, OnUpdate, ServicesConfig
from zorplex_rl.run_folder import MetricsRow, RunFolder
from zorplex_rl.services.requests import Failure
from zorplex_rl.timeline import Timeline
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import run_training

ASKED = (
    "What does it cost if a tool, a reward, a generator and the trainer are each killed once in one run? How many tokens "
    "of unfinished episodes does a death, and does each --on-update throw away?"
)
EXPECTED = (
    "The run completes, no group is lost or trained on twice, and the accuracy is that of a run without faults. "
    "No --on-update throws any away."
)
VICTIMS = ("tools", "reward", "generator", "trainer")
LONG = Config(
    task="multi_step", steps=40, prompts_per_step=4, group_size=8, max_lag=4, tool_latency=0.1, eval_every=1_000_000,
    eval_tasks=100, device="cpu", services=ServicesConfig(generators=2, tool_replicas=1),
)  # fmt: skip
DEATHS: dict[str, dict[str, Any]] = {
    "3 generators killed": {},
    "none killed": {},
}
UPDATES: dict[str, dict[str, Any]] = {
    f"--on-update {name}": {"on_update": name, "prompts_per_step": 2, "group_size": 4, "generators": 1}
    for name in get_args(OnUpdate)
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    task: str = "compositional"
    """The task to train on."""
    repeats: int = 3
    """Seeds of the first part; 0 leaves it out."""
    unfinished_repeats: int = 3
    """Seeds of the second part; 0 leaves it out."""
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


@dataclass(frozen=True, slots=True)
class Tokens:
    """Hold one run: seconds of training, tokens sampled and trained on, mean lag, and accuracy."""

    seconds: float
    sampled: int
    trained: int
    lag: float
    accuracy: float


def count_tokens(config: Config, deaths: int) -> Tokens:
    """Train once, and kill a generator ``deaths`` times. Returns the result."""
    due = {config.steps * (index + 1) // (deaths + 1) for index in range(deaths)}
    controllers: list[Controller] = []
    kills: list[asyncio.Task[None]] = []

    async def kill() -> None:
        # What it has recorded dies with it.
        answers = await controllers[0].services["generator"].drain_spans.fanout()
        controllers[0].log.add_spans([span for part in answers if not isinstance(part, Failure) for span in part])
        os.kill(pid_of(controllers[0], "generator"), signal.SIGKILL)

    def show(row: MetricsRow) -> None:
        if row["event"] == "step" and row["step"] in due:
            kills.append(asyncio.get_running_loop().create_task(kill()))

    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config)
        _, last = asyncio.run(run_training(config, folder, show=show, on_start=controllers.append))
        rows = folder.metrics()
        journal = [json.loads(line) for line in folder.journal.read_text().splitlines()]
        spans = Timeline.load(folder.timeline).spans
    if sum(row["event"] == "restart" for row in rows) != deaths:
        raise RuntimeError(f"{deaths} generators were to be replaced")
    turns = [turns for row in journal if row["event"] == "batch" for turns in row["turns"]]
    trained = sum(end - start for of_one in turns for start, end in zip(of_one[::3], of_one[1::3], strict=True))
    sampled = sum(span.args["tokens"] for span in spans if span.kind == "generate")
    lag = mean(row["lag_mean"] for row in rows if row["event"] == "step")
    return Tokens(last["seconds"], sampled, trained, lag, last["sampled_accuracy"])


def unfinished(options: Options) -> list[Report]:
    """Run the second part. Returns its tables."""
    reports = []
    for title, contenders in {"Generators that die": DEATHS, "New weights during episodes": UPDATES}.items():
        found: dict[str, list[Tokens]] = {name: [] for name in contenders}
        for seed in range(options.unfinished_repeats):
            for name in list(contenders)[:: -1 if seed % 2 else 1]:
                deaths = 3 if name.startswith("3") else 0
                found[name].append(count_tokens(LONG.changed(seed=seed, **contenders[name]), deaths))
        rows = [
            [name, f"{sum(r.sampled for r in runs):,}", f"{sum(r.sampled - r.trained for r in runs):,}",
             f"{sum(r.trained for r in runs) / sum(r.sampled for r in runs):.1%}", f"{median(r.seconds for r in runs):.1f}",
             f"{mean(r.lag for r in runs):.2f}", f"{mean(r.accuracy for r in runs):.3f}"]
            for name, runs in found.items()
        ]  # fmt: skip
        columns = [
            "run",
            "tokens sampled",
            "thrown away",
            "trained on",
            "seconds of training",
            "mean lag",
            "sampled accuracy",
        ]
        reports.append(Report(title, columns, rows))
    return reports


def main(options: Options) -> None:
    # Every death here is meant.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)
    reports = tabulate(measure(options)) if options.repeats else []
    reports += unfinished(options) if options.unfinished_repeats else []
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/faults.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
