"""Are runs replayed bit for bit, and does a changed replay tell what real runs of that change do?

    python benchmarks/replay.py [--seeds 5] [--minutes 8]

Trains ``SETTINGS`` × seeds asynchronously, on two generators, one of which is killed in mid-run.
Each run is replayed unchanged; and once with its setting changed to the next one. The accuracy of
this second replay is compared with the real runs of that setting: it should lie within the interval
in which one more run of theirs is expected (Student's t, 95 %).

Results go to ``replay.jsonl``, one line a run; a run that is there is not made again, so the study
can be stopped at any time. The entry in the log is written once all are there.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
import tyro
from log import Report, append_report, describe_machine, print_report

from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.run.folder import MetricsRow, RunFolder
from zorplex_rl.simulation.what_if import read_recording, replay, what_if
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import run_training

RESULTS = Path(__file__).with_name("replay.jsonl")
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
ASKED = (
    "Are asynchronous runs on two generators, one of which is killed, replayed bit for bit in one process? Does a replay "
    "with a lag, a loss or a learning rate changed end where real runs of that setting end?"
)
EXPECTED = (
    "All unchanged replays are bit-equal. Of the changed ones, 18 of 20 lie within the interval in which one more real run "
    "of that setting is expected."
)


@dataclass(frozen=True)
class Options:
    """How much of the study to do now."""

    seeds: int = 5
    """Runs of each setting."""
    minutes: float = 8.0
    """Begin no run after so many minutes."""


def one_run(name: str, seed: int) -> dict[str, Any]:
    """Train, kill a generator after a third of the steps, replay twice. Returns the result's
    row."""
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
        began = time.monotonic()
        found = replay(recording)
        seconds = time.monotonic() - began
        target, change = CHANGES[name]
        changed = what_if(recording, config.changed(**change), seeds=1)
        restarts = len(recording.events("restart"))
    (pair,) = changed.pairs
    return {
        "setting": name, "seed": seed, "restarts": restarts, "sampled": last["sampled_accuracy"], "seconds": last["seconds"],
        "equal": found.is_equal, "difference": found.first_difference, "why": found.why, "episodes": found.compared["episodes"],
        "same_episodes": found.same["episodes"], "replay_seconds": seconds, "target": target, "was": changed.means("sampled, at the end")[0],
        "changed": changed.means("sampled, at the end")[1], "predicted": changed.predicted[1], "parted": pair.parted,
        "machine": describe_machine(),
    }  # fmt: skip


def reports(rows: list[dict[str, Any]]) -> list[Report]:
    """Return the two tables."""
    from scipy.special import stdtrit

    lines, inside, all_ = [], 0, 0
    real = {name: [row["sampled"] for row in rows if row["setting"] == name] for name in SETTINGS}
    for name, found in real.items():
        own = [row for row in rows if row["setting"] == name]
        equal = sum(row["equal"] for row in own)
        target = CHANGES[name][0]
        others = real[target]
        half = float(stdtrit(len(others) - 1, 0.975)) * stdev(others) * math.sqrt(1 + 1 / len(others))
        low, high = fmean(others) - half, fmean(others) + half
        hits = sum(low <= row["changed"] <= high for row in own)
        inside, all_ = inside + hits, all_ + len(own)
        lines.append(
            [name, str(len(own)), f"{equal}", f"{fmean(found):.1%}", target, f"{fmean(r['changed'] for r in own):.1%}",
             f"{fmean(others):.1%}", f"{max(low, 0):.0%} – {min(high, 1):.0%}", f"{hits} of {len(own)}"]
        )  # fmt: skip
    columns = ("setting", "runs", "bit-equal", "real", "changed to", "replay", "real", "expected", "within")
    notes = [f"{inside} of {all_} changed replays are within the interval of one more real run of that setting."]
    notes += [
        f"not equal: {r['setting']}, seed {r['seed']}: {r['difference']} ({r['why']})" for r in rows if not r["equal"]
    ]
    faults = sum(row["restarts"] for row in rows)
    notes.append(f"{faults} processes were killed and replaced in {len(rows)} runs.")
    return [Report("Held-out accuracy, sampled, at the end", columns, lines, notes)]


def main(options: Options) -> None:
    """Do what is left of the study, as far as the time goes."""
    torch.set_num_threads(1)
    began = time.monotonic()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    done = {(row["setting"], row["seed"]) for row in rows}
    wanted = [(name, seed) for seed in range(options.seeds) for name in SETTINGS]
    for name, seed in wanted:
        if (name, seed) in done:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print(f"{len(rows)} of {len(wanted)} runs are done; call again for the rest", file=sys.stderr)
            return
        rows.append(one_run(name, seed))
        with RESULTS.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print({key: rows[-1][key] for key in ("setting", "seed", "equal", "sampled", "changed")}, file=sys.stderr)
    found = reports(rows)
    for report in found:
        print_report(report)
    settings = {
        "seeds": options.seeds,
        "steps": BASE.steps,
        "prompts": BASE.prompts_per_step,
        "group size": BASE.group_size,
    }
    append_report("benchmarks/replay.py", ASKED, EXPECTED, settings, found)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
