"""A recorded study: written line by line, read at any time, and continued where it stopped. The
pure parts of its benchmark."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from zorplex_rl.course.recorded_study import Row, read_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONDITIONS = {"steps": 6, "eval_every": 3}


def row(loss="grpo", lag=8, rate=4e-4, seed=0, accuracy=0.5, **changes) -> Row:
    series = {"eval_steps": [3, 6], "accuracies": [0.4, accuracy], "token_sample_sizes": [1.0] * 6}
    found = Row(
        loss, lag, rate, seed, accuracy, None, 3.0, 40.0, "2026-01-02", **series, episode_sample_sizes=[1.0] * 5 + [0.3]
    )
    return replace(found, **changes)


sys.path.insert(0, str(BENCHMARKS))
benchmark = importlib.import_module("staleness")
sys.path.remove(str(BENCHMARKS))
append_row, write_header = benchmark.append_row, benchmark.write_header


@pytest.fixture
def file(tmp_path):
    """A study without a trial."""
    write_header(tmp_path / "study.jsonl", "benchmarks/staleness.py", "2 cores", CONDITIONS)
    return tmp_path / "study.jsonl"


def test_a_study_is_what_was_written(file):
    rows = (row(), row(seed=1, date="2026-01-04"), row("tis", accuracy=0.0, diverged_at=4))
    for found in rows:
        append_row(file, found)
    study = read_study(file)
    assert study.rows == rows
    assert (study.command, study.machine, study.conditions) == ("benchmarks/staleness.py", "2 cores", CONDITIONS)
    assert study.dates == "2026-01-02 to 2026-01-04"


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_line_in_the_middle_is_an_error(file):
    append_row(file, row())
    whole = file.read_text()
    file.write_text(whole + '{"loss": "grp')
    assert len(read_study(file).rows) == 1
    file.write_text(whole + '{"loss": "grp\n' + whole.splitlines()[-1] + "\n")
    with pytest.raises(ValueError, match="Unterminated string"):
        read_study(file)


def test_a_recording_goes_on_after_a_line_that_was_cut_off(file):
    append_row(file, row())
    file.write_text(file.read_text() + '{"loss": "grp')
    write_header(file, "benchmarks/staleness.py", "2 cores", CONDITIONS)
    append_row(file, row(seed=1))
    assert [found.seed for found in read_study(file).rows] == [0, 1]


def test_trials_under_other_conditions_get_a_file_of_their_own(file):
    write_header(file, "benchmarks/staleness.py", "another machine", CONDITIONS)
    with pytest.raises(ValueError, match="another steps: give --out another file"):
        write_header(file, "benchmarks/staleness.py", "2 cores", CONDITIONS | {"steps": 60})


def test_conditions_that_are_younger_than_a_file_were_as_they_are_by_default(file):
    write_header(file, "benchmarks/staleness.py", "2 cores", CONDITIONS | {"difficulty": "easy"})
    with pytest.raises(ValueError, match="another difficulty"):
        write_header(file, "benchmarks/staleness.py", "2 cores", CONDITIONS | {"difficulty": "hard"})


def test_a_cell_has_its_seeds_in_order_and_is_shown_once_it_has_enough_of_them(file):
    for found in (row(seed=1, accuracy=0.25), row("tis"), row(seed=0, accuracy=0.75)):
        append_row(file, found)
    study = read_study(file)
    assert len(study.cells()) == 2
    (cell,) = study.cells(seeds=2)
    assert (cell.loss, cell.accuracies, cell.accuracy) == ("grpo", [0.75, 0.25], 0.5)


def test_half_a_study_is_the_whole_grid_with_half_of_the_seeds():
    options = benchmark.Options(learning_rates=(1e-4, 2e-4), lags=(0, 8), losses=("tis", "grpo"), seeds=2)
    points = list(benchmark.grid(options))
    assert len(points) == len({(rate, t.lag, t.loss, t.seed) for rate, t in points}) == 16
    assert [trial.seed for _, trial in points] == [0] * 8 + [1] * 8


def test_a_trial_that_is_in_the_file_is_not_run_again(file):
    options = benchmark.Options(learning_rates=(2e-4, 4e-4), lags=(8,), losses=("grpo", "tis"), seeds=1)
    append_row(file, row("grpo", rate=4e-4))
    left = [(rate, trial.loss) for rate, trial in benchmark.missing(options, read_study(file))]
    assert left == [(2e-4, "grpo"), (2e-4, "tis"), (4e-4, "tis")]


def test_a_file_names_the_command_that_recorded_it_and_no_path_of_the_machine(tmp_path):
    options = benchmark.Options(
        lags=(0, 8), learning_rates=(8e-4,), steps=20, out=tmp_path / "other.jsonl", budget=1, log=False
    )
    assert benchmark.command_of(benchmark.Options()) == "benchmarks/staleness.py"
    assert benchmark.command_of(options) == (
        "benchmarks/staleness.py --learning-rates 0.0008 --lags 0 8 --steps 20 --out benchmarks/other.jsonl"
    )


def test_a_table_shows_complete_cells_with_their_worst_and_best_seed(file):
    for found in (row(accuracy=0.25), row(seed=1, accuracy=0.75), row(lag=32), row(rate=8e-4)):
        append_row(file, found)
    (report,) = benchmark.tabulate(read_study(file), seeds=2)
    assert (report.title, report.columns) == ("Learning rate 0.0004", ["loss", "lag 8"])
    assert report.rows == [["grpo", "0.50 (0.25 – 0.75)"]]


@pytest.fixture
def small_batches(monkeypatch):
    """Trials whose steps have two groups of four, and whose last evaluation has 8 tasks."""
    conditions_of = benchmark.conditions_of
    small = {"prompts": 2, "samples": 4, "held_out_tasks": 8}
    monkeypatch.setattr(benchmark, "conditions_of", lambda options: replace(conditions_of(options), **small))


def test_a_trial_of_the_benchmark_is_a_row_with_its_series(small_batches):
    from zorplex_rl.course.staleness import Trial

    found = benchmark.run_trial(4e-4, Trial("grpo", 1, 0), benchmark.Options(steps=2, eval_every=2, eval_tasks=4))
    assert found.key == ("grpo", 1, 4e-4, 0)
    assert (found.eval_steps, len(found.accuracies)) == ([2], 1)
    assert found.token_sample_sizes[0] == found.episode_sample_sizes[0] == 1.0
    assert found.episode_sample_sizes[1] < found.token_sample_sizes[1] < 1.0
    assert found.mean_lag == 0.5
    assert {len(values) for values in found.series.values()} == {2}
    assert found.series["second_moment"][0] < 1e-9 < found.series["second_moment"][1]
    assert {"entropy", "grad_norm", "response_tokens", "format_rate", "reward", "mismatch_kl"} <= set(found.series)
    assert {name for name in found.series if "fraction" in name} == {"clip_fraction_low", "clip_fraction_high"}


def test_a_trial_that_fell_to_zero_for_good_is_ended_there_and_its_row_says_where(small_batches, monkeypatch):
    from zorplex_rl.course.staleness import Trial

    measured = iter([0.5] + benchmark.ZEROS * [0.0] + [0.01])
    monkeypatch.setattr(benchmark, "held_out_accuracy", lambda *anything: next(measured))
    found = benchmark.run_trial(4e-4, Trial("grpo", 0, 0), benchmark.Options(steps=20, eval_every=1))
    assert (found.ended_at, found.accuracy, found.diverged_at) == (7, 0.01, None)
    assert found.eval_steps == [1, 2, 3, 4, 5, 6, 7]
    assert len(found.series["entropy"]) == 7


def test_a_policy_that_never_had_an_answer_right_is_given_its_time():
    assert not benchmark.is_over(20 * [0.0])
    assert not benchmark.is_over([0.5] + 5 * [0.0] + [0.1])


def test_a_trial_that_diverges_is_a_row_too(monkeypatch):
    from zorplex_rl.course.staleness import Trial
    from zorplex_rl.errors import TrainingDiverged

    def diverge(trial, conditions, watch):
        watch(SimpleNamespace(version=1), {"lag_mean": 0.0, "effective_sample_size": 1.0, "episode_sample_size": 1.0})
        raise TrainingDiverged("the loss of step 2 is nan")

    monkeypatch.setattr(benchmark, "train_with_lag", diverge)
    found = benchmark.run_trial(1.0, Trial("grpo", 0, 0), benchmark.Options(eval_every=1000))
    assert (found.accuracy, found.diverged_at, found.episode_sample_sizes) == (0.0, 2, [1.0])


def test_the_study_that_09_shows_has_three_seeds_of_every_cell_and_says_with_what_it_was_recorded():
    study = read_study(BENCHMARKS / "staleness.jsonl")
    assert len(study.cells()) == 36
    assert study.whole_seeds >= 3
    assert study.command.startswith("benchmarks/staleness.py")
    assert len(study.dates) >= len("2026-11-22")
