"""Are runs replayed bit for bit, and does a changed replay tell what real runs of that change do?

    python benchmarks/replay.py                four settings × five seeds, about an hour
    python benchmarks/replay.py --seeds 1      one seed, which cannot answer the second question

Trains asynchronously on two generators, one of which is killed in mid-run. Each run is replayed
unchanged, and once with its setting changed to another one. The accuracy of this second replay is
compared with the real runs of that setting: it should lie within the interval in which one more run
of theirs is expected (Student's t, 95 %).
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
import tyro
from scipy.special import stdtrit
from table import describe_machine, print_table

from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.run.folder import MetricsRow, RunFolder
from zorplex_rl.simulation.replay import read_recording, replay
from zorplex_rl.simulation.what_if import what_if
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import run_training

BASE = Config(
    steps=20, prompts_per_step=4, group_size=8, eval_every=5, eval_tasks=64, checkpoint_every=10, device="cpu",
    services=ServicesConfig(generators=2, spares=1),
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "lag 1": {"max_lag": 1},
    "lag 4": {"max_lag": 4},
    "lag 2, tis": {"max_lag": 2, "loss": "tis"},
    "lag 2, in flight, 4e-4": {"max_lag": 2, "on_update": "continue", "learning_rate": 4e-4},
}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "lag 1": ("lag 4", {"max_lag": 4}),
    "lag 4": ("lag 1", {"max_lag": 1}),
    "lag 2, tis": ("lag 1", {"max_lag": 1, "loss": "grpo"}),
    "lag 2, in flight, 4e-4": ("lag 2, tis", {"loss": "tis", "learning_rate": 2e-4}),
}
"""To which setting each is changed, and how. In the last one the replay keeps updates in flight."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    seeds: int = 5
    """Runs of each setting."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its accuracy at the end, whether its replay is bit-equal, and the accuracy of the
    changed replay."""

    real: float
    equal: bool
    changed: float


def measure(name: str, seed: int) -> Measured:
    """Train, kill a generator after a third of the steps, and replay twice."""
    config = BASE.changed(**SETTINGS[name], seed=seed)
    controllers: list[Controller] = []

    def show(row: MetricsRow) -> None:
        if row["event"] == "step" and row["step"] == config.steps // 3:
            replicas = controllers[0].services["generator"].replicas
            os.kill(next(replica.pid for replica in replicas if replica.pid), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config)
        _, last = asyncio.run(run_training(config, folder, show=show, on_start=controllers.append))
        recording = read_recording(folder.path)
        found = replay(recording)
        changed = what_if(recording, config.changed(**CHANGES[name][1]), seeds=1)
    if not found.is_equal:
        print(f"{name}, seed {seed}: {found.first_difference} ({found.why})", file=sys.stderr)
    return Measured(last["sampled_accuracy"], found.is_equal, changed.means("sampled, at the end")[1])


def tabulate(found: dict[str, list[Measured]]) -> None:
    """Print how many replays were equal, and how many changed ones came where real runs came."""
    rows, inside = [], 0
    for name, runs in found.items():
        target = CHANGES[name][0]
        real = [run.real for run in found[target]]
        half = float(stdtrit(len(real) - 1, 0.975)) * stdev(real) * math.sqrt(1 + 1 / len(real))
        low, high = fmean(real) - half, fmean(real) + half
        hits = sum(low <= run.changed <= high for run in runs)
        inside += hits
        shares = [f"{fmean(run.real for run in runs):.1%}", target, f"{fmean(run.changed for run in runs):.1%}"]
        expected = f"{max(low, 0):.0%} – {min(high, 1):.0%}"
        equal = sum(run.equal for run in runs)
        rows.append(
            [name, f"{equal} of {len(runs)}", *shares, f"{fmean(real):.1%}", expected, f"{hits} of {len(runs)}"]
        )
    columns = ["setting", "bit-equal", "real", "changed to", "replay", "real", "expected", "within"]
    note = f"{inside} of {sum(map(len, found.values()))} changed replays are within the interval."
    print_table("Held-out accuracy, sampled, at the end", columns, rows, note)


def main(options: Options) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[Measured]] = {name: [] for name in SETTINGS}
    for seed in range(options.seeds):
        for name, runs in found.items():
            runs.append(measure(name, seed))
            print(f"seed {seed}, {name}: {runs[-1]}", file=sys.stderr, flush=True)
    print(describe_machine())
    if options.seeds > 1:
        tabulate(found)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
