"""At which learning rate and lag does training on stale data collapse, and which loss prevents it?

    python benchmarks/staleness.py                        go on with the study of notebook 09, for at most 75 minutes
    python benchmarks/staleness.py laboratory --budget 90 go on with another one
    python benchmarks/staleness.py foretold --budget 0    only print the table of what is recorded

    staleness       runs judged by notebook 11's rule              laboratory      losses at seven lags, notebook 09
    lags            what shorter lags cost, in few steps           foretold        many seeds, lags and rates (LOG.md, 2026-11-26)
    confirmed_20    run C of notebook 11, five seeds

A trial trains on what the weights of ``lag`` versions ago sampled:

    trained         0  1  2  3  4  5 …
    sampled with    0  0  0  1  2  3 …      at lag 2

The first ``lag`` steps train on data of version 0, so the mean lag of a trial is below its ``lag``:
5.2 at lag 8 in 13 steps. A study grows in its file, by a line when a trial is done; a trial that is
there is not run again, so a recording can be stopped at any time. Seeds are the outer loop: half a
study is the whole grid with half of the seeds. On a CPU with one number of threads the same trial
gives the same numbers again.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean

import torch
import tyro
from table import describe_machine, print_table

from zorplex_rl.config import LearnerConfig, LossName
from zorplex_rl.course.recorded_study import Row, Study, StudyCell, read_study, whole_lines
from zorplex_rl.course.staleness import (
    Conditions,
    advantages_of,
    held_out_accuracy,
    sample_batch,
    weights_of,
)
from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.policy.load import load_policy
from zorplex_rl.task.environment import Zorplex

FIVE: tuple[LossName, ...] = ("reinforce", "grpo", "cispo", "dppo", "icepop")
IN_LABORATORY: tuple[LossName, ...] = (
    *FIVE,
    "tis",
    "decoupled_ppo",
    "gspo",
    "dapo",
)

TO_THE_END = Conditions(steps=60)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a study: a loss, how stale its data are, a seed."""

    loss: LossName
    lag: int
    """The largest lag, in versions."""
    seed: int


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial: held-out accuracy after the last step, mean lag of all episodes."""

    trial: Trial
    accuracy: float
    mean_lag: float


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of learning rates, lags and losses, with each of ``seeds``. The rate is the
    largest of a trial, after five steps of warm-up; it falls to a tenth."""

    learning_rates: tuple[float, ...]
    lags: tuple[int, ...]
    losses: tuple[LossName, ...]
    seeds: range = range(5)


@dataclass(frozen=True, slots=True)
class Plan:
    """A study: its grids, what all trials share, and how often each is evaluated on a few tasks."""

    grids: tuple[Grid, ...]
    conditions: Conditions = TO_THE_END
    eval_every: int = 3
    eval_tasks: int = 40


