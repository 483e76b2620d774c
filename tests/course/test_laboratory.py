"""What is concluded from the laboratory's trials: collapses, alarms, verdicts. Nearly all on trials
made up here, of which the answer is known."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from zorplex_rl.course.recorded_study import Row, Study, read_study
from zorplex_rl.learning.alarm import LIMITS, Limit
from zorplex_rl.learning.schedule import schedule

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
alarms, laboratory, staleness, verdicts = (
    importlib.import_module(name) for name in ("alarms", "laboratory", "staleness", "verdicts")
)
sys.path.remove(str(BENCHMARKS))


def trial(
    accuracies: list[float],
    loss: str = "cispo",
    lag: int = 8,
    seed: int = 0,
    diverged_at: int | None = None,
    **series: list[float],
) -> Row:
    """A trial that was evaluated after every third step."""
    steps = 3 * len(accuracies)
    sizes = {"token_sample_sizes": steps * [1.0], "episode_sample_sizes": steps * [1.0]}
    return Row(
        loss, lag, 4e-4, seed, accuracies[-1], diverged_at, float(lag), 40.0, "2026-01-02",
        [3 * (index + 1) for index in range(len(accuracies))], accuracies, **sizes, ended_at=None, series=series,
    )  # fmt: skip


def rising(step: int, steps: int = 60, low: float = 0.1, high: float = 1.0) -> list[float]:
    """A series that jumps up at ``step``."""
    return [high if at >= step else low for at in range(1, steps + 1)]


FALLING = 10 * [0.8] + 10 * [0.1]
"""The accuracies of a trial that collapses at step 33."""


@pytest.mark.parametrize(
    ("accuracies", "collapsed_at", "healthy"),
    [
        ([0.4, 0.8, 0.7, 0.9], None, True),
        ([0.4, 0.8, 0.39, 0.3, 0.9], 9, False),
        ([0.4, 0.8, 0.39, 0.8], None, True),  # one bad evaluation of forty tasks is chance
        ([0.4, 0.8, 0.5, 0.5, 0.8], None, False),
        ([0.4, 0.8, 0.8, 0.3], None, True),
    ],
)
def test_a_collapse_is_two_evaluations_below_half_of_the_best_so_far(accuracies, collapsed_at, healthy):
    found = trial(accuracies)
    assert (found.collapsed_at, found.is_healthy) == (collapsed_at, healthy)


def test_a_training_that_diverges_has_collapsed_where_it_diverged_if_not_before():
    assert trial([0.4, 0.8], diverged_at=8).collapsed_at == 8
    assert not trial([0.4, 0.8], diverged_at=8).is_healthy
    assert trial([0.8, 0.1, 0.1], diverged_at=9).collapsed_at == 6


def test_an_alarm_hits_only_if_it_rings_ten_steps_before_the_accuracy_halves():
    rung = [(trial(FALLING), 23), (trial(FALLING), 24), (trial(FALLING), 40), (trial(FALLING), None)]
    found = alarms.judge([*rung, (trial(20 * [0.9]), 5), (trial(20 * [0.9]), None), (trial([0.9, 0.6, 0.6, 0.9]), 1)])
    assert (found.hits, found.leads, found.collapses) == (1, (10, 9), 4)
    assert (found.false_alarms, found.healthy, found.dipped_alarmed, found.dipped) == (1, 2, 1, 1)
    assert not found.is_quiet
    assert alarms.judge(rung, after=33).collapses == 0


def test_what_announces_collapses_is_found_among_what_does_not_and_judged_on_other_seeds():
    def made(seed: int, collapses: bool, jump: int) -> Row:
        noise = [0.5 + 0.1 * ((7 * step + seed) % 5) for step in range(60)]
        moment = rising(jump) if collapses else 60 * [0.1 + 0.01 * (seed % 3)]
        return trial(FALLING if collapses else 20 * [0.9], seed=seed, entropy=noise, second_moment=moment)

    rows = [made(seed, seed % 4 < 2, jump=10 + seed % 3) for seed in range(40)]
    even = [row for row in rows if row.seed % 2 == 0]
    found = alarms.best_limits(even)
    assert {name for name, _, _ in found} == {"second moment of log r"}
    (limit,) = alarm = alarms.best_together(even, found)
    assert limit.names == ("second_moment",) and limit.above
    others = alarms.judge(alarms.apply([row for row in rows if row.seed % 2], alarm))
    assert (others.hits, others.collapses, others.false_alarms, others.healthy) == (10, 10, 0, 10)


def test_two_diagnostics_together_are_the_alarm_where_each_alone_misses_a_collapse():
    def made(seed: int, which: str) -> Row:
        series = {"second_moment": 60 * [0.1], "grad_norm": 60 * [0.1]}
        return trial(FALLING, seed=seed, **series | {which: rising(8)})

    calm = [trial(20 * [0.9], seed=seed, second_moment=60 * [0.1], grad_norm=60 * [0.1]) for seed in range(4)]
    rows = [made(0, "second_moment"), made(1, "grad_norm"), *calm]
    alarm = alarms.best_together(rows, alarms.best_limits(rows))
    assert sorted(limit.names for limit in alarm) == [("grad_norm",), ("second_moment",)]


def test_a_diagnostic_that_is_loud_in_healthy_trials_is_no_alarm():
    rows = [trial(FALLING, entropy=rising(8)), *(trial(20 * [0.9], entropy=rising(8)) for _ in range(4))]
    assert alarms.best_limits(rows) == [] == alarms.best_together(rows, [])


def test_a_trial_whose_loss_leaves_nothing_out_has_no_such_share():
    assert alarms.readings(trial(FALLING), alarms.CANDIDATES["share left out"], "level") == []
    both = trial(FALLING, masked_fraction_low=60 * [0.25], masked_fraction_high=60 * [0.5])
    assert alarms.readings(both, alarms.CANDIDATES["share left out"], "level")[0] == 0.75
    assert alarms.rings_at([], Limit(("clip_fraction_low",), "level", 0.1, above=True)) is None


def test_the_diagnostic_of_a_run_is_what_the_trials_of_even_seeds_chose_before_those_that_judge_it():
    (_, chosen, judged), *_ = alarms.diagnostic(alarms.seen())
    assert judged.false_alarms <= judged.healthy / 60
    assert (replace(chosen, bound=int(100 * chosen.bound) / 100),) == LIMITS


def study(*rows: Row) -> Study:
    return Study("benchmarks/laboratory.py", "2 cores", {"steps": 18}, rows)


FINE = 20 * [0.9]


@pytest.mark.parametrize(
    ("cispo", "dppo", "fresh", "verdict"),
    [
        (5 * [FALLING], 5 * [FINE], 5 * [FINE], "it collapses at this lag"),
        (5 * [FINE], 5 * [FINE], 5 * [FINE], "its choice holds at this lag"),
        (
            5 * [FALLING],
            5 * [FALLING],
            5 * [FINE],
            "undecided: DPPO collapses as well, on 5 of 5; the interval of the difference reaches 0",
        ),
        (5 * [FALLING], 5 * [FINE], 5 * [FALLING], "undecided: 5 of 5 collapse on fresh data too"),
        ([FALLING, FALLING, FINE, FINE, FINE], 5 * [FINE], 5 * [FINE], "undecided: 2 of 5 seeds collapse"),
        (4 * [FALLING], 4 * [FINE], 4 * [FINE], "undecided yet: 4 of 5 seeds"),
    ],
)
def test_the_verdict_on_cispo_follows_the_rule_that_was_written_before(cispo, dppo, fresh, verdict):
    rows = [
        trial(accuracies, loss, lag, seed)
        for loss, lag, trials in (("cispo", 32, cispo), ("dppo", 32, dppo), ("cispo", 0, fresh))
        for seed, accuracies in enumerate(trials)
    ]
    assert verdicts.cispo_verdict(study(*rows), 32)[1] == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(1, "more"), (-1, "fewer")])
def test_the_verdict_on_icepop_is_the_sign_of_the_rank_correlation_within_trials(sign, verdict):
    gap = [0.01 * step for step in range(60)]

    def masks(seed: int) -> list[float]:
        return [0.5 + sign * 0.001 * step + 0.003 * ((5 * step + seed) % 7) for step in range(60)]

    rows = [
        trial(
            FINE,
            "icepop",
            lag,
            seed,
            second_moment=gap,
            masked_fraction_low=masks(seed),
            masked_fraction_high=60 * [0.0],
        )
        for lag in (8, 32)
        for seed in range(5)
    ]
    assert verdicts.icepop_verdict(study(*rows))[1].startswith(f"{verdict}: mean correlation")
    assert verdicts.icepop_verdict(study(*rows[1:]))[1] == "undecided yet: 9 of 10 trials"


@pytest.mark.parametrize(
    ("stale", "verdict"),
    [
        (lambda seed: [0.8, 0.9, 0.5, 0.3, 0.2, 0.1], "confirmed after 15 steps and after 18 steps"),
        (lambda seed: [0.8, 0.9, 0.5, 0.3, 0.2, 0.1 if seed else 0.7], "confirmed after 15 steps"),
        (
            lambda seed: [0.8, 0.9, 0.5, 0.3, 0.5 if seed else 0.1, 0.5],
            "not confirmed: no number of steps does it on all five seeds",
        ),
    ],
)
def test_the_live_setting_is_confirmed_if_it_does_on_every_seed_what_it_should(stale, verdict):
    good = [0.6, 0.9, 0.9, 0.9, 0.9, 0.9]
    rows = [
        trial(accuracies, loss, lag, seed)
        for seed in range(5)
        for loss, lag, accuracies in (("reinforce", 0, good), ("reinforce", 8, stale(seed)), ("grpo", 8, good))
    ]
    assert verdicts.live_verdict(study(*rows), 8)[1] == verdict


def test_no_two_blocks_of_the_laboratory_record_under_other_conditions_into_one_file():
    conditions = {}
    for block in laboratory.BLOCKS:
        assert conditions.setdefault(block.out, staleness.shared(block)) == staleness.shared(block)


def test_the_seeds_of_a_live_setting_are_in_no_other_study():
    used = {block.out: set() for block in laboratory.BLOCKS}
    for block in laboratory.BLOCKS:
        used[block.out] |= set(range(block.first_seed, block.first_seed + block.seeds))
    for live in (laboratory.LIVE, laboratory.LIVE_16, laboratory.LIVE_20):
        own = used.pop(live.out)
        assert not own & set().union(*used.values())


def test_how_fast_a_policy_moves_at_first_does_not_tell_which_trial_of_a_setting_collapses():
    """Of pairs of trials that differ only by their seed, one of which collapsed: the one that did had
    the larger (log r)² after two stale batches, by the square of the learning rates between the
    versions, about as often as the other one."""
    settings: dict[tuple, list[tuple[float, bool]]] = {}
    for file in (*alarms.SEEN, alarms.FORETOLD.out):
        for row in (row for row in read_study(file).rows if row.lag):
            ways = [sum(schedule(v, 5, 0) for v in range(max(0, step - row.lag), step)) ** 2 for step in (1, 2)]
            speed = sum(row.series["second_moment"][1:3]) / sum(ways)
            setting = (file == laboratory.HARD.out, row.loss, row.lag, row.learning_rate)
            settings.setdefault(setting, []).append((speed, row.collapsed_at is not None))
    pairs = [
        fell > held
        for trials in settings.values()
        for (fell, collapsed), (held, other) in product(trials, trials)
        if collapsed and not other
    ]
    assert len(pairs) >= 250
    assert fmean(pairs) == pytest.approx(0.5, abs=0.1)
