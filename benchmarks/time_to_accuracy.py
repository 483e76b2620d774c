"""Measure the wall time until 90 % of the held-out compositional tasks are answered right: this
package against TRL's ``GRPOTrainer``.

There are two goals. ``hard, sampled`` is hard to reach: three sums with four look-ups, sampled at
temperature 1. ``easy, greedy`` is reached in a few steps, because before training most failures are
a missing tag.

    ours   python -m zorplex_rl train …       generators and trainer in processes of their own, one torch thread each
    TRL    python benchmarks/trl_peer.py …    one process, with 1 and with 2 torch threads; the better one counts

Equal on both sides: the starting policy, the table and its tasks, the reward, 8 prompts × 8 samples
a step, AdamW at 2e-4 after five steps of warm-up, temperature 1, no KL term, and the evaluation
(held-out split, every few steps, by the package's own engine). Each side has its own order of
random draws, normalisation of advantages and loss, and learning rate after the warm-up (ours falls
linearly to a tenth, TRL's is constant). How generation and training share the machine also differs;
that is what is compared.

The clock starts with the first step. Starting processes, loading, importing and evaluating do not
count. TRL's clock stops during evaluations. In ours an evaluation would drain the pipeline, so it
trains a second time without any; the time is that of the step at which the first run reached the
goal. Both sides write ``{"event": "eval", "step": …, "seconds": …, "greedy_accuracy": …}`` lines;
the first at or above 90 % is the arrival, so it is as coarse as ``eval_every`` steps on both sides.
One repetition is one seed: it runs all contenders one after another, in a rotating order. TRL needs
the extra ``bench``, or a Python that has it: ``--trl-python``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from log import Report, append_report, print_report

ASKED = (
    "After how many seconds of training are 90 % of the held-out tasks answered right: with this package, and with TRL's ``GRPOTrainer`` on the "
    "same policy, tasks, group size and learning rate?"
)
EXPECTED = "At most 1 / 3.5 of TRL's time, with the better of one and two torch threads for TRL."
REPOSITORY = Path(__file__).resolve().parent.parent
OURS = "zorplex-rl"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    policy: str = "embedded"
    """``embedded``, a folder or a hub id."""
    repeats: int = 3
    """Seeds; each trains every contender once."""
    goals: tuple[str, ...] = ("hard", "easy")
    """``hard``: 90 % sampled on the hardest difficulty; ``easy``: 90 % greedy on the easiest."""
    target: float = 0.9
    """Held-out accuracy to reach."""
    eval_tasks: int = 128
    """Held-out tasks of an evaluation."""
    threads: tuple[int, ...] = (1, 2)
    """Torch threads to try for TRL."""
    sides: tuple[str, ...] = ("ours", "trl")
    """Which sides to run."""
    trl_python: str = sys.executable
    """The Python that has TRL."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Hold what must be reached."""

    difficulty: str
    measure: str
    steps: int
    """Most training steps."""
    eval_every: int


GOALS = {"hard": Goal("hard", "sampled", 120, 5), "easy": Goal("easy", "greedy", 60, 2)}


@dataclass(frozen=True, slots=True)
class Arrival:
    """Hold the first evaluation at or above the target: seconds and steps of training, or None if
    there was none."""

    seconds: float | None
    step: int | None


class RunFailed(RuntimeError):
    """Report that a training process ended with an error. The message ends with the process's last
    output."""


def find_arrival(metrics: Path, measure: str, target: float) -> Arrival:
    """Return the first ``eval`` line of ``metrics`` whose ``measure`` accuracy is at least
    ``target``."""
    for row in _rows(metrics):
        if row["event"] == "eval" and row[f"{measure}_accuracy"] >= target:
            return Arrival(row["seconds"], row["step"])
    return Arrival(None, None)


