"""Judge diagnostics as predictors of a collapse, on the trials of the laboratory, by the rule of
``VERDICTS.md``.

    python benchmarks/alarms.py           print the tables, and append them to the log

    trials of even seeds ──► for each diagnostic and form the bound with the most hits ──► the alarm by the rule
    trials of odd seeds  ──► what that alarm would have done
    foretold.jsonl       ──► what the alarm of a run, with its forecast, does on trials that chose nothing of it

By the rule a hit rings at least 10 steps before the collapse; the diagnostic in the alarm of a run
is chosen among those that ring before it at all, in one of 60 healthy trials at most. The forms and
their smoothing, and the forecast, are those of ``zorplex_rl/learning/alarm.py``, which a run uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from statistics import median

import numpy as np
import tyro
from laboratory import EASY, FORETOLD, HARD
from log import Report, append_report, print_report

from zorplex_rl.config import LearnerConfig
from zorplex_rl.course.recorded_study import Row, read_study
from zorplex_rl.learning.alarm import LIMITS, Alarm, Form, Limit, Smoothed, value_of

ASKED = "Which diagnostics announce a collapse at least 10 steps before the accuracy halves, and how often do they ring in healthy trials?"
EXPECTED = "The target: at least 9 of 10 collapses hit and at most 1 of 20 healthy trials alarmed, on the seeds that it was not chosen on."
AHEAD, AT_ALL, MOST_FALSE, LATE = 10, 1, 1 / 20, 20
A_THIRD = MOST_FALSE / 3
"""Of the false alarms, for the diagnostic: the alarm of a run had three parts when it was chosen."""
SOONEST = 2
"""The first step that has seen stale data."""
CHOSE = 9
"""The last seed of ``foretold.jsonl`` whose trials were seen when the forecast was chosen, and so are
not reported."""
SEEN = {EASY.out: 310, HARD.out: 75}
"""How many trials of the grid were seen, too. Files grow at their ends."""
CANDIDATES: dict[str, tuple[str, ...]] = {
    "sample size, tokens": ("effective_sample_size",),
    "sample size, episodes": ("episode_sample_size",),
    "second moment of log r": ("second_moment",),
    "share left out": (
        "clip_fraction_low",
        "clip_fraction_high",
        "masked_fraction_low",
        "masked_fraction_high",
        "truncated_fraction",
    ),
    "entropy": ("entropy",),
    "gradient norm": ("grad_norm",),
    "length": ("response_tokens",),
    "format rate": ("format_rate",),
    "KL to behaviour": ("mismatch_kl",),
    "reward": ("reward",),
}
COLUMNS = (f"{AHEAD} steps before", "before at all", "median lead", "false alarms", "dipped")
FORMS: tuple[tuple[Form, bool], ...] = (("level", True), ("level", False), ("fall", False), ("rise", True))
"""Forms, each with whether values above its bound ring."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What an alarm did in some trials. ``leads`` are the steps from its ringing to each collapse
    that it rang before."""

    collapses: int
    leads: tuple[int, ...]
    healthy: int
    false_alarms: int
    dipped: int
    dipped_alarmed: int
    ahead: int = AHEAD

    @property
    def hits(self) -> int:
        """The collapses that it announced early enough."""
        return sum(lead >= self.ahead for lead in self.leads)

    @property
    def is_quiet(self) -> bool:
        """Whether it rang in few enough healthy trials."""
        return self.false_alarms <= MOST_FALSE * self.healthy

    @property
    def cells(self) -> list[str]:
        """Hits, collapses announced at all, median lead, false alarms, dipped trials alarmed."""
        lead = f"{median(self.leads):g}" if self.leads else "–"
        return [
            f"{sum(lead >= AHEAD for lead in self.leads)} of {self.collapses}",
            f"{len(self.leads)} of {self.collapses}",
            lead,
            f"{self.false_alarms} of {self.healthy}",
            f"{self.dipped_alarmed} of {self.dipped}",
        ]


def readings(row: Row, names: Sequence[str], form: Form) -> list[float]:
    """Return the smoothed diagnostic of each step; nothing if the trial's loss has none of these."""
    smoothed, found = Smoothed(), []
    for metrics in row.diagnostics:
        if (value := value_of(names, metrics)) is not None:
            smoothed.note(value)
            found.append(smoothed.read(form))
    return found


def rings_at(values: Iterable[float], limit: Limit) -> int | None:
    """Return the first step whose value crosses ``limit``, or None.

    >>> rings_at([1.0, 0.5, 0.3], Limit(("entropy",), "level", bound=0.4, above=False))
    3
    """
    return next((step for step, value in enumerate(values, start=1) if limit.is_crossed(value)), None)


