"""Notebook 11: its three failing runs, its rule, and the page from its first cell to its last."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from drawn_batch import draw_batch
from test_answers import answers, refusals
from test_notebooks import Later

from zorplex_rl.course import nb09, nb11
from zorplex_rl.course.recorded_study import read_study

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "11_laboratory.py")


def settings() -> SimpleNamespace:
    return notebook.settings.run()[1]["config"]


def percent(row: dict, column: str) -> int:
    return int(row[column].rstrip("%"))


def test_every_recorded_run_gets_advice_and_clipping_every_run_does_as_well_or_better():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    rows = {row["advice"]: row for row in nb11.worth(study, notebook.Solutions.advise)}
    assert sum(row["runs"] for row in rows.values()) == len(study.rows)
    assert percent(rows["clip"], "with the advice") > 2 * percent(rows["clip"], "as they ended")
    lower = rows["lower the rate"]
    assert (
        percent(lower, "with the advice")
        < percent(lower, "clipped instead")
        < percent(lower, "both cures")
    )
    for row in rows.values():
        advised, clipped, both = (
            percent(row, column) for column in ("with the advice", "clipped instead", "both cures")
        )
        assert advised <= clipped < both, "the page says so"


def test_by_the_rule_no_clipped_run_of_the_study_has_failed_and_its_rates_are_doubled():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    runs = {row.key: row.accuracies for row in study.rows}
    for (loss, _, rate, seed), path in runs.items():
        if loss == "grpo":
            control = runs[loss, 0, rate, seed]
            assert notebook.Solutions.advise(path, control, 0.0) == "leave it"
    assert sorted({rate for _, _, rate, _ in runs}) == [2e-4, 4e-4, 8e-4]


def test_most_runs_with_too_high_a_rate_had_old_data_too():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    runs = {row.key: row.accuracies for row in study.rows}
    lags = [
        lag
        for (loss, lag, rate, seed), path in runs.items()
        if notebook.Solutions.advise(path, runs[loss, 0, rate, seed], 0.0) == "lower the rate"
    ]
    assert sum(lag > 0 for lag in lags) > len(lags) / 2


def test_with_the_plain_loss_and_the_highest_rate_the_control_fails():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    cells = {(cell.loss, cell.lag, cell.learning_rate): cell for cell in study.cells()}
    assert cells["reinforce", 0, 8e-4].accuracy < 0.25 < cells["reinforce", 0, 4e-4].accuracy


def test_a_wrong_record_that_the_step_hides_is_seen_by_two_ratios_only():
    assert nb09.push(notebook.Solutions.icepop_ring, 1.0, 0.2, 6.0) == 0
    assert nb09.push(nb09.packaged("icepop"), 1.0, 0.2, 6.0) == pytest.approx(1.2)


def test_icepop_is_the_clipped_loss_where_all_records_are_right():
    for seed in range(5):
        logp, _, behaviour, *rest = draw_batch(random.Random(seed))
        found = notebook.Solutions.icepop_ring(logp, behaviour, behaviour, *rest)
        clipped = nb09.packaged("grpo")(logp, behaviour, behaviour, *rest)
        assert found.item() == pytest.approx(clipped.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("icepop_ring_cuts_and_does_not_mask", "is cut to the bound, and should count nothing"),
        ("icepop_ring_with_one_ratio", "that is the form with one ratio"),
        ("icepop_ring_without_the_weight", "inside its bounds k is a weight"),
        ("icepop_ring_takes_k_of_the_present_policy", "a gradient flows through k"),
        ("icepop_ring_takes_a_constant_k_of_the_present_policy", "k compares π with μ"),
        ("icepop_ring_clips_around_mu", "the clip is around μ, and should be around π₀"),
        ("far_off_bounds_the_logarithm", "you bounded the logarithm by 0.2"),
        ("advise_ignores_the_control", "it never asks whether the control has failed"),
    ],
)
def test_a_usual_mistake_is_told_by_its_name(wrong, told):
    name = next(name for name in answers("11").WRONG if wrong.startswith(name))
    (said,) = refusals("11", name, [getattr(answers("11"), wrong)]).values()
    assert told in said and len(said) < 260


def test_a_tenth_of_wrong_records_is_seen_and_right_ones_are_not():
    batch = SimpleNamespace(behaviour_logp=torch.zeros(50, 40))
    nb09.other_engine(batch, 0, settings().wrong_share, settings().wrong_spread)
    far = notebook.Solutions.far_off((-batch.behaviour_logp).flatten().tolist())
    assert 0.05 < far < 0.1
    assert notebook.Solutions.far_off([1e-6] * 10) == 0.0


def test_run_c_is_that_of_the_study_that_confirmed_it():
    confirmed = read_study(ROOT / "benchmarks" / "confirmed_20.jsonl")
    config = settings()
    assert confirmed.conditions["steps"] == config.steps
    ends = {
        row.key[:2]: row.accuracy
        for row in confirmed.rows
        if (row.seed, row.learning_rate) == (config.seed, config.rate)
    }
    assert ends["reinforce", 0] > 0.75 > 2 * ends["reinforce", config.old]


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    small = {"steps": 3, "curve_tasks": 4, "eval_tasks": 8, "replay_tasks": 8}
    short = {"steps": 4, "eval_tasks": 8, "prompts": 2, "samples": 4}
    values = notebook.settings.run()[1]
    defs = {
        "config": SimpleNamespace(**vars(values["config"]) | small),
        "short_run": SimpleNamespace(**vars(values["short_run"]) | short),
    }
    _, values = notebook.app.run(defs=defs)
    assert values["unchanged"].is_equal
    assert values["compared"].change == "--learning-rate 0.0012 instead of 0.0004"
    far = values["far"]
    assert far["run B"] > 0.01 > max(far["run A"], far["run C"])
    assert set(values["controls"]) == {"run A, fresh data", "run C, fresh data"}
    assert 0 <= values["cured"] <= 1
