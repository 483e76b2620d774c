"""Does every run learn, whichever seed? Runs ``zorplex-rl train`` with seeds that no setting was chosen by.

    python benchmarks/seeds.py --preset smollm2 --first 501 --runs 20
    python benchmarks/seeds.py --first 501 --runs 20 --floor-sampled 0      the default settings
    python benchmarks/seeds.py --preset smollm2 --first 501 --runs 10 "--more=--task multi_step …"

A run whose row is in ``--out`` is not made again, so a study can be stopped and goes on. What a run learns
does not depend on how busy the machine is; its seconds do.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from table import describe_machine, print_table

HERE = Path(__file__).parent
DECODING = ("greedy", "sampled")


@dataclass(frozen=True, slots=True)
class Options:
    """Which runs to make, and the least that each should reach."""

    preset: str = ""
    first: int = 501
    """The first seed."""
    runs: int = 20
    tasks: int = 96
    """Held-out tasks."""
    more: str = ""
    """Further flags of ``zorplex-rl train``, in one string."""
    floor_greedy: float = 0.90
    floor_sampled: float = 0.80
    out: Path = HERE / "seeds.jsonl"

    @property
    def flags(self) -> list[str]:
        """The flags of all runs."""
        preset = ["--preset", self.preset] if self.preset else []
        return [*preset, *shlex.split(self.more), "--eval-tasks", str(self.tasks)]


def run(flags: list[str], seed: int) -> dict[str, Any]:
    """Train in a process. Returns the row that the study keeps."""
    command = ["zorplex-rl", "train", *flags, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        program = [sys.executable, "-m", "zorplex_rl", *command[1:], "--out", str(path)]
        began = time.monotonic()
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        lines = (path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    evaluations = [row for row in rows if row["event"] == "eval"]
    steps = [row for row in rows if row["event"] == "step"]
    before, after = evaluations[0], evaluations[-1]
    return {
        "command": shlex.join(command[:-2]),
        "seed": seed,
        "before": {name: before[f"{name}_accuracy"] for name in DECODING},
        "after": {name: after[f"{name}_accuracy"] for name in DECODING},
        "training": [step["accuracy"] for step in steps],
        "seconds": round(after["seconds"], 1),
        "whole_seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def main(options: Options) -> None:
    command = shlex.join(["zorplex-rl", "train", *options.flags])
    rows = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    done = {row["seed"]: row for row in rows if row["command"] == command}
    seeds = range(options.first, options.first + options.runs)
    for seed in seeds:
        if seed not in done:
            done[seed] = run(options.flags, seed)
            with options.out.open("a") as file:
                print(json.dumps(done[seed]), file=file)
        print(f"seed {seed}: {done[seed]['after']}, {done[seed]['seconds']} s", file=sys.stderr)
    report(command, [done[seed] for seed in seeds], options)


def report(command: str, rows: list[dict[str, Any]], options: Options) -> None:
    """Print a table of the runs, and how many reach the floors."""
    print(describe_machine())
    cells = []
    for row in rows:
        changes = [f"{row['before'][name]:.2f} → {row['after'][name]:.2f}" for name in DECODING]
        cells.append(
            [str(row["seed"]), *changes, f"{row['seconds']:.0f}", f"{row['whole_seconds']:.0f}"]
        )
    after = {name: [row["after"][name] for row in rows] for name in DECODING}
    floors = {"greedy": options.floor_greedy, "sampled": options.floor_sampled}
    below = [
        row["seed"] for row in rows if any(row["after"][name] < floors[name] for name in DECODING)
    ]
    middle = ", ".join(f"{name} {median(shares):.3f}" for name, shares in after.items())
    least = ", ".join(f"{name} {min(shares):.3f}" for name, shares in after.items())
    seconds = sorted(row["seconds"] for row in rows)
    print_table(
        f"`{command}`, {len(rows)} seeds",
        ["seed", "greedy", "sampled", "training, s", "command, s"],
        cells,
        f"Median: {middle}. Least: {least}.",
        f"Training takes {median(seconds):.0f} s in the median, {seconds[0]:.0f} to {seconds[-1]:.0f}.",
        f"Below {floors['greedy']:.2f} greedy or {floors['sampled']:.2f} sampled: {below or 'none'}.",
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