def judge(trials: Iterable[tuple[Row, int | None]], after: int = 0, ahead: int = AHEAD) -> Judged:
    """Count what an alarm did that rang in each trial at the step beside it, or not. Collapses at
    step ``after`` and before are left out; a hit is at least ``ahead`` steps before the collapse."""
    fallen, healthy, dipped = [], [], []
    for row, rang in trials:
        if (collapse := row.collapsed_at) is None:
            (healthy if row.is_healthy else dipped).append(rang is not None)
        elif collapse > after:
            fallen.append(None if rang is None or rang >= collapse else collapse - rang)
    leads = tuple(lead for lead in fallen if lead is not None)
    return Judged(len(fallen), leads, len(healthy), sum(healthy), len(dipped), sum(dipped), ahead)


def apply(rows: Iterable[Row], limits: Sequence[Limit]) -> list[tuple[Row, int | None]]:
    """Return each trial with the step at which the first of ``limits`` rings in it, or None."""
    found = []
    for row in rows:
        rang = [rings_at(readings(row, limit.names, limit.form), limit) for limit in limits]
        found.append((row, min((step for step in rang if step is not None), default=None)))
    return found


def best_limit(
    rows: Sequence[Row],
    names: tuple[str, ...],
    form: Form,
    above: bool,
    ahead: int = AHEAD,
    most_false: float = MOST_FALSE,
) -> tuple[Limit, Judged] | None:
    """Return the bound with the most hits among those that are quiet in healthy trials; of equals
    that with the longer median lead, then the one that is harder to cross. None if all are loud or
    never ring in time."""
    sign = 1 if above else -1
    # The highest so far, of each trial's steps: it crosses a bound when the readings first do.
    series = [
        list(accumulate((-math.inf if math.isnan(v) else sign * v for v in readings(row, names, form)), max))
        for row in rows
    ]
    values = np.array(sorted({value for found in series for value in found if math.isfinite(value)}))
    if len(values) < 2:
        return None
    low, middle = values[:-1], (values[:-1] + values[1:]) / 2
    rounded = np.array([float(f"{value:.3g}") for value in middle])
    bounds = np.where((low <= rounded) & (rounded < values[1:]), rounded, middle)
    # By trial and bound: the step that rings, after the trial's last if none does.
    rang = np.array([1 + np.searchsorted(found, bounds, side="right") for found in series])
    fell = np.array([math.inf if row.collapsed_at is None else row.collapsed_at for row in rows])[:, None]
    silent = rang > np.array([len(found) for found in series])[:, None]
    hits = ((fell < math.inf) & ~silent & (fell - rang >= ahead)).sum(axis=0)
    healthy = np.array([row.is_healthy for row in rows])
    hits[(~silent[healthy]).sum(axis=0) > most_false * healthy.sum()] = 0
    if not hits.any():
        return None

    def lead_at(index: int) -> float:
        lead = (fell[:, 0] - rang[:, index])[(fell[:, 0] < math.inf) & ~silent[:, index]]
        return float(np.median(lead[lead > 0]))

    best = max(np.flatnonzero(hits == hits.max()), key=lambda index: (lead_at(index), bounds[index]))
    steps = [None if none else int(step) for step, none in zip(rang[:, best], silent[:, best], strict=True)]
    return Limit(names, form, sign * float(bounds[best]), above), judge(zip(rows, steps, strict=True), ahead=ahead)


def best_limits(
    rows: Sequence[Row], ahead: int = AHEAD, most_false: float = MOST_FALSE
) -> list[tuple[str, Limit, Judged]]:
    """Return the best limit of each candidate and form, best first."""
    found = []
    for name, names in CANDIDATES.items():
        for form, above in FORMS:
            if best := best_limit(rows, names, form, above, ahead, most_false):
                found.append((name, *best))
    return sorted(found, key=lambda one: (-one[2].hits, -median(one[2].leads)))


def best_together(rows: Sequence[Row], singles: Sequence[tuple[str, Limit, Judged]]) -> list[Limit]:
    """Return the alarm by the rule: of the best five ``singles`` the one, or the two or three
    together, with the most hits."""
    top = [limit for _, limit, _ in singles[:5]]
    together = [combination for parts in (1, 2, 3) for combination in combinations(top, parts)]
    quiet = [(limits, judge(apply(rows, limits))) for limits in together]
    quiet = [(limits, judged) for limits, judged in quiet if judged.is_quiet]
    # The first of equals: singles come before pairs, better ones before worse.
    return list(max(quiet, key=lambda one: one[1].hits)[0]) if quiet else []


def diagnostic(rows: Sequence[Row]) -> list[tuple[str, Limit, Judged]]:
    """Return the candidates for the diagnostic in the alarm of a run, the chosen one first."""
    return best_limits([row for row in rows if row.seed % 2 == 0], AT_ALL, A_THIRD)


def described(limit: Limit) -> str:
    """Return ``limit`` in words.

    >>> described(Limit(("entropy",), "fall", bound=0.4, above=False))
    'share of its highest below 0.4'
    """
    form = {"level": "", "fall": "share of its highest ", "rise": "multiple of its lowest "}[limit.form]
    return f"{form}{'above' if limit.above else 'below'} {limit.bound:.3g}"


