"""Measure the wall time until 90 % of the held-out hard tasks are answered right, sampled at
temperature 1: this package against TRL's ``GRPOTrainer``.

    ours   python -m zorplex_rl train …       generators and trainer in processes of their own, one torch thread each
    TRL    python benchmarks/trl_peer.py …    one process, with 1 and with 2 torch threads; the better one counts

The time is a product, and its two factors are measured apart:

    steps            Each side trains with every step's weights kept. Afterwards those are evaluated on the same 400
                     held-out tasks. The accuracy of a step is the mean over 5 steps, it and two on either side: 2,000
                     answers. The first step with 0.90 or more is the arrival.
    seconds a step   Each side trains a few steps without any evaluation, in turns. The first ones do not count.

To save evaluations, every tenth step is evaluated first. The search for the arrival begins ten steps
before the first of these that reaches 0.85.

Equal on both sides: the starting policy, the table and its tasks, the reward, 8 prompts × 8 samples
a step, AdamW after five steps of warm-up, temperature 1, no KL term. Each side has its own order of
random draws, normalisation of advantages and loss, and learning rate after the warm-up (ours falls
linearly to a tenth at the last step; TRL's is constant, or falls linearly to 0 as in its defaults).
Each side's settings are the best of five (``TRIED``) on the tuning seeds, which are others than
those measured: the fewest seeds without an arrival, then the fewest steps in the median. A setting
that has missed one is not tried on the next. In the ratio a run of TRL's without an arrival counts
as if it had arrived at its last step, one of ours as if it never would.

One row of ``time_to_accuracy.jsonl`` is one run. A run that is there is not made again, so the
study can be stopped at any time, and goes on from there. Steps do not depend on how busy the
machine is, seconds do: they are for a quiet one. TRL needs the extra ``bench``, or a Python that
has it: ``--trl-python``.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro
from log import Report, append_report, describe_machine, print_report
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from zorplex_rl.policy.evaluate import evaluate
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.task.specs import get_spec

ASKED = (
    "After how many steps, and after how many seconds of training, are 90 % of the held-out hard tasks answered right, sampled: "
    "with this package, and with TRL's ``GRPOTrainer``?"
)
EXPECTED = (
    "TRL's time at its best is 4 times ours in the median, with 3 as the lower end of the 95 % interval; and no more steps "
    "than TRL's in the median."
)
ROWS = Path(__file__).with_name("time_to_accuracy.jsonl")
REPOSITORY = Path(__file__).resolve().parent.parent
TARGET, TASKS, AROUND, COARSE, NEAR = 0.90, 400, 2, 10, 0.05
MOST_STEPS = 120
Settings = dict[str, float | str]
_PREFIX: Settings = {"learning_rate": 5e-4, "credit": "prefix", "scale_rate": 0.2}
TRIED: dict[str, tuple[Settings, ...]] = {
    "ours": (
        {"learning_rate": 2e-4},
        {"learning_rate": 5e-4},
        _PREFIX | {"steps": 32},
        _PREFIX | {"steps": 40},
        _PREFIX | {"steps": 64},
    ),
    "trl": (
        {"learning_rate": 2e-4},
        {"learning_rate": 5e-4},
        {"learning_rate": 1e-3},
        {"learning_rate": 5e-4, "schedule": "linear", "steps": 40},
        {"learning_rate": 2e-4, "schedule": "linear"},
    ),
}
"""What each side is tuned over. The first two are the same; then each has the means that it comes
with. ``steps``, if not ``MOST_STEPS``, is how long the run is, and how soon the rate has fallen."""
TUNING_SEEDS = (100, 101)
SIDES = ("ours", "trl")
PACES = {"ours": ("ours", 1), "trl, 1 thread": ("trl", 1), "trl, 2 threads": ("trl", 2)}
PACE_STEPS, PACE_SKIPPED = 14, 4

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How much of the study to do now."""

    seeds: int = 8
    """Runs of each side for the steps."""
    paces: int = 8
    """Runs of each contender for the seconds of a step."""
    minutes: float = 8.0
    """Begin no run after so many minutes."""
    only: tuple[str, ...] = ("tune", "steps", "pace")
    """Which parts to do."""
    who: tuple[str, ...] = SIDES
    """Whose runs of tuning and steps to do, so that two commands can share them."""
    trl_python: str = sys.executable
    """The Python that has TRL."""
    log: bool = True
    """Append the result to LOG.md once every run is there."""


