"""Decide the laboratory's questions as far as its trials go, by the rules of ``VERDICTS.md``.

    python benchmarks/verdicts.py         print the tables and verdicts, and append them to the log

The alarm is judged by ``alarms.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import tyro
from laboratory import BFLOAT16, BLOCKS, CONTROLLED, EASY, FORETOLD, HARD, LIVE, LIVE_16, LIVE_20, left_out
from log import Report, append_report, print_report
from staleness import tabulate

from zorplex_rl.course.recorded_study import Row, Study, read_study
from zorplex_rl.simulation.what_if import paired_interval

ASKED = (
    "What do lag and loss cost; does CISPO collapse; does IcePop mask fewer tokens as the gap grows; "
    "does the live setting show on five fresh seeds what it should; what do --ess-control and a sampler in bfloat16 change?"
)
EXPECTED = "No numbers were set. The rules of VERDICTS.md were committed before the first trial."
SEEDS, RATE, MARGIN = 5, 4e-4, -0.05
MASKED = ("masked_fraction_low", "masked_fraction_high")


def cell(study: Study, loss: str, lag: int, rate: float = RATE) -> dict[int, Row]:
    """Return the trials of a cell by seed."""
    return {row.seed: row for row in study.rows if row.key[:3] == (loss, lag, rate)}


def collapses(rows: Iterable[Row]) -> int:
    """Count the trials that collapsed."""
    return sum(row.collapsed_at is not None for row in rows)


def cispo_verdict(study: Study, lag: int) -> tuple[list[str], str]:
    """Return a table's row, and the verdict on CISPO at ``lag``."""
    cispo, dppo, fresh = cell(study, "cispo", lag), cell(study, "dppo", lag), cell(study, "cispo", 0)
    seeds = sorted(cispo.keys() & dppo.keys() & fresh.keys())
    gaps = [cispo[seed].accuracy - dppo[seed].accuracy for seed in seeds]
    interval = paired_interval(gaps)
    counts = [collapses(rows.values()) for rows in (cispo, dppo, fresh)]
    sizes = [len(rows) for rows in (cispo, dppo, fresh)]
    table = [str(lag), *(f"{count} of {size}" for count, size in zip(counts, sizes, strict=True))]
    table += [
        f"{fmean(gaps):+.2f}" if gaps else "",
        "" if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}",
    ]
    if len(seeds) < SEEDS or interval is None:
        return table, f"undecided yet: {len(seeds)} of {SEEDS} seeds"
    falls, dppo_falls, fresh_falls = counts
    if falls >= 3 and fresh_falls <= 1 and dppo_falls <= 1 and interval[1] < 0:
        return table, "it collapses at this lag"
    if falls <= 1 and interval[0] > MARGIN:
        return table, "its choice holds at this lag"
    conditions = {
        f"{falls} of {SEEDS} seeds collapse": 1 < falls < 3,
        f"{fresh_falls} of {SEEDS} collapse on fresh data too": falls >= 3 and fresh_falls > 1,
        f"DPPO collapses as well, on {dppo_falls} of {SEEDS}": falls >= 3 and dppo_falls > 1,
        "the interval of the difference reaches 0": falls >= 3 and interval[1] >= 0,
        "the interval of the difference reaches below −0.05": falls <= 1,
    }
    return table, "undecided: " + "; ".join(what for what, failed in conditions.items() if failed)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank. NaN if one of the two
    never varies.

    >>> rank_correlation([1, 2, 3], [10, 20, 15]), rank_correlation([1, 2, 3, 4], [4, 3, 2, 1])
    (0.5, -1.0)
    """
    ranks = [_ranks(values) for values in (one, other)]
    a, b = ([rank - fmean(found) for rank in found] for found in ranks)
    spread = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / spread if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def masked(row: Row) -> list[float]:
    """Return the share of tokens that the loss masked, in each step's first update."""
    return [sum(step[name] for name in MASKED) for step in row.diagnostics]


def icepop_verdict(study: Study) -> tuple[list[list[str]], str]:
    """Return a table's rows, one for each recorded lag, and the verdict on IcePop."""
    table, found = [], []
    for lag in sorted({row.lag for row in study.rows if row.loss == "icepop" and row.learning_rate == RATE}):
        rows = list(cell(study, "icepop", lag).values())
        gaps = [row.series["second_moment"] for row in rows]
        shares = [masked(row) for row in rows]
        own = [rank_correlation(gap, share) for gap, share in zip(gaps, shares, strict=True)] if lag else []
        found += own if lag in (8, 32) else []
        means = [f"{fmean(map(fmean, gaps)):.2g}", f"{fmean(map(fmean, shares)):.2%}"]
        spread = f"{fmean(own):+.2f} ({min(own):+.2f} to {max(own):+.2f})" if own else ""
        table.append([str(lag), str(len(rows)), *means, spread])
    interval = paired_interval(found)
    if len(found) < 2 * SEEDS or interval is None:
        return table, f"undecided yet: {len(found)} of {2 * SEEDS} trials"
    said = f"mean correlation {fmean(found):+.2f}, {interval[0]:+.2f} to {interval[1]:+.2f}"
    return table, f"{'fewer' if interval[1] < 0 else 'more' if interval[0] > 0 else 'undecided'}: {said}"


