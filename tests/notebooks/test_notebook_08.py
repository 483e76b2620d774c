"""Notebook 08: the controller on the page does what the package's does, the reader's rule drives it, and each finding is what was measured."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from test_notebooks import load

from zorplex_rl.course.lesson.plug_in import plug_in
from zorplex_rl.course.recorded_study import read_study
from zorplex_rl.learning.replay import ReplayBuffer
from zorplex_rl.timeline import Span

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "08_rl_e2e.py"
notebook = load(NOTEBOOK)


def settings(**changes) -> SimpleNamespace:
    """Return the page's settings with ``changes``."""
    with patch.object(notebook.mo, "cli_args", dict):  # outside of a run there are none
        _, values = notebook.settings.run()
    return SimpleNamespace(**vars(values["config"]) | changes)


def written_out(*names: str) -> tuple[str, int]:
    """Return the source of these functions without decorators, and its lines."""
    found = {node.name: node for node in ast.parse(NOTEBOOK.read_text()).body if hasattr(node, "name")}
    for name in names:
        found[name].decorator_list = []
    source = "\n\n".join(ast.unparse(found[name]) for name in names)
    return source, sum(bool(line.strip()) for line in source.splitlines())


def test_the_controller_has_at_most_forty_lines():
    assert written_out("train_bare")[1] <= 40


class Endpoint:
    """What ``actor.name.call_one`` is: here a coroutine function of the same process."""

    def __init__(self, function: Callable) -> None:
        self._function = function

    async def call_one(self, *arguments):
        await asyncio.sleep(0)
        return self._function(*arguments)


def episode(number: int, version: int) -> SimpleNamespace:
    return SimpleNamespace(
        task=number, sampled_text=[], tool_calls=0, finish="eos", number=number, version=version, score=None
    )


class Stage:
    """Actors that only keep books, without processes: which group was sampled with which version, and trained on at which step."""

    def __init__(self, group_size: int = 2, patience: int = 40) -> None:
        self.version = self.published = 0
        self.sampled: list[tuple[int, int]] = []
        self.steps: list[list[tuple[int, int]]] = []
        size = group_size

        def generate(request):
            self.sampled += [(number, self.version) for number, _ in request]
            return [(number, [episode(number, self.version) for _ in range(size)]) for number, _ in request]

        def pull():
            self.version = self.published
            return self.version

        def publish():
            self.published += 1
            return self.published

        async def step(episodes, advantages):
            assert len(advantages) == len(episodes)
            # As long as the generator has something that it may do, it does it: the rule alone decides how far it gets.
            for _ in range(patience):
                await asyncio.sleep(0)
            self.steps.append([(e.number, e.version) for e in episodes[::size]])
            return {"lag_max": max(len(self.steps) - 1 - e.version for e in episodes)}

        self.trainer = SimpleNamespace(step=SimpleNamespace(call_one=step), publish=Endpoint(publish))
        self.generator = SimpleNamespace(generate=Endpoint(generate), pull=Endpoint(pull))
        self.dataset = SimpleNamespace(tasks=Endpoint(lambda numbers: [f"task {number}" for number in numbers]))
        self.advantage = SimpleNamespace(compute=Endpoint(lambda rewards: [[0.0 for _ in group] for group in rewards]))
        self.reward = SimpleNamespace(
            score=Endpoint(lambda attempts: [SimpleNamespace(reward=1.0, outcome="success") for _ in attempts])
        )

    @property
    def lags(self) -> list[int]:
        return [step - version for step, groups in enumerate(self.steps) for _, version in groups]


def driven_by(rule, steps: int = 6, per_step: int = 3, max_lag: int = 1) -> Stage:
    """The controller, extracted from the page and run alone with ``rule``."""
    source, _ = written_out("score", "train_bare")
    alone = {"asyncio": asyncio, "SimpleNamespace": SimpleNamespace}
    exec("from zorplex_rl.services.runtime import run_together", alone)
    exec(source, alone)
    stage = Stage()

    async def run():
        async with asyncio.timeout(20):
            await alone["train_bare"](stage, rule, steps, per_step, max_lag, lambda step, metrics: None)

    asyncio.run(run())
    return stage


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_controller_alone_trains_on_every_group_once_and_on_none_that_is_too_old(max_lag):
    stage = driven_by(notebook.may_start_solution, max_lag=max_lag)
    assert [number for groups in stage.steps for number, _ in groups] == list(range(18))
    assert max(stage.lags) == max_lag, "the generator gets as far ahead as it may"


