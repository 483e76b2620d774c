"""Notebook 11: the factors of a ratio, the losses that it trains with, and the page from its first
cell to its last."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_notebooks import load

from zorplex_rl.course import nb11
from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.recorded_study import read_study

ROOT = Path(__file__).parents[2]
notebook = load(ROOT / "notebooks" / "11_laboratory.py")


def settings() -> SimpleNamespace:
    return notebook.settings.run()[1]["config"]


def test_the_gradient_of_the_distillation_loss_is_that_of_the_policy_gradient_with_the_gap_as_cost():
    for seed in range(5):
        logp, teacher, mask, tokens = nb11.draw_tokens(random.Random(seed))
        notebook.distill_solution(logp, teacher, mask, tokens).backward()
        expected = (logp - teacher).detach() * mask / tokens
        assert torch.allclose(logp.grad, expected)


def test_in_the_mean_the_distillation_loss_moves_towards_the_teacher_and_the_bare_gap_nowhere():
    """By enumeration of all tokens: the gradient of the KL, and 0."""
    torch.manual_seed(0)
    logits, teacher = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(5, dtype=torch.float64)
    logp, teacher = logits.log_softmax(0), teacher.log_softmax(0)
    kl = (logp.exp() * (logp - teacher)).sum()
    (wanted,) = torch.autograd.grad(kl, logits, retain_graph=True)
    chance = logp.exp().detach()
    losses = {
        "distill": lambda one: notebook.distill_solution(one[None], teacher[None], chance[None], 1.0),
        "bare": lambda one: ((one - teacher) * chance).sum(),
    }
    found = {name: torch.autograd.grad(loss(logp), logits, retain_graph=True)[0] for name, loss in losses.items()}
    assert torch.allclose(found["distill"], wanted)
    assert found["bare"].abs().max() < 1e-12


def test_the_drawing_asks_what_the_solution_asks():
    told = re.search('aria-label="([^"]*)"', drawing_of("decision.svg"))[1]
    leaves = ["leave it", "mask", "lower the rate", "clip"]
    assert [told.index(leaf) for leaf in leaves] == sorted(told.index(leaf) for leaf in leaves)
    advise, fell, learned = notebook.advise_solution, [0.9, 0.1], [0.1, 0.9]
    found = [
        advise(learned, fell, [1.0]),
        advise(fell, fell, [1.0]),
        advise(fell, fell, [0.0]),
        advise(fell, learned, [0.0]),
    ]
    assert found == leaves


def test_every_recorded_run_gets_advice_and_who_clips_is_better_off():
    study = read_study(ROOT / "benchmarks" / "staleness.jsonl")
    rows = {row["advice"]: row for row in nb11.worth(study, notebook.advise_solution, [0.0])}
    assert sum(row["recorded runs"] for row in rows.values()) == len(study.rows)
    assert rows["clip"]["better with it"] == rows["clip"]["recorded runs"]


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    small = {"steps": 4, "eval_tasks": 8, "taught_steps": 4, "age": 2, "prompts": 2, "samples": 4}
    study = notebook.lab.Conditions(steps=6, schedule_steps=6, learning_rate=4e-4, held_out_tasks=8, prompts=2)
    config = SimpleNamespace(**vars(settings()) | small | {"study": study})
    _, values = notebook.app.run(defs={"config": config})
    assert values["unchanged"].is_equal
    assert values["compared"].change == "--max-lag 8 instead of 1"
    assert values["apart"] < 1e-6
    assert [step for step, _ in values["both"]["distilled"]] == [0, 2, 4]
