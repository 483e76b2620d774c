"""Drive notebook 11, the laboratory: a run to replay, draws for its checks, what the study says.

make_run, card_of     a run to replay; what its policy writes after each step
said                  the run executed as it was and changed ──► the paired difference
worth, by_lag         recorded runs ──► what advice was worth in them, how each loss ended
foretold              recorded runs ──► what the forecast said of them, and what came, drawn
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zorplex_rl.course import nb08
from zorplex_rl.course.alarm import BEARABLE, RATE, alike
from zorplex_rl.course.figures.two_runs import two_runs, why_parted
from zorplex_rl.course.kept_file import kept
from zorplex_rl.course.nb05b import Card, example
from zorplex_rl.course.recorded_study import Row, Study
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.requests import Sampling
from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render
from zorplex_rl.simulation.what_if import PairedRuns, RecordedRun
from zorplex_rl.training.controller import Controller

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def card_of(recording: RecordedRun) -> Card:
    """Return a card of the course's question and two held-out ones, as the run's policy answers them at first."""
    environment, sampling = recording.source.make(), Sampling.of(recording.config)
    tasks = [environment.task(index, "held_out") for index in (1, 2)]
    shown = [
        example(recording.policy, sampling),
        *play(recording.policy, environment, tasks, 1, sampling),
    ]
    return Card(
        "Three questions to the run's policy",
        recording.policy,
        len(recording.batches),
        sampling,
        shown,
    )


def said(found: PairedRuns) -> SimpleNamespace:
    """Return the paired difference over all evaluations: in words, as 0 (lower), 1 (no clear
    difference) or 2 (higher), why the first pair parts, and all drawn."""
    measure = "sampled, mean of all evaluations"
    (before, after), (mean, interval) = found.means(measure), found.difference(measure)
    low, high = interval or (-math.inf, math.inf)
    words = (
        f"{before:.0%} as it was and {after:.0%} changed, a difference of {100 * mean:+.0f} points"
    )
    words += f", 95 % interval {100 * low:+.0f} to {100 * high:+.0f}" if interval else ""
    why = why_parted(found.pairs[0])
    way = 0 if high < 0 else 2 if low > 0 else 1
    return SimpleNamespace(words=words, way=way, why=why, drawn=two_runs(found, why))


def worth(
    study: Study, advise: Callable[..., str], numerics: Sequence[float]
) -> list[dict[str, Any]]:
    """Return a row for each advice on the recorded runs: how many got it, and what runs of the same
    seed came to that took it."""
    runs = {row.key: row for row in study.rows}
    rates = sorted({row.learning_rate for row in study.rows})
    found: dict[str, list[tuple[Row, Row]]] = {}
    for (loss, lag, rate, seed), row in runs.items():
        advice = advise(row.accuracies, runs[loss, 0, rate, seed].accuracies, list(numerics))
        lower = rates[max(rates.index(rate) - 1, 0)]
        taken = {"lower the rate": (loss, lag, lower, seed), "clip": ("grpo", lag, rate, seed)}
        found.setdefault(advice, []).append((row, runs[taken.get(advice, row.key)]))
    return [
        {
            "advice": advice,
            "recorded runs": len(pairs),
            "accuracy at the end": f"{fmean(row.accuracy for row, _ in pairs):.0%}",
            "with the advice": f"{fmean(other.accuracy for _, other in pairs):.0%}",
            "better with it": sum(other.accuracy > row.accuracy for row, other in pairs),
        }
        for advice, pairs in sorted(found.items(), key=lambda item: len(item[1]))
    ]


def by_lag(study: Study, rate: float, lags: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each loss that has all ``lags``: its mean accuracy at the end of each, and how
    many runs at these lags collapsed. The best at the last lag comes first."""
    cells = {(cell.loss, cell.lag): cell for cell in study.cells() if cell.learning_rate == rate}
    found = []
    for loss in {loss for loss, lag in cells if lag == lags[-1]}:
        own = [cells[loss, lag] for lag in lags if (loss, lag) in cells]
        fell = [row.collapsed_at is not None for cell in own for row in cell.rows]
        row = {"loss": f"`{loss}`"} | {f"lag {cell.lag}": f"{cell.accuracy:.0%}" for cell in own}
        if len(own) == len(lags):
            found.append((-own[-1].accuracy, row | {"collapsed": f"{sum(fell)} of {len(fell)}"}))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def foretold(rows: Sequence[Row]) -> str:
    """Draw what came of ``rows``, recorded runs with stale data: a column for each forecast, a row
    for each kind of loss with its bound."""
    bounds = sorted(set(BEARABLE.values()))
    came = {"healthy": style.BLUE, "dipped": style.ORANGE, "collapsed": style.VERMILION}
    columns: dict[tuple[int, float], Counter[str]] = {}
    for run in rows:
        row = bounds.index(BEARABLE[run.loss]) if run.loss in BEARABLE else len(bounds)
        ending = "collapsed" if run.collapsed_at else "healthy" if run.is_healthy else "dipped"
        columns.setdefault((row, alike(run.lag, run.learning_rate)), Counter())[ending] += 1

    def draw(figure: Figure) -> None:
        axes, (first, *_) = figure.subplots(), columns
        for (row, lag), counts in columns.items():
            bottom = row + 0.4
            for ending, colour in came.items():
                height = -0.66 * counts[ending] / counts.total()
                named = ending if (row, lag) == first else None
                axes.bar(lag, height, 0.13 * lag, bottom, color=colour, label=named)
                bottom += height
        for row, bound in enumerate(bounds):
            axes.plot([bound, bound], [row - 0.55, row + 0.42], color=style.TEXT, linewidth=2)
            axes.text(bound, row - 0.27, f" {bound:g}", ha="left", va="bottom")
        marks = (0.1, 0.3, 1, 3, 10, 30, 100)
        axes.set_xscale("log")
        axes.set(
            xticks=marks,
            xticklabels=marks,
            xlabel=f"forecast: as bad as this lag at a rate of {RATE:g}",
        )
        style.name_rows(
            axes, ["plain", "masks\ntokens", "weights\ntokens", "also limits\nthe move", "clips"]
        )
        style.bare_axes(axes, grid="x")
        axes.minorticks_off()
        figure.legend(loc="outside upper left", ncols=3, frameon=False)

    said = "; ".join(
        f"{sum(counts[ending] for counts in columns.values())} {ending}" for ending in came
    )
    return render(draw, 340, "What was foretold of recorded runs, and what came", said)