def test_a_wrong_rule_makes_data_too_old_and_a_timid_one_makes_the_loop_take_turns():
    assert max(driven_by(lambda *given: 1000, max_lag=1).lags) > 1

    def timid(version, step, on_the_way, per_step, max_lag):
        return notebook.may_start_solution(version, step, on_the_way, per_step, 0)

    assert max(driven_by(timid, max_lag=3).lags) == 0


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_the_rule_admits_what_the_packages_replay_buffer_admits(max_lag):
    buffer, per_step, numbers = ReplayBuffer(4, max_lag, 400), 4, count()
    on_the_way: list[int] = []
    for step in range(8):
        version = max(0, step - max_lag)
        allowed = notebook.may_start_solution(version, step, len(on_the_way), per_step, max_lag)
        admitted = buffer.admit(version, 400)
        assert len(admitted) == allowed
        on_the_way += [(next(numbers), version) for _ in admitted]
        newest = buffer.admit(step, 400)
        assert len(newest) == notebook.may_start_solution(step, step, len(on_the_way), per_step, max_lag)
        on_the_way += [(next(numbers), step) for _ in newest]
        for number, begun in on_the_way:
            buffer.add(number, begun, "group")
        assert len(buffer.take()) == per_step
        on_the_way = on_the_way[per_step:]


def test_a_rule_that_would_stop_the_loop_for_ever_is_not_plugged_in():
    config = settings()

    def used(attempt):
        return plug_in(
            attempt, notebook.may_start_solution, lambda rule: notebook.keeps_going(rule, config), seconds=0.5
        )[0]

    def never(*given):
        return 0

    def everything(*given):
        return 1000

    def for_ever(*given):
        while True:
            pass

    assert used(everything) is everything, "wrong but harmless: its effect is to be seen"
    for attempt in (notebook.may_start, never, for_ever):
        assert used(attempt) is notebook.may_start_solution


def test_pass_at_k_has_no_bias():
    """Over all ways to draw 2 of 4 attempts with 1 right one, half hold it; the plain formula says 7/16."""
    assert notebook.pass_at_k_solution(4, 1, 2) == pytest.approx(0.5)
    drawn = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, 8, generator=drawn) < 0.2
    estimates = [notebook.pass_at_k_solution(8, int(row.sum()), 4) for row in right]
    assert sum(estimates) / len(estimates) == pytest.approx(1 - 0.8**4, abs=0.01)


def test_a_change_is_clear_only_beyond_its_scatter():
    gain, noise = notebook.paired([0.0] * 20, [1.0] * 10 + [0.0] * 10)
    assert gain == 0.5 and 0.2 < noise < 0.25
    assert notebook.paired([0.3] * 5, [0.3] * 5) == (0.0, 0.0)


def test_native_errors_are_kept_off_the_page(capfd):
    import os

    with notebook.quietly() as lines:
        os.write(2, b"[actor] a process is gone\n\nmore\n")
    assert lines == ["[actor] a process is gone", "more"]
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"


def test_the_recorded_lags_are_those_of_the_slider():
    study = read_study(ROOT / "benchmarks" / "lags.jsonl")
    cells = {(cell.loss, cell.lag) for cell in study.cells()}
    assert cells == {(loss, lag) for loss in notebook.NAMES for lag in settings().slider_lags}
    assert "--out benchmarks/lags.jsonl" in study.command
    accuracies = {(cell.loss, cell.lag): cell.accuracy for cell in study.cells()}
    assert accuracies["grpo", 0] > 0.8