def _rows(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def time_to_accuracy_ours(options: Options, goal: Goal, seed: int, folder: Path) -> Arrival:
    """Train with ``zorplex-rl train`` twice: to find the step that reaches the goal, and, without
    evaluations, the time of that step."""
    command = [sys.executable, "-m", "zorplex_rl", "train", "--task", "compositional", "--policy", options.policy]
    command += ["--difficulty", goal.difficulty, "--seed", str(seed), "--steps", str(goal.steps)]
    command += ["--eval-tasks", str(options.eval_tasks)]
    _run([*command, "--out", str(folder), "--eval-every", str(goal.eval_every)], threads=1)
    arrival = find_arrival(folder / "metrics.jsonl", goal.measure, options.target)
    if arrival.step is None:
        return arrival
    timed = folder.with_name(f"{folder.name}-timed")
    _run([*command, "--out", str(timed), "--eval-every", "1000000"], threads=1)
    steps = {row["step"]: row["seconds"] for row in _rows(timed / "metrics.jsonl") if row["event"] == "step"}
    return Arrival(steps[arrival.step], arrival.step)


def time_to_accuracy_trl(options: Options, goal: Goal, threads: int, seed: int, folder: Path) -> Arrival:
    """Train with TRL on ``threads`` torch threads. Returns when it reached the goal."""
    shared = {name: getattr(options, name) for name in ("policy", "target", "eval_tasks")} | asdict(goal)
    job = json.dumps({"folder": str(folder), "threads": threads, "seed": seed, **shared})
    _run([options.trl_python, str(REPOSITORY / "benchmarks" / "trl_peer.py"), job], threads)
    return find_arrival(folder / "metrics.jsonl", goal.measure, options.target)


def measure(options: Options, goal: Goal) -> dict[str, list[Arrival]]:
    """Run all contenders. Returns for each when it reached ``goal``, one entry for each seed."""
    contenders: dict[str, Callable[[int, Path], Arrival]] = {}
    if "ours" in options.sides:
        contenders[OURS] = partial(time_to_accuracy_ours, options, goal)
    if "trl" in options.sides:
        for threads in options.threads:
            contenders[f"TRL, {threads} thread{'s' * (threads > 1)}"] = partial(
                time_to_accuracy_trl, options, goal, threads
            )
    arrivals: dict[str, list[Arrival]] = {name: [] for name in contenders}
    order = list(contenders)
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.repeats):
            shift = seed % len(order)
            for name in order[shift:] + order[:shift]:
                arrival = contenders[name](seed, Path(scratch) / f"{order.index(name)}-{seed}")
                arrivals[name].append(arrival)
                print(f"seed {seed}, {name}: {_say(arrival)}", flush=True)
    return arrivals


def tabulate(arrivals: dict[str, list[Arrival]], goal: Goal, target: float) -> Report:
    """Return the table of seconds and steps to ``goal``: medians over seeds, ratios seed by seed. A
    dash means never reached."""
    seconds = {name: [_or_never(a.seconds) for a in found] for name, found in arrivals.items()}
    rows = []
    for name, times in seconds.items():
        steps = median(_or_never(arrival.step) for arrival in arrivals[name])
        ratio = math.inf
        if OURS in seconds and math.inf not in seconds[OURS]:
            ratio = median(own / ours for own, ours in zip(times, seconds[OURS], strict=True))
        pace = median(times) / steps if steps < math.inf else math.inf
        spread = f"{_show(min(times))} – {_show(max(times))}"
        rows.append([name, _show(median(times)), spread, _show(steps, 0), _show(pace, 2), _show(ratio, 2)])
    columns = ["contender", f"s to {target:.0%}", "range", "steps", "s per step", "its time ÷ ours"]
    notes = []
    if peers := {name: median(times) for name, times in seconds.items() if name != OURS}:
        notes = [f"TRL at its best: {min(peers, key=peers.get)}."]
    title = f"Time to {target:.0%} {goal.measure} on difficulty {goal.difficulty}, medians over seeds"
    return Report(title, columns, rows, notes)


def _run(command: list[str], threads: int) -> None:
    """Run ``command`` to its end in the repository, offline."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _or_never(value: float | None) -> float:
    return math.inf if value is None else value


def _show(value: float, digits: int = 1) -> str:
    return "–" if value == math.inf else f"{value:.{digits}f}"


def _say(arrival: Arrival) -> str:
    return "never arrived" if arrival.seconds is None else f"{arrival.seconds:.1f} s, {arrival.step} steps"


def main(options: Options) -> None:
    if Path(options.policy).exists():
        options = replace(options, policy=str(Path(options.policy).resolve()))
    reports = []
    for name in options.goals:
        reports.append(tabulate(measure(options, GOALS[name]), GOALS[name], options.target))
        print_report(reports[-1])
    if options.log:
        settings = {n: v for n, v in asdict(options).items() if n not in ("log", "policy", "trl_python")}
        settings = {"policy": options.policy if options.policy == "embedded" else "given by path", **settings}
        append_report("benchmarks/time_to_accuracy.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
