"""What does asynchrony buy, and what does it cost: episodes per second and final accuracy of both loops.

    sync           generate, train, generate, train …
    async, lag k   side by side; training data may be k versions old
    in-flight      weights change between two decode steps (--on-update continue)

All contenders run the same command with the same processes: one generator, one trainer, one torch
thread each. Episodes per second are counted from the sixth step to the last, with no evaluation in
between. The accuracy is that of the last weights on held-out tasks, sampled at temperature 1. One
repetition is one seed: it runs all contenders one after another, in a rotating order, and ratios are
taken within it. In the second part a tool call takes ``tool_latency`` seconds on average (log-normal,
coefficient of variation 1.5).

Without ``in-flight``, weights change only while nothing is being sampled, so everything that was
started must end first: at lag 1 one batch at a time. With it, lag k keeps k + 1 batches in flight.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

import tyro
from table import describe_machine, print_table

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

    steps: int = 80
    """Training steps."""
    repeats: int = 5
    """Seeds without tool latency; 0 leaves that part out."""
    latency_repeats: int = 3
    """Seeds with tool latency; 0 leaves that part out."""
    tool_latency: float = 0.05
    """Mean seconds of a tool call in the second part."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: episodes per second, and the accuracy of its last weights, sampled and greedy."""

    rate: float
    sampled: float
    greedy: float


def run(options: Options, flags: tuple[str, ...], seed: int, latency: float) -> Measured:
    """Train once, in new processes. Returns what the metrics say."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        words = f"--seed {seed} --steps {options.steps} --tool-latency {latency} --out {out}"
        words += " --eval-every 1000000 --checkpoint-every 1000000 --eval-tasks 200"
        command = [sys.executable, "-m", "zorplex_rl", "train", *words.split(), *flags]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["event"] == "step"]
    first, last = trained[WARM_UP - 1], trained[-1]
    rate = (last["episodes"] - first["episodes"]) / (last["seconds"] - first["seconds"])
    final = [row for row in rows if row["event"] == "eval"][-1]
    return Measured(rate, final["sampled_accuracy"], final["greedy_accuracy"])


def compare(
    options: Options, contenders: dict[str, tuple[str, ...]], repeats: int, latency: float
) -> None:
    """Run all ``contenders`` with each seed, and print medians and ranges. Rates are also given as
    multiples of sync's with the same seed."""
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    order = list(contenders)
    for seed in range(repeats):
        shift = seed % len(order)
        for name in order[shift:] + order[:shift]:
            found[name].append(run(options, contenders[name], seed, latency))
            print(
                f"seed {seed}, {name}: {found[name][-1].rate:.0f} episodes/s",
                file=sys.stderr,
                flush=True,
            )
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
    title = f"Tool latency {latency:g} s, {options.steps} steps, {repeats} seeds"
    columns = ["contender", "episodes/s", "× sync", "range", "sampled accuracy", "greedy"]
    print_table(title, columns, rows, "Accuracy: mean and standard deviation over the seeds.")


def main(options: Options) -> None:
    print(describe_machine())
    if options.repeats:
        compare(options, CONTENDERS, options.repeats, 0.0)
    if options.latency_repeats:
        compare(options, WITH_SLOW_TOOLS, options.latency_repeats, options.tool_latency)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
