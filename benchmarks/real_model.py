"""How long until SmolLM2 answers 80 % of the held-out `simple` tasks right, sampled: this package against TRL's ``GRPOTrainer``?

    ours    python -m zorplex_rl train …      sampling and training in turns, two threads each
    TRL     python benchmarks/trl_peer.py …   one process, two threads; its ``rollout_func`` calls the tool, turn by turn through ``generate``
    bound   products.py                       which share of the machine our sampling and gradient reach

Ours is what a user runs, ``--preset smollm2``; TRL has the same adapters by its ``peft_config``, the
same worked examples and limit on tokens, and ``--trl-rate``. Our rate falls over ``--steps``, so fewer
steps than the preset's are another run, not its beginning.

Each run is evaluated after every step. The accuracy of a step is the mean over three: it and its
neighbours. The first with 0.80 or more is the arrival. How long a step takes until then is measured in
runs of their own, in ``pace``, evaluated on 8 tasks: after a long evaluation a trainer that waited is
slower where a host takes idle memory back. The clock stands still during evaluations. Equal on
both sides: the model, the tasks, the worked examples, the reward, the limit on tokens, 4 prompts ×
8 samples a step, AdamW. Our number type is ``--dtype auto``, TRL's ``--trl-dtype``. TRL takes
micro-batches of 8 episodes: more do not fit 24 GiB.

Each run stays in the folder ``--out`` and is not made again, so the study can be stopped and goes on;
``--seed 3 --side ours`` makes one run of it. Steps do not depend on how busy the machine is, seconds
do: they are for a quiet one. The model comes from `zorplex-rl policy get smollm2`; TRL from the
extra ``bench``.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import torch
import tyro
from products import measure
from table import describe_machine, print_table
from time_to_accuracy import REPOSITORY, bootstrap, environment, made

from zorplex_rl.cli.presets import preset_config
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.smollm2 import cached

TARGET = 0.80
THREADS = 2
PRESET = preset_config("smollm2")
PROMPTS, GROUP_SIZE = PRESET.prompts_per_step, PRESET.group_size
SIDES = ("ours", "trl")
PACE_TASKS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    side: Literal["both", "ours", "trl", "bound"] = "both"
    """Whose runs to make; bound measures only the shares."""
    seed: int | None = None
    """Make only the runs of this seed."""
    seeds: int = 5
    """Runs of each side, from seed 0 on."""
    steps: int = PRESET.steps
    """Steps of each run."""
    tasks: int = 64
    """Held-out tasks on which a run is evaluated after each step."""
    trl_rate: float = PRESET.learner.learning_rate
    """Learning rate of TRL's side."""
    trl_dtype: str = "float32"
    """Number type of TRL's side."""
    flags: str = ""
    """More flags for `zorplex-rl train`, separated by spaces."""
    policy: Path = field(default_factory=cached)
    """The model's folder."""
    out: Path = Path("runs/real_model")
    """Folder of all runs."""


def run(options: Options, side: str, seed: int) -> list[tuple[float, float]]:
    """Return (seconds of training so far, accuracy) after each step of a run, which is made if it is
    not there."""

    def train(folder: Path) -> None:
        if side == "ours":
            command = (
                "-m", "zorplex_rl", "train", "--preset", "smollm2", "--policy", options.policy, "--seed", seed, "--threads", THREADS,
                "--spares", 0, "--steps", options.steps, "--eval-every", 1, "--eval-tasks", options.tasks,
                "--checkpoint-every", options.steps, "--out", folder, *options.flags.split(),
            )  # fmt: skip
        else:
            job = {
                "folder": str(folder), "seed": seed, "steps": options.steps, "threads": THREADS, "eval_tasks": options.tasks,
                "policy": str(options.policy), "kind": "simple:easy", "shots": PRESET.shots, "prompts": PROMPTS, "micro_batch": 8,
                "learning_rate": options.trl_rate, "warmup_steps": PRESET.learner.warmup_steps,
                "max_tokens": PRESET.max_tokens, "lora_rank": PRESET.lora_rank, "dtype": options.trl_dtype,
            }  # fmt: skip
            command = (REPOSITORY / "benchmarks" / "trl_peer.py", json.dumps(job))
        program = [sys.executable, *map(str, command)]
        subprocess.run(
            program, cwd=REPOSITORY, env=environment(THREADS), stdout=subprocess.DEVNULL, check=True
        )
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # 1.6 GB that nobody needs

    return progress(made(options.out.resolve() / f"{side}_{seed}", train))