STUDIES = {
    "staleness": Plan(
        (
            Grid(
                (2e-4, 4e-4, 8e-4),
                (0, 8, 32),
                ("reinforce", "tis", "grpo", "decoupled_ppo"),
                range(3),
            ),
        )
    ),
    "lags": Plan(
        (Grid((4e-4,), (0, 1, 2, 4, 8), ("grpo", "reinforce"), range(2)),), Conditions(steps=20), 20
    ),
    "laboratory": Plan(
        (
            Grid((4e-4,), (0, 8, 32), IN_LABORATORY),
            Grid((4e-4,), (1, 2, 4, 16), IN_LABORATORY),
            Grid((2e-4,), (32,), ("reinforce", "tis", "decoupled_ppo", "cispo")),
            Grid((2e-4, 3e-4), (0,), FIVE),
            Grid((8e-4,), (0, 8, 32), FIVE),
        )
    ),
    "foretold": Plan(
        (
            Grid(
                (3e-4, 2e-4, 4e-4),
                (8, 32, 2),
                (
                    "reinforce",
                    "grpo",
                    "tis",
                    "cispo",
                    "dppo",
                    "icepop",
                    "gspo",
                    "decoupled_ppo",
                ),
                range(5, 12),
            ),
        )
    ),
    "confirmed_20": Plan(
        (
            Grid((3e-4,), (20,), ("reinforce", "dppo", "grpo"), range(30, 35)),
            Grid((3e-4,), (0,), ("reinforce",), range(30, 35)),
        ),
        Conditions(steps=21, schedule_steps=60),
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to record, and for how long."""

    study: tyro.conf.Positional[str] = "staleness"
    """One of staleness, lags, laboratory, foretold, confirmed_20."""
    budget: float = 75.0
    """Minutes after which no further trial is started."""
    processes: int = 2
    """Trials that run at the same time, each in a process with one torch thread."""


def trials(plan: Plan) -> Iterator[tuple[float, Trial]]:
    """Yield all (learning rate, trial) of the study, seeds in the outer loop."""
    for seed in sorted({seed for grid in plan.grids for seed in grid.seeds}):
        for grid in (grid for grid in plan.grids if seed in grid.seeds):
            for rate in grid.learning_rates:
                for lag in grid.lags:
                    for loss in grid.losses:
                        yield rate, Trial(loss, lag, seed)


def missing(plan: Plan, study: Study) -> list[tuple[float, Trial]]:
    """Return the trials of ``plan`` that ``study`` lacks."""
    done = {row.key for row in study.rows}
    return [
        (rate, trial)
        for rate, trial in trials(plan)
        if (trial.loss, trial.lag, rate, trial.seed) not in done
    ]


def train_with_lag(
    trial: Trial,
    conditions: Conditions,
    watch: Callable[[Learner, Diagnostics], None] = lambda learner, metrics: None,
) -> TrialResult:
    """Train on data that are ``trial.lag`` versions old, at first of version 0. ``watch`` is called
    after each step with the learner and the step's diagnostics."""
    learner = fresh_learner(trial, conditions)
    sampler = load_policy(conditions.policy, conditions.device, conditions.sampler_dtype)
    environment = Zorplex(trial.seed)
    newest = deque([(0, weights_of(learner.policy))], maxlen=trial.lag + 1)
    metrics = []
    for step in range(conditions.steps):
        version, weights = newest[0]
        sampler.model.load_state_dict(weights)
        episodes = sample_batch(sampler, environment, step, trial.seed, conditions, version)
        metrics.append(learner.step(episodes, advantages_of(episodes, conditions.samples)))
        newest.append((learner.version, weights_of(learner.policy)))
        watch(learner, metrics[-1])
    accuracy = held_out_accuracy(learner.policy, environment, conditions)
    return TrialResult(trial, accuracy, fmean(row["lag_mean"] for row in metrics))


def fresh_learner(trial: Trial, conditions: Conditions) -> Learner:
    """Return a learner at version 0 with the loss of ``trial``."""
    config = LearnerConfig(
        loss=trial.loss,
        learning_rate=conditions.learning_rate,
        warmup_steps=conditions.warmup_steps,
        updates_per_batch=conditions.updates_per_batch,
    )
    steps = conditions.schedule_steps or conditions.steps
    return Learner(load_policy(conditions.policy, conditions.device), config, steps)


def run_trial(plan: Plan, rate: float, trial: Trial) -> Row:
    """Run one trial in this process, with one torch thread."""
    torch.set_num_threads(1)
    conditions = replace(plan.conditions, learning_rate=rate)
    few = replace(conditions, held_out_tasks=plan.eval_tasks)
    environment = Zorplex(trial.seed)
    sizes: list[float] = []
    evaluated: list[tuple[int, float]] = []

    def watch(learner: Learner, metrics: Diagnostics) -> None:
        sizes.append(round(metrics["episode_sample_size"], 3))
        if learner.version % plan.eval_every == 0:
            evaluated.append(
                (learner.version, round(held_out_accuracy(learner.policy, environment, few), 3))
            )

    diverged_at = None
    try:
        accuracy = train_with_lag(trial, conditions, watch).accuracy
    except TrainingDiverged:
        accuracy, diverged_at = 0.0, len(sizes) + 1
    steps, accuracies = [step for step, _ in evaluated], [value for _, value in evaluated]
    today = date.today().isoformat()
    return Row(
        trial.loss,
        trial.lag,
        rate,
        trial.seed,
        accuracy,
        diverged_at,
        today,
        steps,
        accuracies,
        sizes,
    )


def record(plan: Plan, file: Path, options: Options) -> None:
    """Run what is missing, ``processes`` trials at a time, until all is there or the budget is spent."""
    until = time.monotonic() + 60 * options.budget
    ready = iter(missing(plan, read_study(file)))
    # Forked children of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context) as pool:

        def start(count: int) -> set[Future[Row]]:
            chosen = islice(ready, count if time.monotonic() < until else 0)
            return {pool.submit(run_trial, plan, rate, trial) for rate, trial in chosen}

        running = start(options.processes)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                append_row(file, future.result())
            running |= start(len(done))


def begin(file: Path, command: str, plan: Plan) -> None:
    """Begin the file of a study, or go on with it, without a line that is cut off."""
    if file.exists():
        file.write_text("".join(f"{line}\n" for line in whole_lines(file)), encoding="utf-8")
        return
    shared = asdict(plan.conditions) | {
        "eval_every": plan.eval_every,
        "eval_tasks": plan.eval_tasks,
    }
    del shared["learning_rate"]
    header = {"command": command, "machine": describe_machine(), "conditions": shared}
    file.write_text(json.dumps(header) + "\n", encoding="utf-8")


def append_row(file: Path, row: Row) -> None:
    """Append ``row`` to the study in ``file``."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(row), separators=(",", ":")) + "\n")


def tabulate(study: Study) -> None:
    """Print a table for each learning rate: mean accuracy of each loss and lag, lowest and highest
    seed, and how many seeds collapsed."""
    cells = study.cells()
    lags = sorted({cell.lag for cell in cells})
    for rate in sorted({cell.learning_rate for cell in cells}):
        found = {(cell.loss, cell.lag): cell for cell in cells if cell.learning_rate == rate}
        losses = dict.fromkeys(loss for loss, _ in found)
        rows = [[loss, *(_shown(found.get((loss, lag))) for lag in lags)] for loss in losses]
        title = f"Learning rate {rate:g}: accuracy at the end, mean (lowest – highest seed), collapsed of all"
        print_table(title, ["loss", *(f"lag {lag}" for lag in lags)], rows)


def _shown(cell: StudyCell | None) -> str:
    if cell is None:
        return ""
    fell = sum(collapsed_at(row) is not None for row in cell.rows)
    values = cell.accuracies
    return f"{fmean(values):.2f} ({min(values):.2f} – {max(values):.2f}), {fell} of {len(values)}"


def collapsed_at(row: Row) -> int | None:
    """Return the step of the first of two evaluations in a row with less than half of the highest
    accuracy before; else where the training diverged; None if it did not collapse."""
    highest = 0.0
    for step, (accuracy, following) in zip(row.eval_steps, pairwise(row.accuracies), strict=False):
        if accuracy < 0.5 * highest > following:
            return step
        highest = max(highest, accuracy)
    return row.diverged_at


def main(options: Options) -> None:
    """Record the study, and print what it has."""
    plan, file = STUDIES[options.study], Path(__file__).with_name(f"{options.study}.jsonl")
    begin(file, f"benchmarks/staleness.py {options.study}", plan)
    record(plan, file, options)
    study = read_study(file)
    tabulate(study)
    print(f"\n{len(study.rows)} trials are recorded, {len(missing(plan, study))} are missing.")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
