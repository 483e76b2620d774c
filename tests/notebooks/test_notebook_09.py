"""Notebook 09: the learner's losses train like the package's, and the recorded runs say what the
page says of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_notebooks import Later

from zorplex_rl.course import nb09
from zorplex_rl.course.recorded_study import Study, read_study
from zorplex_rl.course.staleness import Conditions, Trial, train_with_lag, weights_of
from zorplex_rl.learning.learner import token_logprobs
from zorplex_rl.learning.losses import LOSSES, LossInputs, policy_loss
from zorplex_rl.learning.ratios import effective_sample_size

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "09_staleness.py")


def settings() -> SimpleNamespace:
    return notebook.settings.run()[1]["config"]


def recorded() -> tuple[SimpleNamespace, Study]:
    return settings(), read_study(ROOT / "benchmarks" / "staleness.jsonl")


def test_the_clipped_loss_is_the_package_s_grpo():
    for seed in range(5):
        arguments = nb09.draw_batch(random.Random(seed))
        theirs, _ = policy_loss(LOSSES["grpo"], LossInputs(*arguments))
        assert notebook.Solutions.clipped(*arguments).item() == pytest.approx(
            theirs.item(), rel=1e-5
        )
        theirs, _ = policy_loss(LOSSES["reinforce"], LossInputs(*arguments))
        assert notebook.plain(*arguments).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_page_s_loop_is_the_package_s():
    conditions = replace(
        Conditions(), steps=2, prompts=2, samples=4, held_out_tasks=1, learning_rate=8e-4
    )
    mine = weights_of(
        notebook.train_on_old_data(notebook.plain, 1, conditions, 0, 2, lambda *_: None)
    )
    packaged: dict = {}
    train_with_lag(
        Trial("reinforce", 1, 0),
        conditions,
        watch=lambda learner, _: packaged.update(weights_of(learner.policy)),
    )
    # The package's AdamW is the fused one, which rounds otherwise.
    assert max((mine[name] - packaged[name]).abs().max().item() for name in mine) < 1e-5


def test_the_recorded_runs_are_those_that_the_page_begins():
    config, study = recorded()
    assert study.conditions["steps"] == config.schedule_steps
    assert study.conditions["eval_tasks"] == config.eval_tasks
    assert study.conditions["policy"] == config.policy
    assert ("reinforce", config.lag, config.learning_rate, config.seed) in {
        row.key for row in study.rows
    }


def test_at_this_rate_old_data_alone_are_to_blame_and_clipping_mends_it():
    """The control, on fresh data, learns; with the rate twice as high it would not."""
    config, study = recorded()
    mean = {
        (cell.loss, cell.lag, cell.learning_rate): cell.accuracy for cell in study.cells(seeds=3)
    }
    assert mean["reinforce", 0, config.learning_rate] > 0.9
    assert mean["reinforce", config.lag, config.learning_rate] < 0.3
    assert mean["grpo", config.lag, config.learning_rate] > 0.9
    assert mean["reinforce", 0, 2 * config.learning_rate] < 0.2


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
        trained = notebook.train_on_old_data(loss, 0, conditions, 0, 1, watch)
        return favour(trained, seen[0]) - seen[1]

    return raised_by


def test_what_the_reader_writes_trains_the_policy(one_step):
    """A wrong sign makes the policy worse; a loss of 0 changes nothing."""
    right = one_step(notebook.Solutions.clipped)
    assert right > 0.1
    assert one_step(notebook.Solutions.masked) > 0.1
    assert one_step(lambda *given: -notebook.Solutions.clipped(*given)) < -0.1
    assert one_step(lambda *given: 0 * notebook.Solutions.clipped(*given)) == 0.0


def test_the_sample_sizes_are_the_package_s():
    rows = [torch.tensor([0.1, -0.4]), torch.tensor([0.7]), torch.tensor([0.0, 0.2, -1.0])]
    tokens, episodes = notebook.sample_sizes(rows)
    assert tokens == pytest.approx(effective_sample_size(torch.cat(rows).exp()))
    assert episodes == pytest.approx(
        effective_sample_size(torch.stack([row.sum() for row in rows]).exp())
    )


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    small = {"ages": (0, 1), "steps": 3, "eval_every": 3, "eval_tasks": 4, "schedule_steps": 3}
    _, values = notebook.app.run(defs={"config": SimpleNamespace(**vars(settings()) | small)})
    assert values["worth"] == pytest.approx([70.8, 446.9, 348.8], abs=0.2)
    assert values["own_ratio"] == -values["with_prefix"] == pytest.approx(0.2)
    assert values["chosen_for"]["wrong records"] == "masked"
    assert [step for step, _ in dict(values["plain_curve"].series)["plain, old data"]] == [0, 3]
