"""How long until 90 % of the held-out hard tasks are answered right, sampled: this package against TRL's ``GRPOTrainer``?

    ours   python -m zorplex_rl train --preset embedded …   generators and trainer in their own processes, one torch thread each
    TRL    python benchmarks/trl_peer.py …                  one process, with 1 and with 2 torch threads; the better one counts

The time is a product, and its two factors are measured by themselves:

    steps            Each side is evaluated after every step on the same 400 held-out tasks. The accuracy of a step is the mean
                     over five: it and two on either side. The first step with 0.90 or more is the arrival
    seconds a step   Each side trains a few steps without any evaluation, in turns. The first ones do not count

Equal on both sides: the starting policy, the table and its tasks, the reward, 8 prompts × 8 samples
a step, AdamW after some steps of warm-up, temperature 1, no KL term. Each side has its own order of
random draws, normalisation of advantages and loss, and its best learning rate and schedule, found on
other seeds (``LOG.md``). In the ratio a run of TRL's without an arrival counts as if it had arrived
at its last step, one of ours as if it never would.

Each run stays in the folder ``--out``, and is not made again: the study can be stopped and goes on.
Steps do not depend on how busy the machine is, seconds do: they are for a quiet one. TRL needs the
extra ``bench``, or a Python that has it: ``--trl-python``.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import tyro
from table import describe_machine, print_table

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = 0.90
TASKS = 400
AROUND = 2
OURS = ("--preset", "embedded", "--task", "compositional", "--difficulty", "hard")
PACES = ("ours", "trl, 1 thread", "trl, 2 threads")
PACE_STEPS, PACE_SKIPPED = 14, 4


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    seeds: int = 8
    """Runs of each side for the steps, and of each contender for the seconds of a step."""
    steps: int = 120
    """Steps of TRL's runs. The preset says how long ours are."""
    trl_python: str = sys.executable
    """The Python that has TRL."""
    out: Path = Path("runs/time_to_accuracy")
    """Folder of all runs."""


def arrival(accuracies: Sequence[float]) -> int | None:
    """Return the first step, counted from 1, whose accuracy, as a mean over five steps, reaches the
    target. None if there is none.

    >>> arrival([0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]), arrival(9 * [0.8])
    (4, None)
    """
    for middle in range(AROUND, len(accuracies) - AROUND):
        if fmean(accuracies[middle - AROUND : middle + AROUND + 1]) >= TARGET - 1e-9:
            return middle + 1
    return None


def train_ours(seed: int, folder: Path, *flags: str) -> None:
    """Train with ``zorplex-rl train`` into ``folder``."""
    command = [
        sys.executable,
        "-m",
        "zorplex_rl",
        "train",
        *OURS,
        "--seed",
        str(seed),
        "--out",
        str(folder),
        *flags,
    ]
    subprocess.run(
        command, cwd=REPOSITORY, env=environment(1), stdout=subprocess.DEVNULL, check=True
    )


def train_trl(
    options: Options, seed: int, folder: Path, threads: int, steps: int, tasks: int
) -> None:
    """Train with TRL into ``folder``, evaluated on so many ``tasks`` after each step."""
    job = {
        "folder": str(folder),
        "seed": seed,
        "steps": steps,
        "threads": threads,
        "eval_tasks": tasks,
    }
    command = [options.trl_python, str(REPOSITORY / "benchmarks" / "trl_peer.py"), json.dumps(job)]
    subprocess.run(
        command, cwd=REPOSITORY, env=environment(threads), stdout=subprocess.DEVNULL, check=True
    )


def environment(threads: int) -> dict[str, str]:
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    settings["THP_MEM_ALLOC_ENABLE"] = "1"  # Our processes set it, so TRL's get it, too.
    return os.environ | settings | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(REPOSITORY)}


