"""Notebook 09: the run that collapses and is saved, the reader's own line in it, and what the page says about a study."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import stdev, variance
from types import SimpleNamespace

import pytest
import torch
from test_notebooks import load

from zorplex_rl.course.recorded_study import Row, Study, read_study
from zorplex_rl.course.staleness import Conditions
from zorplex_rl.learning.learner import token_logprobs
from zorplex_rl.learning.losses import LOSSES

ROOT = Path(__file__).parents[2]
notebook = load(ROOT / "notebooks" / "09_staleness.py")


def recorded_collapse() -> tuple[SimpleNamespace, Study]:
    """The settings of 09, and the recorded runs on five seeds that it shows."""
    _, values = notebook.settings.run()
    return values["config"], read_study(ROOT / "benchmarks" / "collapse.jsonl")


def test_the_recorded_runs_are_those_that_the_page_trains():
    config, study = recorded_collapse()
    shared = {"steps": config.collapse_steps, "prompts": config.prompts, "samples": config.samples}
    shared |= {"eval_every": config.eval_every, "eval_tasks": config.eval_tasks, "policy": config.policy}
    assert {name: study.conditions[name] for name in shared} == shared
    assert {row.key[1:3] for row in study.rows} == {(lag, config.collapse_rate) for lag in (0, config.collapse_lag)}
    assert {len(cell.rows) for cell in study.cells()} == {5}


def test_the_run_collapses_and_is_saved_on_five_of_five_seeds():
    """Recorded by ``benchmarks/staleness.py``. The embedded policy gets more than a third of the tasks right before it is trained."""
    config, study = recorded_collapse()
    accuracies = {(cell.loss, cell.lag): cell.accuracies for cell in study.cells(seeds=5)}
    assert max(accuracies["reinforce", config.collapse_lag]) < 0.1
    assert min(accuracies["grpo", config.collapse_lag]) > 0.6


def test_the_same_run_on_fresh_data_does_not_collapse():
    """Else the learning rate alone would be to blame."""
    config, study = recorded_collapse()
    fresh, stale = (
        [
            row.accuracy
            for cell in study.cells(seeds=5)
            if (cell.loss, cell.lag) == ("reinforce", lag)
            for row in cell.rows
        ]
        for lag in (0, config.collapse_lag)
    )
    assert min(new - old for new, old in zip(fresh, stale, strict=True)) > 0.3


@pytest.fixture(scope="module")
def one_step() -> Callable[..., float]:
    """By how much one step of 09's loop with this loss raises Σ A log π of its batch."""

    def raised_by(loss) -> float:
        seen = []

        def favour(policy) -> float:
            with torch.no_grad():
                return sum((b.advantage @ token_logprobs(policy, b)[0]).sum().item() for b in seen[0][1])

        def watch(step, policy, batches):
            seen.append((step, batches))
            seen.append(favour(policy))

        conditions = Conditions(steps=1, prompts=2, samples=6, warmup_steps=0)
        trained = notebook.train_on_old_data(loss, 0, conditions, 0, watch)
        return favour(trained) - seen[1]

    return raised_by


def test_what_the_reader_writes_trains_the_policy(one_step):
    """The solution does what the package's loss does; a wrong sign makes the policy worse; an objective of 0 changes nothing."""
    missing, named = notebook.plugged_in(notebook.corrected)
    assert missing is LOSSES["grpo"]
    assert "not written yet" in named
    right, named = notebook.plugged_in(notebook.corrected_solution)
    assert named == "your `corrected`"
    wrong, _ = notebook.plugged_in(lambda *given: -notebook.corrected_solution(*given))
    nothing, _ = notebook.plugged_in(lambda *given: 0 * notebook.corrected_solution(*given))
    assert one_step(right) == pytest.approx(one_step(missing), rel=1e-3)
    assert one_step(right) > 0.1
    assert one_step(wrong) < -0.1
    assert one_step(nothing) == 0.0


def study_of(accuracies: dict[tuple[str, int, float], list[float]]) -> Study:
    rows = [
        Row(loss, lag, rate, seed, accuracy, None, lag, 1.0, "2026-01-02", [3], [accuracy], [1.0] * 3, [1.0] * 3)
        for (loss, lag, rate), found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]
    return Study("benchmarks/staleness.py", "2 cores", {"steps": 3}, tuple(rows))


def test_says_that_a_correction_helps_only_where_it_is_beyond_the_noise():
    calm = study_of({("reinforce", 8, 4e-4): [0.10, 0.12], ("grpo", 8, 4e-4): [0.80, 0.82]})
    plain, _, clipped, _ = notebook.findings(calm, 2, before=0.35)
    assert (plain["end below the start"], clipped["end below the start"]) == (1, 0)
    assert (clipped["better than plain"], clipped["no difference"], clipped["worse"]) == (1, 0, 0)
    scattered = study_of({("reinforce", 8, 4e-4): [0.1, 0.7], ("grpo", 8, 4e-4): [0.3, 0.9]})
    _, _, clipped, _ = notebook.findings(scattered, 2, before=0.35)
    assert (clipped["better than plain"], clipped["no difference"], clipped["worse"]) == (0, 1, 0)


def test_the_scatter_of_a_few_seeds_is_that_of_a_sample():
    samples = [[0.8, 0.9, 1.0], [0.1, 0.4, 0.4], [0.5]]
    assert notebook.pooled_deviation(samples[:1]) == pytest.approx(stdev(samples[0]))
    assert math.isnan(notebook.pooled_deviation(samples[2:]))
    assert notebook.pooled_deviation(samples) == pytest.approx(
        ((variance(samples[0]) + variance(samples[1])) / 2) ** 0.5
    )


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    _, values = notebook.settings.run()
    small = {"prompts": 2, "samples": 4, "ages": (0, 1), "collapse_steps": 3, "eval_tasks": 4, "live_steps": 3}
    _, values = notebook.app.run(defs={"config": SimpleNamespace(**vars(values["config"]) | small)})
    assert values["weights_apart"] < 1e-6, "the page's loop is the package's"
    assert values["by_hand"] == pytest.approx(values["by_package"], abs=1e-5)
    for name, gradient in values["by_page"].items():
        assert (gradient - values["by_losses"][name]).norm() < 1e-4 * gradient.norm(), name
    assert values["weighted_error"] > 2 * values["fresh_error"]
    assert [step for step, _ in values["plain_series"]["sample size, episodes"]] == [0, 1, 2]
    assert list(values["wall_times"]) == [0, 1, 2, 8, 32]
