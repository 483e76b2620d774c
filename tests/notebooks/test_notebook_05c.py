"""Notebook 05c: its estimators have no bias, what it trains is what was recorded, and it runs from
its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from test_notebooks import Later

from zorplex_rl.course import nb05c
from zorplex_rl.learning.losses import kl_penalty
from zorplex_rl.task.rewards import accuracy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "05c_judging_a_run.py")


def settings(**changes) -> SimpleNamespace:
    """Return the page's settings with ``changes``."""
    with patch.object(notebook.mo, "cli_args", dict):  # outside of a run there are none
        _, values = notebook.settings.run()
    return SimpleNamespace(**vars(values["config"]) | changes)


def test_pass_at_k_has_no_bias():
    """Over all ways to draw 2 of 4 attempts with 1 right one, half hold it; the plain formula says
    7/16."""
    assert notebook.Solutions.pass_at_k(4, 1, 2) == pytest.approx(0.5)
    drawn = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, 8, generator=drawn) < 0.2
    estimates = [notebook.Solutions.pass_at_k(8, int(row.sum()), 4) for row in right]
    assert sum(estimates) / len(estimates) == pytest.approx(1 - 0.8**4, abs=0.01)


def test_a_change_is_clear_only_beyond_its_scatter():
    gain, noise = notebook.Solutions.change([0.0] * 20, [1.0] * 10 + [0.0] * 10)
    assert gain == 0.5 and 0.2 < noise < 0.25
    assert notebook.Solutions.change([0.3] * 5, [0.3] * 5) == (0.0, 0.0)


def test_the_kl_of_the_page_is_what_the_package_s_penalty_computes():
    ours = nb05c.as_tensors(
        [-1.0, -0.5, 0.0, -3.0], [-2.0, -0.4, -9.0, -1.0], [True, True, False, True]
    )
    package = kl_penalty(*(tensor[None] for tensor in ours))
    assert notebook.Solutions.kl(*ours).item() == pytest.approx(package.item())
    assert notebook.Solutions.kl(ours[0], ours[0], ours[2]) == 0


def test_the_recorded_runs_begin_as_this_page_trains():
    """The whole runs give the recorded numbers, too; two steps of them are quick."""
    config, found = (
        settings(),
        json.loads((ROOT / "benchmarks" / "shaped_rewards.json").read_text()),
    )
    assert found["conditions"] == {
        "steps": config.hack_steps,
        "learning_rate": config.learning_rate,
        "seed": 0,
    }
    run = next(
        run for run in found["runs"] if (run["bonus"], run["penalty"]) == (config.hack_bonus, 0.0)
    )
    steps = list(notebook.train(config, notebook.shaped(config.hack_bonus), 2))
    assert [step.reward for step in steps] == pytest.approx(run["reward"][:2], abs=0.05)
    assert [accuracy(step.episodes) for step in steps] == pytest.approx(
        run["accuracy"][:2], abs=0.05
    )
    apart = [
        notebook.Solutions.kl(*nb05c.tokens_of(step.episodes, step.before)).item() for step in steps
    ]
    assert apart[0] == pytest.approx(0, abs=1e-4) and apart[1] > 1e-5, (
        "the first episodes are the reference's own"
    )


def test_the_recorded_runs_show_what_the_page_says_of_them():
    config, runs = settings(), nb05c.recorded_runs()["runs"]
    found = {(run["bonus"], run["penalty"]): run for run in runs}
    assert len(found) == len({bonus for bonus, _ in found}) * len({penalty for _, penalty in found})
    hacked, harmless = found[config.hack_bonus, 0.0], found[0.0, 0.0]
    assert list(nb05c.TWO) == [0.0, config.hack_bonus]
    assert harmless["reward"][-1] > harmless["reward"][0], "the page's first figure"
    assert (
        hacked["reward"][-1] > hacked["reward"][0]
        and hacked["accuracy"][-1] < hacked["accuracy"][0] - 0.2
    )
    held = found[config.hack_bonus, config.hack_penalty]
    assert fmean(held["kl"][-3:]) < 0.5 * fmean(hacked["kl"][-3:]), (
        "the page's weight holds the policy back"
    )
    assert max(penalty for _, penalty in found) == config.hack_penalty
    strict = found[0.0, config.hack_penalty]
    assert strict["accuracy"][-1] < harmless["accuracy"][-1] - 0.2, (
        "it holds back honest learning too"
    )
    assert harmless["kl"][-1] > 0.5 * hacked["kl"][-1], (
        "KL alone does not tell learning from a hack"
    )


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    config = settings(
        prompts=3, samples=4, steps=3, held_out=12, pass_tasks=4, pass_samples=8, pass_at=(1, 2, 8), pass_judged=2,
        kind_tasks=8, hack_steps=2,
    )  # fmt: skip
    _, values = notebook.app.run(defs={"config": config})
    for whose in ("whose_paired", "whose_estimator", "whose_distance"):
        assert "the course's" in values[whose]
    assert list(values["passes"]["before"]) == [1, 2, 8]
    assert set(values["kinds"]) == {"simple", "multi_step", "recursive"}
    assert {penalty: len(rows) for penalty, rows in values["hacked"].items()} == {
        0.0: 2,
        config.hack_penalty: 2,
    }
    gain = values["new"][0].accuracy - values["old"][0].accuracy
    assert sum(values["lost"]) == pytest.approx(gain), "what mistakes lose, right answers gain"