def draw_run(draw: random.Random) -> tuple[list[float], list[float], list[float]]:
    """Draw the arguments of ``advise``: runs that fall, that never rise, and that end well; ratios
    near and far."""

    def run() -> list[float]:
        path = [draw.uniform(0.3, 0.9) for _ in range(draw.randint(2, 5))]
        path[draw.randrange(len(path))], best = 1.0, draw.choice((0.3, 0.5, 0.8, 0.95))
        return [round(best * share, 3) for share in (*path, draw.choice((0.2, 0.45, 0.55, 0.9)))]

    far = draw.choice((0, 1, 2, 3, 6))
    logs = [draw.choice((-1, 1)) * draw.uniform(0.3, 3.0) for _ in range(far)]
    logs += [draw.choice((-0.21, 0.17, 0.0)) for _ in range(200 - far)]
    return run(), run(), draw.sample(logs, 200)


def draw_settings(draw: random.Random) -> tuple[int, float, float]:
    """Draw the arguments of ``forecast``: a lag, a rate, and the rate to compare with."""
    rates = (1e-4, 2e-4, 3e-4, 4e-4, 8e-4)
    return draw.randint(0, 40), draw.choice(rates), draw.choice(rates)


def draw_alarms(draw: random.Random) -> tuple[list[tuple[int | None, int | None]], int]:
    """Draw the arguments of ``judge``: alarms in time, late and missing, in both kinds of run; some
    at step 0, and some exactly ``ahead`` steps early."""
    ahead = draw.randint(1, 12)
    runs: list[tuple[int | None, int | None]] = []
    for _ in range(draw.randint(4, 14)):
        rang = draw.choice((None, 0, draw.randint(1, 30)))
        early = draw.choice((ahead - 1, ahead, ahead + draw.randint(1, 20), -3))
        runs.append((rang, draw.choice((None, max(0, (rang or 5) + early)))))
    return runs, ahead
