"""A recorded study: written line by line, read at any time, and continued where it stopped. The
pure parts of its benchmark, and what its trials say of a collapse."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from zorplex_rl.course.recorded_study import Row, read_study
from zorplex_rl.errors import TrainingDiverged

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
benchmark = importlib.import_module("staleness")
sys.path.remove(str(BENCHMARKS))
append_row, begin, Trial = benchmark.append_row, benchmark.begin, benchmark.Trial
PLAN = benchmark.Plan((benchmark.Grid((2e-4, 4e-4), (8,), ("grpo", "tis"), range(2)),))
SMALL = replace(benchmark.STUDIES["staleness"].conditions, prompts=2, samples=4, held_out_tasks=8)


def row(loss="grpo", lag=8, rate=4e-4, seed=0, accuracy=0.5, **changes) -> Row:
    found = Row(
        loss,
        lag,
        rate,
        seed,
        accuracy,
        None,
        "2026-01-02",
        [3, 6],
        [0.4, accuracy],
        [1.0] * 5 + [0.3],
    )
    return replace(found, **changes)


def evaluated(accuracies: list[float], **changes) -> Row:
    """A trial that was evaluated after every third step."""
    return row(
        eval_steps=[3 * (index + 1) for index in range(len(accuracies))],
        accuracies=accuracies,
        **changes,
    )


@pytest.fixture
def file(tmp_path):
    """A study without a trial."""
    begin(tmp_path / "study.jsonl", "benchmarks/staleness.py", PLAN)
    return tmp_path / "study.jsonl"


def test_a_study_is_what_was_written(file):
    rows = (row(), row(seed=1, date="2026-01-04"), row("tis", accuracy=0.0, diverged_at=4))
    for found in rows:
        append_row(file, found)
    study = read_study(file)
    assert study.rows == rows
    assert (study.command, study.conditions["eval_every"]) == ("benchmarks/staleness.py", 3)
    assert study.dates == "2026-01-02 to 2026-01-04"


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_line_in_the_middle_is_an_error(file):
    append_row(file, row())
    whole = file.read_text()
    file.write_text(whole + '{"loss": "grp')
    assert len(read_study(file).rows) == 1
    file.write_text(whole + '{"loss": "grp\n' + whole.splitlines()[-1] + "\n")
    with pytest.raises(ValueError, match="Unterminated string"):
        read_study(file)


def test_a_cell_has_its_seeds_in_order_and_is_shown_once_it_has_enough_of_them(file):
    for found in (row(seed=1, accuracy=0.25), row("tis"), row(seed=0, accuracy=0.75)):
        append_row(file, found)
    study = read_study(file)
    assert len(study.cells()) == 2
    (cell,) = study.cells(seeds=2)
    assert (cell.loss, cell.accuracies, cell.accuracy) == ("grpo", [0.75, 0.25], 0.5)


def test_a_trial_that_is_in_the_file_is_not_run_again(file):
    append_row(file, row("grpo", rate=4e-4))
    left = [
        (rate, trial.loss)
        for rate, trial in benchmark.missing(PLAN, read_study(file))
        if trial.seed == 0
    ]
    assert left == [(2e-4, "grpo"), (2e-4, "tis"), (4e-4, "tis")]


@pytest.mark.parametrize("name", benchmark.STUDIES)
def test_every_trial_that_a_page_reads_is_recorded(name):
    plan, study = benchmark.STUDIES[name], read_study(BENCHMARKS / f"{name}.jsonl")
    assert benchmark.missing(plan, study) == []
    assert len({row.key for row in study.rows}) == len(study.rows)
    assert study.command == f"benchmarks/staleness.py {name}"
    assert (study.conditions["steps"], study.conditions["eval_every"]) == (
        plan.conditions.steps,
        plan.eval_every,
    )


def test_a_trial_of_the_benchmark_is_a_row_with_its_series():
    plan = replace(PLAN, conditions=replace(SMALL, steps=2), eval_every=2, eval_tasks=4)
    found = benchmark.run_trial(plan, 4e-4, Trial("grpo", 1, 0))
    assert found.key == ("grpo", 1, 4e-4, 0)
    assert (found.eval_steps, len(found.accuracies)) == ([2], 1)
    assert found.episode_sample_sizes[0] == 1.0 > found.episode_sample_sizes[1]


def test_a_trial_that_diverges_is_a_row_too(monkeypatch):
    def diverge(trial, conditions, watch):
        watch(SimpleNamespace(version=1), {"episode_sample_size": 1.0})
        raise TrainingDiverged("the loss of step 2 is nan")

    monkeypatch.setattr(benchmark, "train_with_lag", diverge)
    found = benchmark.run_trial(replace(PLAN, eval_every=1000), 1.0, Trial("grpo", 0, 0))
    assert (found.accuracy, found.diverged_at, found.episode_sample_sizes) == (0.0, 2, [1.0])


@pytest.mark.parametrize(
    ("accuracies", "collapsed_at"),
    [
        ([0.4, 0.8, 0.7, 0.9], None),
        ([0.4, 0.8, 0.39, 0.3, 0.9], 9),
        ([0.4, 0.8, 0.39, 0.8], None),  # one bad evaluation of forty tasks is chance
        ([0.4, 0.8, 0.5, 0.5, 0.8], None),
        ([0.4, 0.8, 0.8, 0.3], None),
    ],
)
def test_a_collapse_is_two_evaluations_below_half_of_the_best_so_far(accuracies, collapsed_at):
    assert benchmark.collapsed_at(evaluated(accuracies)) == collapsed_at


def test_a_training_that_diverges_has_collapsed_where_it_diverged_if_not_before():
    assert benchmark.collapsed_at(evaluated([0.4, 0.8], diverged_at=8)) == 8
    assert benchmark.collapsed_at(evaluated([0.8, 0.1, 0.1], diverged_at=9)) == 6
