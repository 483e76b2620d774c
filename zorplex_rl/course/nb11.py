"""Drive notebook 11, the laboratory: runs that fail, a run to replay, what the recorded study says.

train                 a run that fails, or its control ──► a line of a live curve
make_run              a run to replay
said                  the run executed as it was and changed ──► the paired difference
worth                 recorded runs ──► what advice was worth in them
"""

import asyncio
import math
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from zorplex_rl.course import nb08, nb09
from zorplex_rl.course.figures.tokens import Written
from zorplex_rl.course.figures.two_runs import two_runs, why_parted
from zorplex_rl.course.kept_file import kept
from zorplex_rl.course.recorded_study import Study
from zorplex_rl.course.staleness import Conditions
from zorplex_rl.course.widgets import LiveCurve
from zorplex_rl.learning.batches import MicroBatch
from zorplex_rl.policy.load import Policy
from zorplex_rl.simulation.what_if import PairedRuns
from zorplex_rl.training.controller import Controller


def train(
    run: SimpleNamespace,
    name: str,
    curve: LiveCurve,
    conditions: Conditions,
    config: SimpleNamespace,
    one_more: Callable[[], None],
) -> tuple[float, Written, list[MicroBatch]]:
    """Train ``run`` (its loss, lag, rate and faults), draw the line ``name`` and count the steps. Returns the
    accuracy at the end, what the policy then writes, and the first batch."""
    first: list[MicroBatch] = []

    def watch(step: int, policy: Policy, batches: list[MicroBatch]) -> None:
        if step == 0:
            first.extend(batches)

    at_rate = replace(conditions, learning_rate=run.rate)
    end = nb09.curve_of(
        name, run.loss, run.lag, curve, at_rate, config, one_more, watch, run.faults
    )
    return *end, first


def folder_of(notebook: str) -> Path | None:
    """Return the folder of the reader's run of notebook 08, or None if there is none."""
    own = kept(notebook, nb08.KEPT)
    return own if (own / "journal.jsonl").is_file() else None


async def make_run(config: SimpleNamespace) -> Path:
    """Train with two generators, of which one is killed half way. Returns the run's folder."""

    async def kill(controller: Controller) -> None:
        while controller.progress.step < config.steps // 2:
            await asyncio.sleep(0.03)
        os.kill(controller.roles.services["generator"].router.ready[0].pid, signal.SIGKILL)

    run = nb08.run_config(config, generators=2, spares=1)
    folder = nb08.create(run)
    with nb08.quietly():
        await nb08.train_and_kill(run, folder, kill)
    return folder.path


def said(found: PairedRuns) -> SimpleNamespace:
    """Return the paired difference at the end: in words, as 0 (lower), 1 (no clear
    difference) or 2 (higher), and all drawn."""
    measure = "sampled, at the end"
    (before, after), (mean, interval) = found.means(measure), found.difference(measure)
    low, high = interval or (-math.inf, math.inf)
    words = f"it has {before:.0%} as it was and {after:.0%} changed, a difference of {100 * mean:+.0f} points"
    words += f", 95 % interval {100 * low:+.0f} to {100 * high:+.0f}" if interval else ""
    way = 0 if high < 0 else 2 if low > 0 else 1
    return SimpleNamespace(words=words, way=way, drawn=two_runs(found, why_parted(found.pairs[0])))


def worth(study: Study, advise: Callable[..., str]) -> list[dict[str, Any]]:
    """Return a row for each advice on the recorded runs, whose engines agree: how many got it, how they ended,
    and how runs of the same seed ended that took it, that were clipped instead, or that got both cures."""
    runs = {row.key: row for row in study.rows}
    rates = sorted({row.learning_rate for row in study.rows})
    columns = ("as they ended", "with the advice", "clipped instead", "both cures")
    told: dict[str, list[tuple[float, ...]]] = {}
    for (loss, lag, rate, seed), row in runs.items():
        advice = advise(row.accuracies, runs[loss, 0, rate, seed].accuracies, 0.0)
        lower = rates[max(rates.index(rate) - 1, 0)]
        taken = {"clip": ("grpo", lag, rate, seed), "lower the rate": (loss, lag, lower, seed)}
        cures = taken.get(advice, row.key), ("grpo", lag, rate, seed), ("grpo", lag, lower, seed)
        ends = row.accuracy, *(runs[key].accuracy for key in cures)
        told.setdefault(advice, []).append(ends)
    rows = []
    for advice, found in sorted(told.items(), key=lambda pair: len(pair[1])):
        means = [f"{fmean(ends):.0%}" for ends in zip(*found, strict=True)]
        named = dict(zip(columns, means, strict=True))
        rows.append({"advice": advice, "runs": len(found)} | named)
    return rows


def draw_run(draw: random.Random) -> tuple[list[float], list[float], float]:
    """Draw the arguments of ``advise``: runs that fall, that never rise, and that end well; few and many
    tokens that are far off."""

    def run() -> list[float]:
        path = [1.0, *(draw.uniform(0.3, 0.9) for _ in range(draw.randint(0, 2)))]
        draw.shuffle(path)
        path.append(draw.choice((0.2, 0.45, 0.55, 0.9)))
        best = draw.choice((0.3, 0.5, 0.8, 0.95))
        return [round(best * share, 2) for share in path]

    return run(), run(), draw.choice((0.0, 0.005, 0.02, 0.3))