def live_verdict(study: Study, lag: int, rate: float = RATE, saving: str = "grpo") -> tuple[list[list[str]], str]:
    """Return a table's rows, one for each seed, and whether the live setting is confirmed."""
    fresh, stale = cell(study, "reinforce", 0, rate), cell(study, "reinforce", lag, rate)
    saved_by = cell(study, saving, lag, rate)
    seeds = sorted(fresh.keys() & stale.keys() & saved_by.keys())
    others = sorted({row.loss for row in study.rows} - {"reinforce", saving})
    last = study.conditions["steps"]
    table, works = [], dict.fromkeys((15, 18) if last == 18 else (last,), True)
    for seed in seeds:
        runs = [fresh[seed], stale[seed], saved_by[seed]]
        at = {
            step: [row.accuracy if step == last else row.accuracies[row.eval_steps.index(step)] for row in runs]
            for step in works
        }
        for step, (good, bad, saved) in at.items():
            works[step] &= bad < good / 2 and good >= 0.75 and saved > good * 2 / 3
        more = [cell(study, loss, lag, rate)[seed].accuracy for loss in others if seed in cell(study, loss, lag, rate)]
        shown = [" → ".join(f"{value:.2f}" for value in values) for values in zip(*at.values(), strict=True)]
        table.append([str(seed), *shown, *(f"{value:.2f}" for value in more)])
    if len(seeds) < SEEDS:
        return table, f"undecided yet: {len(seeds)} of {SEEDS} seeds"
    good = [f"after {step} steps" for step, held in works.items() if held]
    return (
        table,
        f"confirmed {' and '.join(good)}" if good else "not confirmed: no number of steps does it on all five seeds",
    )


def paired_table(fixed: Study, changed: Study) -> list[list[str]]:
    """Return a row for each loss and lag of ``changed``: seeds that both have, accuracies, their
    difference by seed with its interval, collapses, and the mean factor of the rate if there is."""
    table = []
    for loss, lag in sorted({(row.loss, row.lag) for row in changed.rows}):
        with_it, without = cell(changed, loss, lag), cell(fixed, loss, lag)
        seeds = sorted(with_it.keys() & without.keys())
        if not seeds:
            continue
        gaps = [with_it[seed].accuracy - without[seed].accuracy for seed in seeds]
        interval = paired_interval(gaps)
        both = [f"{fmean(rows[seed].accuracy for seed in seeds):.2f}" for rows in (without, with_it)]
        fallen = [f"{collapses(rows[seed] for seed in seeds)} of {len(seeds)}" for rows in (without, with_it)]
        factors = [with_it[seed].series.get("learning_rate_factor") for seed in seeds]
        factor = [f"{fmean(fmean(of_trial) for of_trial in factors if of_trial):.2f}"] if all(factors) else []
        shown = "" if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"
        table.append([loss, str(lag), str(len(seeds)), *both, f"{fmean(gaps):+.2f}", shown, *fallen, *factor])
    return table


def reports() -> list[Report]:
    """Return all tables, each with its verdict as a note."""
    easy, found = read_study(EASY.out), []
    for options in (EASY, FORETOLD, HARD):
        if options.out.exists():
            for report in tabulate(read_study(options.out), 1):
                title = f"{options.out.name}, {report.title[0].lower()}{report.title[1:]}: accuracy at the end, mean (lowest – highest seed)"
                found.append(Report(title, report.columns, report.rows))
    disputed = [cispo_verdict(easy, lag) for lag in (8, 32)]
    found.append(
        Report(
            "Dispute 1: does CISPO collapse? Easy, 4e-4",
            ["lag", "CISPO collapsed", "DPPO collapsed", "CISPO at lag 0", "CISPO − DPPO", "95 %"],
            [table for table, _ in disputed],
            [f"Lag {table[0]}: {verdict}." for table, verdict in disputed],
        )
    )
    table, verdict = icepop_verdict(easy)
    columns = ["lag", "trials", "gap: mean (log r)²", "masked", "rank correlation over a trial's steps"]
    found.append(
        Report("Dispute 2: does IcePop mask fewer tokens as the gap grows? Easy, 4e-4", columns, table, [f"{verdict}."])
    )
    for options, saving in ((LIVE, "grpo"), (LIVE_16, "grpo"), (LIVE_20, "dppo")):
        if options.out.exists():
            live, (lag,), (rate,) = read_study(options.out), options.lags, options.learning_rates
            table, verdict = live_verdict(live, lag, rate, saving)
            others = sorted({row.loss for row in live.rows} - {"reinforce", saving})
            columns = ["seed", "reinforce, lag 0", f"reinforce, lag {lag}", f"{saving}, lag {lag}", *others]
            when = "15 steps (40 tasks) → 18 steps" if options.steps == 18 else f"{options.steps} steps"
            title = f"The live setting at {rate:g}, lag {lag}: accuracy after {when} (200 tasks)"
            found.append(Report(title, columns, table, [f"{verdict}."]))
    for options, title, name, more in (
        (CONTROLLED, "--ess-control at equal steps: easy, 4e-4", "controlled", ["mean factor"]),
        (BFLOAT16, "Fresh data, sampled in bfloat16: easy, 4e-4", "bfloat16", []),
    ):
        if options.out.exists() and (table := paired_table(easy, read_study(options.out))):
            columns = [
                "loss",
                "lag",
                "seeds",
                "as it was",
                name,
                "difference",
                "95 %",
                "collapsed as it was",
                f"collapsed, {name}",
            ]
            found.append(Report(title, [*columns, *more], table))
    return found


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with the tables."""

    log: bool = True
    """Append them to LOG.md."""


def main(options: Options) -> None:
    """Decide what can be decided by now."""
    found = reports()
    for report in found:
        print_report(report)
    left = len(left_out())
    trials = sum(len(read_study(file).rows) for file in {block.out for block in BLOCKS} if file.exists())
    print(f"{trials} trials are recorded, {left} are missing.")
    if options.log:
        append_report("benchmarks/verdicts.py", ASKED, EXPECTED, {"trials": trials, "missing": left}, found)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