def test_the_recorded_rewards_are_what_the_page_trains():
    config, found = settings(), json.loads((ROOT / "benchmarks" / "shaped_rewards.json").read_text())
    assert found["conditions"]["steps"] == config.hack_steps
    assert found["conditions"]["learning_rate"] == config.hack_rate
    runs = {(run["bonus"], run["penalty"]): run for run in found["runs"]}
    assert len(runs) == len({bonus for bonus, _ in runs}) * len({penalty for _, penalty in runs})
    hacked, harmless = runs[config.hack_bonus, 0.0], runs[0.0, 0.0]
    assert hacked["reward"][-1] > hacked["reward"][0] and hacked["accuracy"][-1] < hacked["accuracy"][0] - 0.2
    assert harmless["accuracy"][-1] > hacked["accuracy"][-1]
    held = runs[config.hack_bonus, config.hack_penalty]
    assert fmean(held["kl"][-3:]) < 0.5 * fmean(hacked["kl"][-3:]), "the page's weight holds the policy back"
    assert fmean(held["accuracy"][-3:]) > fmean(hacked["accuracy"][-3:]) + 0.1
    assert max(penalty for _, penalty in runs) == config.hack_penalty
    strict = runs[0.0, config.hack_penalty]
    assert strict["accuracy"][-1] < harmless["accuracy"][-1] - 0.2, "it holds back honest learning too"
    assert harmless["kl"][-1] > 0.5 * hacked["kl"][-1], "KL alone does not tell learning from a hack"


def test_a_dashboard_of_the_hack_has_only_the_runs_that_it_is_given():
    row = {"reward": 1.5, "accuracy": 0.5, "kl": 0.0, "calls": 2.0, "episodes": []}
    board = notebook.hack_board(2, {"no penalty": [row, row | {"reward": 2.0}]})
    lines = {(metric, run): points for metric, run, points in board.series}
    assert lines["reward", "no penalty"] == [[1, 1.5], [2, 2.0]]
    assert {run for _, run in lines} == {"no penalty"}, "what the penalty does stays folded"


def test_seconds_of_a_phase_are_those_of_its_spans_alone():
    spans = [
        Span("a", "train", 0.0, 3.0),
        Span("a", "train", 4.0, 5.0),
        Span("b", "generate", 0.0, 1.0),
        Span("b", "pull", 1.0, 9.0),
    ]
    assert notebook.phases_of(spans, 2) == {"train": 2.0, "generate": 0.5}


def test_the_solution_does_not_ask_for_a_generator_because_of_rounding():
    assert 3 * 0.1 / 0.1 > 3
    assert notebook.generators_needed_solution(0.1, 0.1, 3) == 3
    assert notebook.generators_needed_solution(0.1, 0.1001, 3) == 3
    assert notebook.generators_needed_solution(0.1, 0.0999, 3) == 4


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    config = settings(
        prompts=3, samples=4, steps=5, eval_every=5, eval_tasks=8, held_out=12, same_steps=2, killed_steps=8,
        pass_tasks=4, pass_samples=8, pass_at=(1, 2, 8), pass_judged=2, kind_tasks=8, hack_steps=2,
    )  # fmt: skip
    _, values = notebook.app.run(defs={"config": config})
    assert values["weights_apart"] == 0.0, "at max_lag 0 the page's controller is the package's"
    assert not values["rule_is_yours"], "the reader has not written one yet"
    assert len(values["bare_run"].rows) == 5
    assert max(values["bare_run"].lags) <= config.max_lag
    assert values["accounts"]["in turns"].oldest == 0
    assert values["accounts"]["side by side"].oldest <= config.max_lag
    assert values["each_once"] and values["balance"] == 0
    assert len(values["native_errors"]) <= 20
    faults = values["diagnosed"]
    assert faults["sound"]["max_logp_difference"] < 1e-4 < faults["a missed pull"]["max_logp_difference"]
    assert faults["not masked"]["trained on"] > faults["sound"]["trained on"]
    assert list(values["passes"]["before"]) == [1, 2, 8]
    assert set(values["hacked"]) == {"no penalty", "with a KL penalty"}
    assert not notebook.PROCESSES
    assert sys.modules["notebook_08_rl_e2e"] is notebook
