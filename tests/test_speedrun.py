"""The speedrun: an entry trains until enough is right, and only its training counts."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import re
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from zorplex_rl.task.environment import Zorplex

SPEEDRUN = Path(__file__).parents[1] / "speedrun"
ENTRIES = [
    pytest.param(
        file, id=file.stem, marks=pytest.mark.slow if file.stem == "baseline" else pytest.mark.long
    )
    for file in sorted((SPEEDRUN / "entries").glob("*.py"))
]
TINY = """
import torch
from zorplex_rl.learning.train_simple import compare, play, policy_gradient
from zorplex_rl.task.environment import Zorplex

def train(policy, tasks, seed):
    optimizer = torch.optim.SGD(policy.model.parameters(), 1e-3)
    for step in range(2):
        episodes = play(policy, Zorplex(), [tasks[step]] * 2, seed + 2 * step)
        policy_gradient(policy, episodes, compare([e.scored.reward for e in episodes])).backward()
        optimizer.step()
        yield
"""
IDLE = "def train(policy, tasks, seed):\n    yield from range(3)\n"


@pytest.fixture
def run(monkeypatch):
    """The program, with few tasks and an accuracy that every policy has."""
    spec = importlib.util.spec_from_file_location("run", SPEEDRUN / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    module.HELD_OUT_TASKS, module.LOOK_TASKS, module.TARGET = 8, 4, 0.0
    return module


@pytest.fixture
def entry(monkeypatch, tmp_path):
    """Write the text of an entry. Returns its file."""

    def write(text: str) -> Path:
        monkeypatch.delitem(sys.modules, "my_entry", raising=False)
        file = tmp_path / "my_entry.py"
        file.write_text(text)
        return file

    return write


@pytest.mark.long
def test_an_entry_is_timed_on_each_seed_and_gets_a_line(run, entry, capsys):
    assert run.main(entry(TINY), seeds=2) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["seed 1", "seed 2"]
    assert re.fullmatch(r"\| \d{4}-\d\d-\d\d \| `my_entry` \| \d+\.\d \| 1 \| 2 \|", said[2])


@pytest.mark.slow
def test_an_entry_that_ends_before_enough_is_right_gets_no_line(run, entry, capsys):
    run.TARGET = 1.2
    assert run.main(entry(IDLE), seeds=2) == 1
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.slow
def test_the_clock_stands_while_held_out_tasks_are_sampled(run, entry):
    train, began = run.load_entry(entry(IDLE)), time.perf_counter()
    arrival = run.time_entry(train)
    assert arrival.steps == 1
    assert arrival.seconds < 0.1 * (time.perf_counter() - began)


@pytest.mark.long
def test_an_entry_replaces_how_the_loop_compares_episodes_or_what_it_does_with_the_gradient(
    run, monkeypatch, embedded
):
    monkeypatch.syspath_prepend(str(SPEEDRUN / "entries"))
    loop = importlib.import_module("baseline").Baseline

    class AllAlike(loop):
        def advantages(self, group):
            return [[0.0] * len(episode.token_ids) for episode in group]

    class Idle(loop):
        def update_weights(self, step):
            pass

    def after_a_step(kind):
        entry = kind(copy.deepcopy(embedded), Zorplex(7).tasks(run.KINDS, 8), seed=3)
        next(entry.train())
        is_pushed = any(parameter.grad.any() for parameter in entry.parameters)
        before = embedded.model.parameters()
        is_changed = any(
            not one.equal(other) for one, other in zip(entry.parameters, before, strict=True)
        )
        return is_pushed, is_changed

    assert after_a_step(loop) == (True, True)
    assert after_a_step(AllAlike) == (False, False)
    assert after_a_step(Idle) == (True, False)


@pytest.mark.parametrize("file", ENTRIES)
def test_each_entry_trains_the_policy_that_it_is_given(run, file, embedded):
    policy, tasks = copy.deepcopy(embedded), Zorplex(7).tasks(run.KINDS, 8)
    before = copy.deepcopy(policy.model.state_dict())
    with closing(run.load_entry(file)(policy, tasks, 3)) as steps:
        next(steps)
        next(steps)
    after = policy.model.state_dict()
    assert any(not after[name].equal(values) for name, values in before.items())
    assert all(values.isfinite().all() for values in after.values())
