"""Record the study of staleness: learning rate × lag × loss × seed, each trial trained to the end
of its learning.

    python benchmarks/staleness.py --budget 75        go on with the study for at most 75 minutes

Notebook 09 also says what shorter lags cost. That is recorded with

    python benchmarks/staleness.py --learning-rates 4e-4 --lags 0 1 2 4 8 --losses grpo reinforce --seeds 2 --steps 20 --eval-every 20 \\
        --out benchmarks/lags.jsonl

A trial is ``train_with_lag`` of ``zorplex_rl/course/staleness.py``. The study grows in
``benchmarks/staleness.jsonl``: a line for each trial, written when the trial is done. A trial that
is in the file is not run again, so a recording can be stopped at any time and goes on where it was.
Seeds are the outer loop: half a study is the whole grid with half of the seeds. Trials run in
processes of their own with one torch thread each. On a CPU the same trial gives the same numbers
again, but the seconds of a trial mean little if the machine does something else.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
import tyro
from log import Report, append_report, describe_machine, print_report

from zorplex_rl.config import Difficulty
from zorplex_rl.course.recorded_study import Row, Study, read_study, whole_lines
from zorplex_rl.course.staleness import Conditions, Trial, held_out_accuracy, train_with_lag
from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.task.environment import Zorplex

STUDY = Path(__file__).with_name("staleness.jsonl")
ASKED = "At which learning rate and lag does training on stale data collapse, and which correction prevents it?"
EXPECTED = (
    "At 4e-4 plain REINFORCE collapses from lag 8 on and clipping does not, as measured before (0.96 / 0.17 / 0.00 against 0.99 / 0.94 / 0.90 at "
    "lag 0 / 8 / 32); at twice that rate nearly everything collapses; at half of it nothing does at lag 8."
)


ZEROS = 6
"""Evaluations in a row without a right answer after which a trial is ended."""
SERIES = (
    "second_moment",
    "mismatch_kl",
    "entropy",
    "grad_norm",
    "response_tokens",
    "format_rate",
    "reward",
    "clip_fraction_low",
    "clip_fraction_high",
    "masked_fraction_low",
    "masked_fraction_high",
    "truncated_fraction",
    "learning_rate_factor",
)
"""Diagnostics of ``Learner.step`` that a row keeps, beside the effective sample sizes."""


class CollapsedForGood(Exception):
    """Ends a trial. ``accuracy`` is that of the weights at its end."""

    def __init__(self, accuracy: float) -> None:
        super().__init__(accuracy)
        self.accuracy = accuracy


@dataclass(frozen=True, slots=True)
class Options:
    """What to record."""

    learning_rates: tuple[float, ...] = (2e-4, 4e-4, 8e-4)
    """Largest learning rate of a trial, after five steps of warm-up; it falls to a tenth at the
    last step."""
    lags: tuple[int, ...] = (0, 8, 32)
    """Age of the data, in versions."""
    losses: tuple[str, ...] = ("reinforce", "tis", "grpo", "decoupled_ppo")
    """Names in ``losses.py``."""
    difficulty: Difficulty = "easy"
    """Difficulty of the compositional tasks."""
    seeds: int = 3
    """Seeds of each cell."""
    first_seed: int = 0
    """The first of them."""
    steps: int = 60
    """Training steps of a trial."""
    ess_control: bool = False
    """Scale the learning rate with the effective sample size (``--ess-control`` of a run)."""
    sampler_dtype: str = "float32"
    """Number type of what samples; the trainer's is float32."""
    schedule_steps: int = 0
    """Step at which the learning rate is lowest; 0: the last one."""
    eval_every: int = 3
    """Steps between two small evaluations of the newest weights."""
    eval_tasks: int = 40
    """Held-out tasks of such an evaluation; the one after the last step has 200."""
    budget: float = 75.0
    """Minutes after which no further trial is started."""
    processes: int = 2
    """Trials that run at the same time, each in a process with one torch thread."""
    out: Path = STUDY
    """The file of the study."""
    log: bool = True
    """Append the result to LOG.md."""