def arrival(accuracy_at: Callable[[int], float], steps: int) -> int | None:
    """Return the first of ``steps`` steps whose smoothed accuracy reaches the target, by the rule
    at the top of this file, or None. ``accuracy_at`` is asked for as few steps as that needs.

    >>> arrival(lambda step: step / 100, 120)
    90
    >>> arrival(lambda step: 0.8, 120)
    """
    coarse = range(COARSE, steps + 1, COARSE)
    near = next((step for step in coarse if accuracy_at(step) >= TARGET - NEAR), None)
    if near is None:
        return None
    for step in range(max(1 + AROUND, near - COARSE), steps - AROUND + 1):
        around = [accuracy_at(other) for other in range(step - AROUND, step + AROUND + 1)]
        if sum(around) >= TARGET * len(around) - 1e-9:
            return step
    return None


def measure_steps(side: str, settings: Settings, seed: int, options: Options) -> Row:
    """Train ``side`` with every step's weights kept. Returns its arrival and what was evaluated."""
    policy, spec = load_policy(), get_spec("compositional", seed, "hard")
    held_out = [spec.task(index, "held_out") for index in range(TASKS)]
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        read = (
            train_ours(settings, seed, folder)
            if side == "ours"
            else train_trl(settings, seed, folder, options.trl_python)
        )

        def accuracy_at(step: int) -> float:
            if step not in found:
                read(policy, step)
                found[step] = evaluate(policy, spec.kind, held_out, spec.execute, seed=step)[0].accuracy
            return found[step]

        step = arrival(accuracy_at, _length(settings))
    return {"arrival": step, "accuracy": dict(sorted(found.items()))}


def train_ours(settings: Settings, seed: int, folder: Path) -> Callable[[Policy, int], None]:
    """Train with ``zorplex-rl train``. Returns what loads a step's weights into a policy.

    A run keeps its last two checkpoints. So the weights of each are copied as it appears.
    """
    kept, command = folder.with_name("kept"), [*_ours(settings, seed, folder), "--checkpoint-every", "1"]
    kept.mkdir()
    with folder.with_name("output").open("w+") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=_environment(1), stdout=output, stderr=output)
        while process.poll() is None:
            _keep(folder, kept)
            time.sleep(0.05)
        _keep(folder, kept)
        output.seek(0)
        _expect(process.returncode, command, output.read())

    def read(policy: Policy, step: int) -> None:
        weights = load_file(kept / f"{step}.safetensors")
        with torch.no_grad():
            for number, parameter in enumerate(policy.model.parameters()):
                parameter.copy_(weights[f"masters.{number}"])

    return read


def _keep(run: Path, kept: Path) -> None:
    """Copy the weights of those checkpoints of ``run`` that are not in ``kept``."""
    for place in (run / "checkpoints").glob("step_*"):
        target = kept / f"{int(place.name.removeprefix('step_'))}.safetensors"
        if not target.exists():
            with safe_open(place / "trainer" / "learner.safetensors", framework="pt") as tensors:
                names = [name for name in tensors.keys() if name.startswith("masters.")]  # noqa: SIM118, not a dict
                save_file({name: tensors.get_tensor(name) for name in names}, target)


def train_trl(settings: Settings, seed: int, folder: Path, python: str) -> Callable[[Policy, int], None]:
    """Train with TRL. Returns what loads a step's weights into a policy."""
    _trl(settings, seed, folder, 1, python, keep_weights=True)

    def read(policy: Policy, step: int) -> None:
        policy.model.load_state_dict(load_file(folder / f"{step}.safetensors"), strict=False)

    return read


