"""Is the mean lag of a real run that of the closed form and that of the simulator?

    python benchmarks/mean_lag.py [--minutes 5]

Trains once in every cell of ``GRID``: few slots make generators the slower side, several updates a
batch the trainer, and both together a near tie. The closed form (``zorplex_rl/simulation/lag.py``)
gets the mean seconds that the run's timeline shows and the deviation of a step's training less its
sampling, the simulator all seconds (``recorded.py``). Compared is the mean lag of the groups from a
quarter of the steps on: before, all data are fresh. The closed form's seconds are of those steps too.

Results go to ``mean_lag.jsonl``, one line a cell; a cell that is there is not run again. The entry
in the log is written once all are there.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import tyro
from log import Report, append_report, describe_machine, print_report

from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.simulation.lag import mean_lag
from zorplex_rl.simulation.recorded import predict, read_run
from zorplex_rl.simulation.simulate import Run
from zorplex_rl.training.loop import run_training

RESULTS = Path(__file__).with_name("mean_lag.jsonl")
BASE = Config(
    steps=96, group_size=2, eval_every=1_000_000, eval_tasks=4, checkpoint_every=1_000_000, device="cpu",
    services=ServicesConfig(spares=0),
)  # fmt: skip
SLOW_GENERATORS: dict[int, dict[str, Any]] = {1: {"slots": 4}, 2: {"slots": 2, "generators": 2}}
SLOW_TRAINER: dict[int, dict[str, Any]] = {n: {"updates_per_batch": 4, "generators": n} for n in (1, 2)}
GRID: dict[str, dict[str, Any]] = {
    **{f"1 generator, slow; lag {lag}": {"max_lag": lag, **SLOW_GENERATORS[1]} for lag in (1, 2, 3, 4)},
    **{f"2 generators, slow; lag {lag}": {"max_lag": lag, **SLOW_GENERATORS[2]} for lag in (1, 2, 4)},
    **{f"1 generator, slow trainer; lag {lag}": {"max_lag": lag, **SLOW_TRAINER[1]} for lag in (1, 4)},
    "2 generators, slow trainer; lag 3": {"max_lag": 3, **SLOW_TRAINER[2]},
    **{
        f"{n} generator{'s' * (n > 1)}, near a tie; lag 4": {"max_lag": 4, "updates_per_batch": 2, **SLOW_GENERATORS[n]}
        for n in (1, 2)
    },
}
ASKED = "Is the mean lag of a real run the one that the closed form and the simulator compute from its seconds?"
EXPECTED = "Both within 10 % of the run, in each of the cells."


@dataclass(frozen=True)
class Options:
    """How much of it to do now."""

    minutes: float = 5.0
    """Begin no run after so many minutes."""


def one_cell(name: str) -> dict[str, Any]:
    """Train in the cell ``name``. Returns its row."""
    config = BASE.changed(**GRID[name])
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", config)
        asyncio.run(run_training(config, folder))
        recorded = read_run(folder.path)
        lags = [row["lag_mean"] for row in folder.metrics() if row["event"] == "step"]
    setting, groups, first = recorded.setting, config.prompts_per_step, config.steps // 4
    train = recorded.latencies.train[first:]
    sample = [
        sum(recorded.latencies.generate[step * groups : (step + 1) * groups]) / setting.generators
        for step in range(first, config.steps)
    ]
    deviation = pstdev(t - b for t, b in zip(train, sample, strict=True))
    closed = mean_lag(
        setting.generators, groups, setting.max_lag, fmean(sample) * setting.generators / groups, fmean(train),
        setting.sync_seconds, ahead=config.on_update == "wait", deviation=deviation,
    )  # fmt: skip
    return {
        "cell": name, "real": fmean(lags[first:]), "closed": closed,
        "simulated": simulated_lag(predict(recorded), config), "sample": fmean(sample), "train": fmean(train),
        "sync": setting.sync_seconds, "deviation": deviation, "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
    }  # fmt: skip


def simulated_lag(run: Run, config: Config) -> float:
    """Return the mean lag in a simulated run, of the same steps."""
    spans = run.timeline.spans
    version = {span.args["group"]: span.args["version"] for span in spans if span.kind == "generate"}
    trained = [(s.args["step"], group) for s in spans if s.kind == "train" for group in s.args["groups"]]
    return fmean(step - version[group] for step, group in trained if step >= config.steps // 4)


def read_results() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row["cell"]: row for row in map(json.loads, lines)}


def report(found: dict[str, dict[str, Any]]) -> Report:
    rows, worst = [], dict.fromkeys(("closed", "simulated"), 0.0)
    for name in GRID:
        row = found[name]
        apart = {kind: row[kind] / row["real"] - 1 for kind in worst}
        worst = {kind: max(worst[kind], abs(apart[kind])) for kind in worst}
        rows.append(
            [name, *(f"{row[kind]:.2f}" for kind in ("sample", "train", "sync", "deviation")), f"{row['real']:.2f}"]
            + [f"{row[kind]:.2f} ({apart[kind]:+.0%})" for kind in worst]
        )
    columns = [
        "cell",
        "s to sample a step",
        "s to train on it",
        "s of weights",
        "deviation, s",
        "lag, real",
        "closed form",
        "simulator",
    ]
    note = f"Farthest off: closed form {worst['closed']:.0%}, simulator {worst['simulated']:.0%}."
    return Report("Mean lag in versions", columns, rows, [note])


def main(options: Options) -> None:
    found, until = read_results(), time.monotonic() + 60 * options.minutes
    for name in GRID:
        if name not in found and time.monotonic() < until:
            found[name] = one_cell(name)
            with RESULTS.open("a") as opened:
                opened.write(json.dumps(found[name]) + "\n")
    if missing := [name for name in GRID if name not in found]:
        print(f"to come: {', '.join(missing)}")
        return
    result = report(found)
    print_report(result)
    append_report(
        "benchmarks/mean_lag.py", ASKED, EXPECTED, {"steps": BASE.steps, "group_size": BASE.group_size}, [result]
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
