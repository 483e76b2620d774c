"""Measure what asynchrony buys and costs: episodes per second and final accuracy of ``train_sync``
and ``train_async``.

    sync           generate, train, generate, train …
    async, lag k   side by side; training data may be k versions old; "in-flight": weights change between two decode steps (--on-update continue)

All contenders run the same command with the same processes: one generator, one trainer, one torch
thread each. Episodes per second are counted from the sixth step, when everything is warm, to the
last, with no evaluation in between. The accuracy is that of the last weights on held-out tasks,
sampled at temperature 1. One repetition is one seed: it runs all contenders one after another, in a
rotating order, and ratios are taken within it. There is a further part for each of
``--tool-latencies``, in which a tool call takes that long on average (log-normal, coefficient of
variation 1.5).

Without ``in-flight``, weights change only while nothing is being sampled, so everything that was
started must end first: at lag 1 one batch at a time. With it, lag k keeps k + 1 batches in flight.
If the tools are slow enough, that gives k + 1 times the speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev

import tyro
from log import Report, append_report, print_report
from rich.progress import Progress

ASKED = (
    "How many more episodes per second does asynchronous training process than synchronous training, without and with slow tools? "
    "Does the accuracy suffer?"
)
EXPECTED = "At least 1.5 times without tool latency and at least 2 times with it. The accuracy at lag 1 and lag 4 within the noise of the seeds."
WARM_UP = 5
CONTENDERS = {
    "sync": ("--max-lag", "0"),
    "async, lag 1": ("--max-lag", "1"),
    "async, lag 4": ("--max-lag", "4"),
}
WITH_SLOW_TOOLS = CONTENDERS | {
    "async, lag 1, in-flight": ("--max-lag", "1", "--on-update", "continue"),
    "async, lag 4, in-flight": ("--max-lag", "4", "--on-update", "continue"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    task: str = "compositional"
    """The task to train on."""
    repeats: int = 5
    """Seeds without tool latency; 0 skips that part."""
    steps: int = 80
    """Training steps without tool latency."""
    tool_latencies: tuple[float, ...] = (0.05,)
    """Mean seconds of a tool call; there is a further part for each."""
    latency_repeats: int = 3
    """Seeds of those parts."""
    latency_steps: int = 80
    """Training steps of those parts."""
    eval_tasks: int = 200
    """Held-out tasks in the last evaluation."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold one run: episodes per second, and the accuracy of its last weights, sampled and
    greedy."""

    rate: float
    sampled: float
    greedy: float


def run(options: Options, flags: tuple[str, ...], seed: int, steps: int, latency: float) -> Measured:
    """Train once, in new processes. Returns the result, read from the metrics."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        command = [sys.executable, "-m", "zorplex_rl", "train", "--task", options.task, *flags, "--out", str(out)]
        command += ["--seed", str(seed), "--steps", str(steps), "--tool-latency", str(latency)]
        command += ["--eval-every", "1000000", "--checkpoint-every", "1000000", "--eval-tasks", str(options.eval_tasks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[2:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["event"] == "step"]
    first, last = trained[WARM_UP - 1], trained[-1]
    rate = (last["episodes"] - first["episodes"]) / (last["seconds"] - first["seconds"])
    final = next(row for row in rows if row["event"] == "eval" and row["final"])
    return Measured(rate, final["sampled_accuracy"], final["greedy_accuracy"])


def measure(options: Options, repeats: int, steps: int, latency: float) -> dict[str, list[Measured]]:
    """Run all contenders ``repeats`` times. Returns the runs."""
    contenders = WITH_SLOW_TOOLS if latency else CONTENDERS
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    order = list(contenders)
    with Progress(transient=True) as progress:
        bar = progress.add_task(f"tool latency {latency:g} s", total=repeats * len(order))
        for seed in range(repeats):
            shift = seed % len(order)
            for name in order[shift:] + order[:shift]:
                found[name].append(run(options, contenders[name], seed, steps, latency))
                progress.advance(bar)
    return found


def tabulate(title: str, found: dict[str, list[Measured]]) -> Report:
    """Return the table: medians and spreads over the seeds. Rates are also given as multiples of
    sync's rate with the same seed."""
    rows = []
    for name, runs in found.items():
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(runs, found["sync"], strict=True)]
        spread = f" ± {stdev(r.sampled for r in runs):.3f}" if len(runs) > 1 else ""
        rows.append(
            [
                name,
                f"{median(r.rate for r in runs):.0f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f} – {max(ratios):.2f}",
                f"{mean(r.sampled for r in runs):.3f}{spread}",
                f"{mean(r.greedy for r in runs):.3f}",
            ]
        )
    columns = ["contender", "episodes/s", "× sync", "range", "sampled accuracy", "greedy"]
    return Report(title, columns, rows, ["Accuracy: mean and standard deviation over the seeds."])


def main(options: Options) -> None:
    parts = [(options.repeats, options.steps, 0.0)]
    parts += [(options.latency_repeats, options.latency_steps, latency) for latency in options.tool_latencies]
    reports = []
    for repeats, steps, latency in parts:
        if not repeats:
            continue
        title = f"{options.task}, tool latency {latency:g} s, {steps} steps, {repeats} seeds"
        reports.append(tabulate(title, measure(options, repeats, steps, latency)))
        print_report(reports[-1])
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/async_vs_sync.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