def measure_pace(contender: str, settings: Settings, seed: int, options: Options) -> Row:
    """Train a few steps without evaluations. Returns the seconds that a step took."""
    side, threads = PACES[contender]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if side == "ours":
            command = _ours(settings | {"steps": PACE_STEPS}, seed, folder)
            done = subprocess.run(command, cwd=REPOSITORY, env=_environment(1), capture_output=True, text=True)
            _expect(done.returncode, command, done.stderr)
        else:
            _trl(settings | {"steps": PACE_STEPS}, seed, folder, threads, options.trl_python, keep_weights=False)
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        seconds = {row["step"]: row["seconds"] for row in rows if row["event"] == "step"}
    return {"seconds_a_step": (seconds[PACE_STEPS] - seconds[PACE_SKIPPED]) / (PACE_STEPS - PACE_SKIPPED)}


def plan(options: Options) -> list[Row]:
    """Return the runs of the study in their order, each as the row without its result. Those after
    the tuning need its rows: they are left out while some are missing."""
    rows, tuning, rest = read_rows(), list[Row](), list[Row]()
    missed = [
        (row["who"], row["settings"], row["seed"]) for row in rows if row["part"] == "tune" and not row["arrival"]
    ]
    for seed in TUNING_SEEDS:
        for who in SIDES:
            for settings in TRIED[who]:
                if not any((who, settings, earlier) in missed for earlier in TUNING_SEEDS if earlier < seed):
                    tuning.append({"part": "tune", "who": who, "settings": settings, "seed": seed})
    tuned = {who: all(find(rows, run) for run in tuning if run["who"] == who) for who in SIDES}
    best = {who: best_settings(rows, who) for who in SIDES if tuned[who]}
    rest += [
        {"part": "steps", "who": who, "settings": best[who], "seed": s}
        for s in range(options.seeds)
        for who in SIDES
        if tuned[who]
    ]
    if all(tuned.values()):
        rest += [
            {"part": "pace", "who": who, "settings": best[PACES[who][0]], "seed": s}
            for s in range(options.paces)
            for who in _turned(list(PACES), s)
        ]
    return [
        run
        for run in tuning + rest
        if run["part"] in options.only and (run["part"] == "pace" or run["who"] in options.who)
    ]


def best_settings(rows: list[Row], side: str) -> Settings:
    """Return the settings that missed the fewest tuning seeds, and of these those with the fewest
    steps in the median."""

    def rank(settings: Settings) -> tuple[int, float]:
        runs = [{"part": "tune", "who": side, "settings": settings, "seed": seed} for seed in TUNING_SEEDS]
        arrivals = [row["arrival"] if (row := find(rows, run)) else None for run in runs]
        return arrivals.count(None), median([arrival for arrival in arrivals if arrival] or [math.inf])

    return min(TRIED[side], key=rank)


def find(rows: list[Row], run: Row) -> Row | None:
    """Return the row of ``run`` that has its result, or None."""
    return next((row for row in rows if run.items() <= row.items()), None)