def tables(rows: Sequence[Row], seen: Sequence[Row]) -> list[Report]:
    """Return the tables of the candidates, for the rule's alarm, with it, and for the diagnostic of
    a run, which the trials ``seen`` chose."""
    chosen_on, reported = ([row for row in rows if row.seed % 2 == odd] for odd in (0, 1))
    singles = best_limits(chosen_on)
    alarm = best_together(chosen_on, singles)
    halves = [
        ("even, chosen on", chosen_on, 0),
        ("odd", reported, 0),
        (f"odd, collapses after step {LATE}", reported, LATE),
    ]
    names = {limit.names: name for name, limit, _ in singles}
    parts = "; or ".join(f"{names[limit.names]} {described(limit)}" for limit in alarm)
    return [
        of_candidates(f"{AHEAD} steps before, on even seeds", singles, reported),
        Report(
            f"The alarm by the rule: {parts or 'none'}",
            ["seeds", *COLUMNS],
            [[name, *judge(apply(some, alarm), after).cells] for name, some, after in halves],
        ),
        of_candidates(
            "before at all, on even seeds of all trials that chose, in 1 of 60 healthy ones at most",
            diagnostic(seen),
            [row for row in seen if row.seed % 2],
        ),
    ]


def of_candidates(chosen: str, singles: Sequence[tuple[str, Limit, Judged]], reported: Sequence[Row]) -> Report:
    """Return the table of the candidates, each ``chosen`` so, on the trials that are ``reported``."""
    silent = sorted(set(CANDIDATES) - {name for name, _, _ in singles})
    return Report(
        f"Each candidate in its forms, chosen to ring {chosen}, and judged on odd ones",
        ["candidate", "rings", *(f"{name} (even)" for name in (*COLUMNS[:2], COLUMNS[3])), *COLUMNS],
        [
            [name, described(limit), *judged.cells[:2], judged.cells[3], *judge(apply(reported, [limit])).cells]
            for name, limit, judged in singles
        ],
        [f"No quiet bound with a hit on even seeds: {', '.join(silent)}."] if silent else [],
    )


def heard(rows: Iterable[Row], limits: Sequence[Limit] = LIMITS) -> list[tuple[Row, int | None]]:
    """Return each trial with the step at which the alarm of a run rings in it, or None."""
    found = []
    for row in rows:
        alarm = Alarm(LearnerConfig(loss=row.loss, learning_rate=row.learning_rate), row.lag, limits)
        rang = (step for step, metrics in enumerate(row.diagnostics, start=1) if alarm.note(metrics))
        found.append((row, next(rang, None)))
    return found


def of_a_run(rows: Sequence[Row], later: Sequence[Row], unseen: Sequence[Row]) -> Report:
    """Return the table of the alarm that a run has, on ``later`` trials, which judge it, on those of
    the grid that were ``unseen`` when it was chosen, and on all ``rows`` of the grid."""
    table = []
    for name, limits in (("forecast and diagnostic", LIMITS), ("forecast alone", ())):
        for trials, some in (
            ("fresh", later),
            *(
                (f"fresh, {rate:g}", [r for r in later if r.learning_rate == rate])
                for rate in sorted({r.learning_rate for r in later})
            ),
            ("grid, unseen", unseen),
            ("even seeds", [row for row in rows if row.seed % 2 == 0]),
            ("odd seeds", [row for row in rows if row.seed % 2]),
        ):
            rang = heard(some, limits)
            possible = judge(rang, after=SOONEST + AHEAD - 1)
            table.append([name, trials, *judge(rang).cells, f"{possible.hits} of {possible.collapses}"])
    return Report(
        f"The alarm of a run ({FORETOLD.out.name}: trials that chose nothing of it)",
        ["alarm", "trials", *COLUMNS, f"{AHEAD} steps before, of collapses at step {SOONEST + AHEAD} or later"],
        table,
    )


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with the tables."""

    log: bool = True
    """Append them to LOG.md."""


def recorded() -> list[Row]:
    """Return the trials that count: those of easy and hard tasks that are recorded by now."""
    return [row for file in (EASY.out, HARD.out) if file.exists() for row in read_study(file).rows]


def seen() -> list[Row]:
    """Return the trials that chose the alarm of a run."""
    grid = [row for file, number in SEEN.items() for row in read_study(file).rows[:number]]
    return grid + [row for row in read_study(FORETOLD.out).rows if row.seed <= CHOSE]


def fresh() -> list[Row]:
    """Return the trials that chose nothing of the alarm of a run."""
    return [row for row in read_study(FORETOLD.out).rows if row.seed > CHOSE]


def unseen() -> list[Row]:
    """Return the trials of the grid that were recorded after the alarm of a run was chosen."""
    return [row for file, number in SEEN.items() for row in read_study(file).rows[number:]]


def main(options: Options) -> None:
    """Judge all trials that are recorded by now."""
    rows, later = recorded(), fresh()
    reports = [of_a_run(rows, later, unseen()), *tables(rows, seen())]
    for report in reports:
        print_report(report)
    if options.log:
        append_report(
            "benchmarks/alarms.py", ASKED, EXPECTED, {"trials": len(rows), "fresh trials": len(later)}, reports
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
