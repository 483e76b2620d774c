"""Notebook 09: the learner's losses train like the package's, and the recorded runs say what the
page says of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from drawn_batch import draw_batch
from test_answers import answers, refusals
from test_notebooks import Later
from test_recorded_study import benchmark

from zorplex_rl.course import nb09
from zorplex_rl.course.recorded_study import Study, read_study
from zorplex_rl.course.staleness import Conditions, weights_of
from zorplex_rl.learning.learner import token_logprobs
from zorplex_rl.learning.ratios import effective_sample_size

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "09_staleness.py")


def settings() -> SimpleNamespace:
    return notebook.settings.run()[1]["config"]


def recorded() -> tuple[SimpleNamespace, Study]:
    return settings(), read_study(ROOT / "benchmarks" / "laboratory.jsonl")


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("reinforce", lambda: notebook.plain),
        ("grpo", lambda: notebook.Solutions.clipped),
        ("decoupled_ppo", lambda: notebook.Solutions.corrected),
    ],
)
def test_the_losses_of_the_page_are_the_package_s(name, loss):
    for seed in range(5):
        arguments = draw_batch(random.Random(seed))
        theirs = nb09.packaged(name)(*arguments)
        assert loss()(*arguments).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_page_s_loop_is_the_package_s():
    conditions = replace(
        Conditions(), steps=2, prompts=2, samples=4, held_out_tasks=1, learning_rate=8e-4
    )
    mine = weights_of(nb09.train_on_old_data(notebook.plain, 1, conditions, 0, 2, lambda *_: None))
    packaged: dict = {}
    benchmark.train_with_lag(
        benchmark.Trial("reinforce", 1, 0),
        conditions,
        watch=lambda learner, _: packaged.update(weights_of(learner.policy)),
    )
    # The package's AdamW is the fused one, which rounds otherwise.
    assert max((mine[name] - packaged[name]).abs().max().item() for name in mine) < 1e-5


def test_the_recorded_runs_are_those_that_the_page_begins():
    config, study = recorded()
    assert study.conditions["steps"] == config.schedule_steps
    assert study.conditions["eval_tasks"] == config.curve_tasks
    assert study.conditions["policy"] == config.policy
    assert ("reinforce", config.lag, config.learning_rate, config.seed) in {
        row.key for row in study.rows
    }


def test_at_this_rate_old_data_alone_are_to_blame_and_clipping_mends_it():
    """The control, on fresh data, learns; with the rate twice as high it would not."""
    config, study = recorded()
    mean = {
        (cell.loss, cell.lag, cell.learning_rate): cell.accuracy for cell in study.cells(seeds=5)
    }
    assert mean["reinforce", 0, config.learning_rate] > 0.9
    assert mean["reinforce", config.lag, config.learning_rate] < 0.3
    assert mean["grpo", config.lag, config.learning_rate] > 0.9
    assert mean["reinforce", 0, 2 * config.learning_rate] < 0.2


def test_what_the_page_says_of_its_table_holds_in_the_study():
    config, study = recorded()
    mean = {
        (nb09.NAMES.get(cell.loss), cell.lag): cell.accuracy
        for cell in study.cells(seeds=5)
        if cell.learning_rate == config.learning_rate
    }
    assert min(mean[name, 0] for name in nb09.NAMES.values()) > 0.9, "the controls learn"
    bearing = {"clipped", "masked by difference"}
    assert min(mean[name, 32] for name in bearing) > 0.8
    assert max(mean[name, 32] for name in {*nb09.NAMES.values()} - bearing) < 0.65
    assert mean["corrected", 8] > 0.9 > 0.65 > mean["corrected", 32]
    ends = nb09.at_each_lag(study, config.learning_rate, ("grpo", "decoupled_ppo", "dppo"))
    by_difference = ends["masked by difference"]
    assert min(by_difference[32]) < max(by_difference[8]), "no better at lag 32 than at 8"
    clipped = ends["clipped"]
    assert min(clipped[8]) < max(ends["corrected"][8]), "no clear difference at lag 8"
    ends = nb09.at_each_lag(study, config.learning_rate, ("reinforce", "decoupled_ppo", "icepop"))
    others = [end for lags in ends.values() for end in lags[32]]
    assert min(clipped[32]) > max(others), "every seed is above those of the other three"
    assert min(clipped[32]) - max(ends["corrected"][32]) < 0.03, "only just above"


def test_a_small_lag_costs_the_clipped_loss_nothing_and_a_large_one_something():
    config, study = recorded()
    ends = nb09.at_each_lag(study, config.learning_rate, ("reinforce", "grpo"))
    assert fmean(ends["clipped"][2]) > fmean(ends["clipped"][0]) - 0.02
    assert fmean(ends["plain"][2]) < fmean(ends["plain"][0]) - 0.1
    assert fmean(ends["clipped"][32]) < fmean(ends["clipped"][0]) - 0.1


@pytest.fixture(scope="module")
def one_step() -> Callable[..., float]:
    """By how much one step of 09's loop with this loss raises Σ A log π of its batch."""

    def raised_by(loss) -> float:
        seen = []

        def favour(policy, batches) -> float:
            with torch.no_grad():
                return sum(
                    (b.advantage @ token_logprobs(policy, b)[0]).sum().item() for b in batches
                )

        def watch(step, policy, batches):
            seen.extend((batches, favour(policy, batches)))

        conditions = Conditions(steps=1, prompts=2, samples=6, warmup_steps=0)
        trained = nb09.train_on_old_data(loss, 0, conditions, 0, 1, watch)
        return favour(trained, seen[0]) - seen[1]

    return raised_by