def read_rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def bootstrap(of: Callable[[random.Random], float], draws: int = 10_000) -> tuple[float, float]:
    """Return the middle 95 % of ``of``, which draws its samples anew each time (Efron 1979)."""
    found = sorted(of(random.Random(number)) for number in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


def tabulate(rows: list[Row]) -> list[Report]:
    """Return the tables of arrivals and of ratios, TRL's ÷ ours. Medians over the seeds are drawn
    anew for the intervals: steps seed by seed, seconds run by run, each side for itself."""
    steps = {who: [_steps(row) for row in rows if (row["part"], row["who"]) == ("steps", who)] for who in SIDES}
    paces = {
        who: [row["seconds_a_step"] for row in rows if (row["part"], row["who"]) == ("pace", who)] for who in PACES
    }
    best = min((who for who in PACES if who != "ours" and paces[who]), key=lambda who: median(paces[who]), default=None)
    reports = [
        Report(
            f"Steps to {TARGET:.0%} sampled, difficulty hard",
            ["side", "settings", "median", "each seed"],
            [
                [who, _flags(best_settings(rows, who)), _show(median(found)), ", ".join(map(_show, found))]
                for who, found in steps.items()
                if found
            ],
        )
    ]
    if best and paces["ours"] and all(steps.values()):

        def steps_ratio(draw: random.Random | None) -> float:
            return median(_anew([min(s, MOST_STEPS) for s in steps["trl"]], draw)) / median(_anew(steps["ours"], draw))

        def pace_ratio(draw: random.Random | None) -> float:
            return median(_anew(paces[best], draw)) / median(_anew(paces["ours"], draw))

        lines: dict[str, Callable[[random.Random | None], float]] = {
            "steps": steps_ratio,
            "seconds a step": pace_ratio,
            "time": lambda draw: steps_ratio(draw) * pace_ratio(draw),
        }
        cells = [[name, f"{of(None):.2f}", "{:.2f} – {:.2f}".format(*bootstrap(of))] for name, of in lines.items()]
        notes = [
            f"TRL at its best: {best}. Seconds a step: "
            + "; ".join(f"{w} {median(p):.2f}" for w, p in paces.items())
            + "."
        ]
        reports.append(Report("TRL ÷ ours", ["what", "ratio of medians", "95 %"], cells, notes))
    return reports


def _anew(values: list[float], draw: random.Random | None) -> list[float]:
    return draw.choices(values, k=len(values)) if draw else values


def _steps(row: Row) -> float:
    return math.inf if row["arrival"] is None else row["arrival"]


def _show(steps: float) -> str:
    return f"> {MOST_STEPS}" if steps == math.inf else f"{steps:g}"


def _turned(names: list[str], by: int) -> list[str]:
    return names[by % len(names) :] + names[: by % len(names)]


def _flags(settings: Settings) -> str:
    """Return ``settings`` as they are typed.

    >>> _flags({"learning_rate": 5e-4, "credit": "prefix"})
    '--learning-rate 0.0005 --credit prefix'
    """
    return " ".join(
        f"--{name.replace('_', '-')} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in settings.items()
    )


def _length(settings: Settings) -> int:
    return int(settings.get("steps", MOST_STEPS))


def _ours(settings: Settings, seed: int, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "zorplex_rl", "train", "--task", "compositional", "--difficulty", "hard"]
    command += _flags(settings | {"steps": _length(settings)}).split()
    command += ["--seed", str(seed), "--out", str(folder)]
    # Evaluations before the first and after the last step are those that cannot be left out.
    return [*command, "--eval-every", "1000000", "--eval-tasks", "1"]


def _trl(settings: Settings, seed: int, folder: Path, threads: int, python: str, keep_weights: bool) -> None:
    job: dict[str, Any] = {"folder": str(folder), "seed": seed, "steps": MOST_STEPS, "threads": threads}
    command = [
        python,
        str(REPOSITORY / "benchmarks" / "trl_peer.py"),
        json.dumps(job | {"keep_weights": keep_weights} | settings),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, env=_environment(threads), capture_output=True, text=True)
    _expect(done.returncode, command, done.stderr)


def _environment(threads: int) -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | offline | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(REPOSITORY)}


def _expect(code: int | None, command: list[str], said: str) -> None:
    if code:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {code}:\n{said[-2000:]}")


def main(options: Options) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    while run := next((run for run in plan(options) if not find(read_rows(), run)), None):
        if time.monotonic() - began > 60 * options.minutes:
            break
        measure = measure_pace if run["part"] == "pace" else measure_steps
        result = measure(run["who"], run["settings"], run["seed"], options)
        with ROWS.open("a") as file:
            file.write(json.dumps(run | result | {"machine": describe_machine(), "load": os.getloadavg()[0]}) + "\n")
        print(run, {name: value for name, value in result.items() if name != "accuracy"}, flush=True)
    rows = read_rows()
    whole = Options(seeds=options.seeds, paces=options.paces)
    missing = [run for run in plan(whole) if not find(rows, run)]
    reports = tabulate(rows)
    for report in reports:
        print_report(report)
    if missing:
        print(f"{len(missing)} runs are still to be made, {missing[0]} first")
    elif options.log:
        settings = {"seeds": options.seeds, "paces": options.paces, "eval_tasks": TASKS}
        append_report("benchmarks/time_to_accuracy.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