def progress(rows: list[dict]) -> list[tuple[float, float]]:
    """Return (seconds of training so far, accuracy) after each step, from the rows of a run. Our clock
    goes on during evaluations and says how long they took; TRL's stands still."""
    paused, found, seconds = 0.0, [], {}
    for row in rows:
        if row["event"] == "step":
            seconds[row["step"]] = row["seconds"] - paused
        elif row["event"] == "eval" and row["step"]:
            paused += row.get("evaluation_seconds", 0.0)
            found.append((seconds[row["step"]], row["sampled_accuracy"]))
    return found


def arrival(found: list[tuple[float, float]]) -> int | None:
    """Return the first step, counted from 1, whose accuracy, as a mean over it and its neighbours,
    reaches the target. None if there is none.

    >>> arrival([(1, 0.7), (2, 0.8), (3, 0.9)]), arrival([(1, 0.5)] * 3)
    (2, None)
    """
    means = [
        fmean(accuracy for _, accuracy in found[max(0, i - 1) : i + 2]) for i in range(len(found))
    ]
    return next((i + 1 for i, mean in enumerate(means) if mean >= TARGET - 1e-9), None)


def tabulate(runs: dict[str, list[tuple[int | None, int, float]]]) -> None:
    """Print steps, seconds a step and time, each side's median with its interval, and the ratios, from each
    run's arrival, steps and seconds a step. A run of ours that never arrives takes for ever, one of TRL's as
    long as it was."""
    values: dict[str, dict[str, list[float]]] = {}
    for side, found in runs.items():
        reached = [step or (steps if side == "trl" else math.inf) for step, steps, _ in found]
        a_step = [seconds for *_, seconds in found]
        times = [step * each for step, each in zip(reached, a_step, strict=True)]
        values[side] = {"steps": reached, "seconds a step": a_step, "seconds": times}
        print(
            f"{side}: arrived after {', '.join(str(step or f'> {steps}') for step, steps, _ in found)} steps"
        )
        print(f"{side}: {', '.join(f'{seconds:.2f}' for seconds in a_step)} seconds a step")
    rows = []
    for name in next(iter(values.values())):
        cells = [name]
        for of_side in values.values():
            low, high = bootstrap(
                lambda draw, of=of_side[name]: median(draw.choices(of, k=len(of)))
            )
            cells.append(f"{median(of_side[name]):.3g} ({low:.3g} – {high:.3g})")
        if len(values) == 2:
            ours, theirs = (values[side][name] for side in SIDES)
            ratio: Callable = lambda draw, a=ours, b=theirs: (  # noqa: E731
                median(draw.choices(b, k=len(b))) / median(draw.choices(a, k=len(a)))
            )
            low, high = bootstrap(ratio)
            cells.append(f"{median(theirs) / median(ours):.2f} ({low:.2f} – {high:.2f})")
        rows.append(cells)
    columns = ["to 0.80 sampled", *values, *["TRL ÷ ours"] * (len(values) == 2)]
    print_table("SmolLM2 on `simple`: medians (95 %)", columns, rows)


def bound(options: Options) -> None:
    """Print which share of the bound our sampling and our gradient reach."""
    torch.set_num_threads(THREADS)
    rows = []
    for part in measure(load_policy(str(options.policy)), PROMPTS, GROUP_SIZE, PRESET.shots):
        rows.append(
            [
                part.name,
                f"{part.seconds:.2f}",
                f"{part.bound:.2f}",
                f"{part.bound / part.seconds:.0%}",
            ]
        )
    print_table(
        f"{PROMPTS} × {GROUP_SIZE} episodes, {THREADS} threads",
        ["", "s", "products alone, s", "share"],
        rows,
    )


def main(options: Options) -> None:
    print(describe_machine())
    if options.side != "bound":
        seeds = range(options.seeds) if options.seed is None else [options.seed]
        sides = SIDES if options.side == "both" else (options.side,)
        runs: dict[str, list] = {side: [] for side in sides}
        for seed in seeds:
            # In turns, so that a slow moment of the machine slows down both.
            for side in sides:
                found = run(options, side, seed)
                step = arrival(found) or len(found)
                pace = run(
                    replace(options, tasks=PACE_TASKS, steps=step, out=options.out / "pace"),
                    side,
                    seed,
                )
                runs[side].append((arrival(found), len(found), pace[-1][0] / step))
        tabulate(runs)
    if options.side in ("both", "bound"):
        bound(options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