def measure_steps(options: Options, who: str, seed: int) -> int | None:
    """Return the arrival of a run of ``who``, which is made if it is not there."""
    folder = options.out / f"{who}_{seed}"

    def train(folder: Path) -> None:
        if who == "ours":
            train_ours(seed, folder, "--eval-every", "1", "--eval-tasks", str(TASKS))
        else:
            train_trl(options, seed, folder, 2, options.steps, TASKS)

    rows = [row for row in made(folder, train) if row["event"] == "eval"]
    # Ours is evaluated before the first step, too.
    return arrival([row["sampled_accuracy"] for row in rows if row["step"]])


def measure_pace(options: Options, who: str, seed: int) -> float:
    """Return the seconds of a step of ``who`` without evaluations."""
    folder = options.out / f"pace_{who.replace(', ', '_').replace(' ', '_')}_{seed}"

    def train(folder: Path) -> None:
        if who == "ours":
            never = ("--eval-every", "1000000", "--eval-tasks", "1")
            train_ours(seed, folder, "--steps", str(PACE_STEPS), *never)
        else:
            train_trl(options, seed, folder, 1 if "1" in who else 2, PACE_STEPS, 0)

    seconds = {row["step"]: row["seconds"] for row in made(folder, train) if row["event"] == "step"}
    return (seconds[PACE_STEPS] - seconds[PACE_SKIPPED]) / (PACE_STEPS - PACE_SKIPPED)


def made(folder: Path, train: Callable[[Path], None]) -> list[dict]:
    """Return the rows of the run in ``folder``; ``train`` makes it if it is not there."""
    if not folder.exists():
        beginning = folder.with_name(f"{folder.name}.begun")
        shutil.rmtree(beginning, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        train(beginning)
        beginning.rename(folder)
        print(f"{folder.name} is done", file=sys.stderr, flush=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def bootstrap(of: Callable[[random.Random], float], draws: int = 10_000) -> tuple[float, float]:
    """Return the middle 95 % of ``of``, which draws its samples anew each time (Efron 1979)."""
    found = sorted(of(random.Random(number)) for number in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


def tabulate(
    arrivals: dict[str, list[int | None]], paces: dict[str, list[float]], most: int
) -> None:
    """Print the arrivals, and the ratios TRL ÷ ours. For the intervals the seeds are drawn anew, each
    side for itself."""
    rows = [
        [who, ", ".join(f"> {most}" if step is None else str(step) for step in found)]
        for who, found in arrivals.items()
    ]
    print_table(f"Steps to {TARGET:.0%} sampled, difficulty hard", ["side", "each seed"], rows)
    best = min(PACES[1:], key=lambda who: median(paces[who]))
    ours = [math.inf if step is None else step for step in arrivals["ours"]]
    theirs = [most if step is None else step for step in arrivals["trl"]]

    def again(values: Sequence[float], draw: random.Random | None) -> float:
        return median(draw.choices(values, k=len(values)) if draw else values)

    def steps_ratio(draw: random.Random | None) -> float:
        return again(theirs, draw) / again(ours, draw)

    def pace_ratio(draw: random.Random | None) -> float:
        return again(paces[best], draw) / again(paces["ours"], draw)

    lines: dict[str, Callable[[random.Random | None], float]] = {
        "steps": steps_ratio,
        "seconds a step": pace_ratio,
        "time": lambda draw: steps_ratio(draw) * pace_ratio(draw),
    }
    cells = [
        [name, f"{of(None):.2f}", "{:.2f} – {:.2f}".format(*bootstrap(of))]
        for name, of in lines.items()
    ]
    seconds = "; ".join(f"{who} {median(found):.2f}" for who, found in paces.items())
    print_table(
        "TRL ÷ ours", ["what", "ratio of medians", "95 %"], cells, f"Seconds a step: {seconds}."
    )


def main(options: Options) -> None:
    print(describe_machine())
    seeds = range(options.seeds)
    arrivals = {
        who: [measure_steps(options, who, seed) for seed in seeds] for who in ("ours", "trl")
    }
    paces: dict[str, list[float]] = {who: [] for who in PACES}
    for seed in seeds:
        # In turns, so that a slow moment of the machine slows down all of them.
        for who in (*PACES[seed % 3 :], *PACES[: seed % 3]):
            paces[who].append(measure_pace(options, who, seed))
    tabulate(arrivals, paces, options.steps)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