def test_what_the_reader_writes_trains_the_policy(one_step):
    """A wrong sign makes the policy worse; a loss of 0 changes nothing."""
    right = one_step(notebook.Solutions.clipped)
    assert right > 0.1
    assert one_step(notebook.Solutions.corrected) > 0.1
    assert one_step(lambda *given: -notebook.Solutions.clipped(*given)) < -0.1
    assert one_step(lambda *given: 0 * notebook.Solutions.clipped(*given)) == 0.0


def test_of_a_bad_token_that_became_likelier_the_clipped_loss_has_no_bound():
    """The page asks which of four losses pushes hardest at π/μ = 6."""
    losses = (
        notebook.plain,
        notebook.Solutions.clipped,
        notebook.Solutions.corrected,
        nb09.packaged("icepop"),
    )
    pushed = [nb09.push(loss, -1.0, 1.0, 6.0) or 0.0 for loss in losses]
    assert pushed == pytest.approx([1.0, 6.0, 2.0, 0.0], abs=1e-4)


def test_clipped_is_the_first_loss_that_stops_a_token_on_its_way_from_mu():
    """The reveal says at which r = π/μ each of four losses stops a good token, and a bad one."""
    losses = [
        (1.2, 0.8, notebook.Solutions.clipped),
        (5.0, 0.5, nb09.packaged("icepop")),
        (math.inf, 0.0, notebook.Solutions.corrected),
        (math.inf, 0.0, notebook.plain),
    ]
    for highest, lowest, loss in losses:
        for r in (1.1, 1.3, 4.9, 5.1, 30.0):
            assert bool(nb09.push(loss, 1.0, 1.0, r)) == (r < highest)
        for r in (0.9, 0.7, 0.51, 0.49, 0.03):
            assert bool(nb09.push(loss, -1.0, 1.0, r)) == (r > lowest)


def test_the_sample_size_is_the_package_s():
    logs = [0.1, -0.4, 0.7, 2.0]
    assert notebook.Solutions.sample_size(logs) == pytest.approx(
        effective_sample_size(torch.tensor(logs).exp())
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("clipped_without_the_minimum", "a token may not come back"),
        ("clipped_around_the_start_of_the_step", "it compares π with π₀"),
        ("clipped_without_exp", "`exp` is missing"),
        ("corrected_without_the_weight", "the weight π₀/μ is missing"),
        ("corrected_around_mu", "its ratio is π/μ, and should be π/π₀"),
        ("corrected_lets_a_gradient_through_the_weight", "a gradient flows through the weight"),
        ("corrected_clips_the_product", "you clipped the product of weight and ratio"),
    ],
)
def test_a_wrong_loss_is_told_by_one_token_and_by_its_mistake(wrong, told):
    name = wrong.split("_")[0]
    (said,) = refusals("09", name, [getattr(answers("09"), wrong)]).values()
    assert told in said.partition(". ")[0]
    assert "One token with A = " in said and "multiplies A ∇ log π by" in said
    assert len(said) < 260 and "[[" not in said


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("clipped_without_the_second_axis", "write `advantage[:, None]`"),
        ("clipped_divides_by_the_mask", "not by `tokens`, those of the whole batch"),
        ("clipped_ignores_the_mask", "it also counts tokens that were not sampled"),
        ("clipped_is_a_mean_over_the_batch", "it divides by all places"),
    ],
)
def test_what_one_token_cannot_show_is_told_by_two_episodes_of_two_tokens(wrong, told):
    (said,) = refusals("09", "clipped", [getattr(answers("09"), wrong)]).values()
    assert told in said.partition(". ")[0]
    assert nb09.SMALL_BATCH in said and len(said) < 400


def test_logarithms_taken_for_ratios_are_named():
    wrong = answers("09").sample_size_takes_logarithms_for_ratios
    assert (
        "you took the logarithms for ratios"
        in refusals("09", "sample_size", [wrong])[wrong.__name__]
    )


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    small = {"ages": (0, 1), "steps": 3, "eval_every": 3, "curve_tasks": 4, "eval_tasks": 8}
    _, values = notebook.app.run(defs={"config": SimpleNamespace(**vars(settings()) | small)})
    assert values["worth"] == pytest.approx(348.8, abs=0.2)
    assert values["own_ratio"] == -values["with_prefix"] == pytest.approx(0.2)
    assert set(values["saved"]) == {"clipped, old data", "corrected, old data"}
    assert [step for step, _ in dict(values["plain_curve"].series)["plain, old data"]] == [0, 3]