def grid(options: Options) -> Iterator[tuple[float, Trial]]:
    """Yield all (learning rate, trial) of the study, seeds in the outer loop."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for rate in options.learning_rates:
            for lag in options.lags:
                for loss in options.losses:
                    yield rate, Trial(loss, lag, seed)


def missing(options: Options, study: Study) -> list[tuple[float, Trial]]:
    """Return the part of the grid that ``study`` lacks."""
    done = {row.key for row in study.rows}
    return [(rate, trial) for rate, trial in grid(options) if (trial.loss, trial.lag, rate, trial.seed) not in done]


def shared(options: Options) -> dict[str, object]:
    """Return what all trials of the study have in common."""
    conditions = asdict(conditions_of(options))
    del conditions["learning_rate"]
    return conditions | {"eval_every": options.eval_every, "eval_tasks": options.eval_tasks}


def conditions_of(options: Options) -> Conditions:
    """Return the conditions of the study's trials, but for their learning rate."""
    return Conditions(
        steps=options.steps,
        schedule_steps=options.schedule_steps,
        difficulty=options.difficulty,
        ess_control=options.ess_control,
        sampler_dtype=options.sampler_dtype,
    )


def command_of(options: Options) -> str:
    """Return the command line that records this study: what differs from the defaults.

    >>> command_of(Options(steps=20, lags=(8,), budget=5))
    'benchmarks/staleness.py --lags 8 --steps 20'
    """
    words = ["benchmarks/staleness.py"]
    for field in fields(Options):
        value = getattr(options, field.name)
        if value == field.default or field.name in ("budget", "processes", "log"):
            continue
        values = value if isinstance(value, tuple) else (f"benchmarks/{value.name}" if field.name == "out" else value,)
        words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
    return " ".join(words)


def run_trial(rate: float, trial: Trial, options: Options) -> Row:
    """Run one trial in this process, with one torch thread."""
    torch.set_num_threads(1)
    conditions = replace(conditions_of(options), learning_rate=rate)
    few = replace(conditions, held_out_tasks=options.eval_tasks)
    environment = Zorplex(trial.seed, conditions.hints)
    steps: list[Diagnostics] = []
    evaluated: list[tuple[int, float]] = []

    def watch(learner: Learner, metrics: Diagnostics) -> None:
        steps.append(metrics)
        if learner.version % options.eval_every == 0:
            evaluated.append((learner.version, round(held_out_accuracy(learner.policy, environment, few), 3)))
            if is_over([accuracy for _, accuracy in evaluated]):
                raise CollapsedForGood(held_out_accuracy(learner.policy, environment, conditions))

    began = time.monotonic()
    diverged_at = ended_at = None
    try:
        accuracy = train_with_lag(trial, conditions, watch).accuracy
    except CollapsedForGood as collapse:
        accuracy, ended_at = collapse.accuracy, len(steps)
    except TrainingDiverged:
        accuracy, diverged_at = 0.0, len(steps) + 1
    return Row(
        trial.loss,
        trial.lag,
        rate,
        trial.seed,
        accuracy,
        diverged_at,
        mean_lag=round(fmean(step["lag_mean"] for step in steps), 2),
        seconds=round(time.monotonic() - began, 1),
        date=date.today().isoformat(),
        eval_steps=[step for step, _ in evaluated],
        accuracies=[value for _, value in evaluated],
        token_sample_sizes=[round(step["effective_sample_size"], 3) for step in steps],
        episode_sample_sizes=[round(step["episode_sample_size"], 3) for step in steps],
        ended_at=ended_at,
        series={name: [three_digits(step[name]) for step in steps] for name in SERIES if steps and name in steps[0]},
    )


