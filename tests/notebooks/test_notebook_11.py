"""Notebook 11: its tree, its alarm, and the page from its first cell to its last."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import pytest
from test_notebooks import Later

from zorplex_rl.course import alarm, nb11
from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.recorded_study import read_study

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "11_laboratory.py")


def settings() -> SimpleNamespace:
    return notebook.settings.run()[1]["config"]


def test_the_drawing_asks_what_the_solution_asks():
    told = re.search('aria-label="([^"]*)"', drawing_of("decision.svg"))[1]
    leaves = ["leave it", "mask", "lower the rate", "clip"]
    assert [told.index(leaf) for leaf in leaves] == sorted(told.index(leaf) for leaf in leaves)
    advise, ill, well = notebook.Solutions.advise, [0.9, 0.1], [0.1, 0.9]
    found = [
        advise(well, ill, [1.0]),
        advise(ill, ill, [1.0]),
        advise(ill, ill, [0.0]),
        advise(ill, well, [0.0]),
    ]
    assert found == leaves


def test_every_recorded_run_gets_advice_and_who_clips_is_better_off():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    rows = {row["advice"]: row for row in nb11.worth(study, notebook.Solutions.advise, [0.0])}
    assert sum(row["recorded runs"] for row in rows.values()) == len(study.rows)
    assert rows["clip"]["better with it"] == rows["clip"]["recorded runs"]


def test_the_page_counts_what_the_log_says_of_the_alarm():
    seen = notebook.alarms.run(recorded=ROOT / "benchmarks")[1]["seen"]
    assert notebook.Solutions.judge(seen, 10) == (23, 25, 4, 115)


def test_the_forecast_is_the_package_s():
    for lag, rate in ((16, 2e-4), (8, 4e-4), (3, 8e-4)):
        assert notebook.Solutions.forecast(lag, rate, alarm.RATE) == pytest.approx(
            alarm.alike(lag, rate)
        )


def test_wrong_records_are_a_share_of_the_sampled_tokens_and_known_to_the_last():
    noise: list[float] = []
    spoil = notebook.wrong_records(0.1, 5.0, noise)
    episodes = [
        SimpleNamespace(sampled=[True, False] * 500, logprobs=[-1.0] * 1000) for _ in range(4)
    ]
    spoil(episodes)
    assert (
        sum(wrong != 0 for wrong in noise) / len(noise) == pytest.approx(0.1, abs=0.02)
        and len(noise) == 2000
    )
    assert stdev(wrong for wrong in noise if wrong) == pytest.approx(5.0, rel=0.15)
    recorded = [
        logp
        for e in episodes
        for logp, sampled in zip(e.logprobs, e.sampled, strict=True)
        if sampled
    ]
    assert [-1.0 - logp for logp in recorded] == pytest.approx(noise)
    assert {e.logprobs[1] for e in episodes} == {-1.0}


def test_cispo_collapses_at_lag_32_by_the_rule_of_the_log_and_lag_8_is_undecided():
    cells = read_study(ROOT / "benchmarks" / "laboratory.jsonl").cells(seeds=5)
    fell = {
        (cell.loss, cell.lag): sum(row.collapsed_at is not None for row in cell.rows)
        for cell in cells
        if cell.learning_rate == 4e-4
    }
    assert fell["cispo", 32] >= 3 and max(fell["cispo", 0], fell["dppo", 32], fell["dppo", 8]) <= 1
    assert fell["cispo", 8] == 2


def test_the_live_runs_are_those_of_the_study_that_confirmed_them():
    confirmed = read_study(ROOT / "benchmarks" / "confirmed_20.jsonl")
    ours = settings().study
    alike = (
        "steps",
        "schedule_steps",
        "prompts",
        "samples",
        "updates_per_batch",
        "max_tokens",
        "policy",
    )
    assert {name: confirmed.conditions[name] for name in alike} == {
        name: getattr(ours, name) for name in alike
    }
    seed = settings().fallen_seed
    runs = {("reinforce", settings().old), ("reinforce", 0), ("grpo", settings().old)}
    assert {(*run, ours.learning_rate, seed) for run in runs} <= {row.key for row in confirmed.rows}
    ends = {row.key[:2]: row.accuracy for row in confirmed.rows if row.seed == seed}
    assert ends["reinforce", 0] > 0.75 > 2 * ends["reinforce", settings().old]
    assert ends["grpo", settings().old] > ends["reinforce", 0] / 2


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    small = {"steps": 4, "eval_tasks": 8, "prompts": 2, "samples": 4}
    study = notebook.lab.Conditions(
        steps=3, schedule_steps=6, learning_rate=3e-4, held_out_tasks=8, prompts=2
    )
    config = SimpleNamespace(**vars(settings()) | small | {"study": study})
    _, values = notebook.app.run(defs={"config": config})
    assert values["unchanged"].is_equal
    assert values["compared"].change == "--learning-rate 0.0012 instead of 0.0004"
    assert max(map(abs, values["exact"])) < 1e-4
    assert {len(run) for run in values["drawn"].values()} == {1}
    assert set(values["rang"]) >= {"clipped, wrong records", "masked, wrong records"}