def is_over(accuracies: list[float]) -> bool:
    """Return whether a trial has collapsed for good: it fell to 0, in so many evaluations in a row.

    In the study of 2026-11-22 six zeros in a row came in 18 of 108 trials, and none of them was
    above 0.1 again in 136 further evaluations; after five zeros one came back to 0.23.

    >>> is_over([0.4] + 5 * [0.0]), is_over([0.4] + 6 * [0.0]), is_over(6 * [0.0])
    (False, True, False)
    """
    return len(accuracies) > ZEROS and any(accuracies) and not any(accuracies[-ZEROS:])


def three_digits(value: float) -> float:
    """Return ``value`` with three significant digits: a row stays short.

    >>> three_digits(0.0012345)
    0.00123
    """
    return float(f"{value:.3g}")


def record(options: Options) -> None:
    """Run what is missing, ``processes`` trials at a time, until all is there or the budget is
    spent."""
    until = time.monotonic() + 60 * options.budget
    ready = iter(missing(options, read_study(options.out)))
    # Forked children of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context) as pool:

        def start(count: int) -> set[Future[Row]]:
            chosen = islice(ready, count if time.monotonic() < until else 0)
            return {pool.submit(run_trial, rate, trial, options) for rate, trial in chosen}

        running = start(options.processes)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                row = future.result()
                append_row(options.out, row)
                print(f"{row.learning_rate:g} lag {row.lag} {row.loss} seed {row.seed}: ", end="")
                print(f"{row.accuracy:.2f} in {row.seconds:.0f} s", flush=True)
            running |= start(len(done))


def tabulate(study: Study, seeds: int) -> list[Report]:
    """Make a table for each learning rate: the mean accuracy of every loss and lag, with the lowest
    and highest seed."""
    cells = study.cells(seeds)
    lags = sorted({cell.lag for cell in cells})
    reports = []
    for rate in sorted({cell.learning_rate for cell in cells}):
        found = {(cell.loss, cell.lag): cell for cell in cells if cell.learning_rate == rate}
        rows = [
            [loss, *(_spread(found[loss, lag].accuracies) if (loss, lag) in found else "" for lag in lags)]
            for loss in dict.fromkeys(loss for loss, _ in found)
        ]
        reports.append(Report(f"Learning rate {rate:g}", ["loss", *(f"lag {lag}" for lag in lags)], rows))
    return reports


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def write_header(file: Path, command: str, machine: str, conditions: dict[str, object]) -> None:
    """Begin the file of a study, or go on with it, without a line that is cut off.

    Raises ValueError if the file has trials of other ``conditions``.
    """
    if not file.exists():
        header = {"command": command, "machine": machine, "conditions": conditions}
        file.write_text(json.dumps(header) + "\n", encoding="utf-8")
        return
    # Conditions that the file does not name are younger than it, and were as they are by default.
    other = {name: value for name, value in shared(Options()).items() if name in conditions} | read_study(
        file
    ).conditions
    if other != conditions:
        differ = sorted(name for name in conditions | other if conditions.get(name) != other.get(name))
        raise ValueError(f"{file.name} has trials with another {', '.join(differ)}: give --out another file")
    file.write_text("".join(f"{line}\n" for line in whole_lines(file)), encoding="utf-8")


def append_row(file: Path, row: Row) -> None:
    """Append ``row`` to the study in ``file``."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(row), separators=(",", ":")) + "\n")


def main(options: Options) -> None:
    """Record the study, print what it has, and append it to the log once the grid is complete."""
    command = command_of(options)
    write_header(options.out, command, describe_machine(), shared(options))
    record(options)
    study = read_study(options.out)
    reports = tabulate(study, options.seeds)
    for report in reports:
        print_report(report)
    left = len(missing(options, study))
    if left:
        print(f"{left} trials are missing: run the command again.")
    elif options.log:
        settings = {"trials": len(study.rows), "seeds": options.seeds} | shared(options)
        append_report(command, ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
