"""What stands behind notebook 08: accounts of runs, and sentences that follow what was measured."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from zorplex_rl.config import Config
from zorplex_rl.course import nb08
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.requests import Sampling, held_out_requests
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.task.environment import ZORPLEX

pytestmark = pytest.mark.slow


def run_of(*steps: tuple[float, float, int]) -> Timeline:
    """Steps of one group each, as (begin, end, version of the group), each after a second of
    sampling."""
    return Timeline(
        [Span("generator_0", "generate", begin - 1.0, begin) for begin, _, _ in steps]
        + [
            Span("trainer", "train", begin, end, {"step": number, "groups": [(number, version)]})
            for number, (begin, end, version) in enumerate(steps)
        ]
    )


def test_an_account_has_the_seconds_of_a_step_and_of_its_phases():
    found = nb08.account(run_of((1.0, 2.0, 0), (3.0, 4.0, 0), (5.0, 6.0, 2)))
    phases = {"between": 1.0, "step": 2.0, "train": 1.0, "generate": 1.0}
    assert vars(found) == phases | {"ended": [2.0, 4.0, 6.0]}


def test_runs_are_drawn_on_one_axis():
    run = run_of((1.0, 2.0, 0), (3.0, 4.0, 1), (5.0, 6.0, 2))
    short = run_of((1.0, 2.0, 0), (2.0, 3.0, 0))
    drawn = nb08.side_by_side({0: run, 4: short})
    assert "in turns" in drawn and "the same 1 seconds of each" in drawn
    assert "max_lag 4: generator_0 100%, trainer 100%" in drawn, "no empty end"


def learned_from(accuracy) -> tuple[float, dict[int, SimpleNamespace]]:
    runs = {
        0: run_of(*((2.0 * n + 1, 2.0 * n + 2, n) for n in range(6))),
        4: run_of((1.0, 2.0, 0), (2.0, 3.0, 0), (3.0, 4.0, 0), (4.0, 5.0, 0), (5.0, 6.0, 0)),
    }
    return nb08.learned(runs, accuracy)


def test_by_the_clock_each_run_is_examined_when_the_fastest_one_was_over():
    examined = []

    def accuracy(lag, version):
        examined.append((lag, version))
        return 0.1 * version

    over, found = learned_from(accuracy)
    assert over == 6.0
    assert {lag: (run.taken, run.by_then, run.at_end) for lag, run in found.items()} == {
        0: (3, pytest.approx(0.3), pytest.approx(0.6)),
        4: (5, pytest.approx(0.5), pytest.approx(0.5)),
    }
    assert found[0].teaches == pytest.approx(10.0)
    assert (4, 5) in examined and (0, 6) in examined and (0, 3) in examined


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (0.9, "In this one run asynchrony paid: after 6 s, 30% ± 6"),
        (0.31, "In this one run asynchrony made no clear difference"),
        (0.05, "In this one run asynchrony did not pay"),
    ],
)
def test_the_verdict_is_that_of_the_clock_and_may_be_no(old, said):
    over, found = learned_from(lambda lag, version: old if lag else 0.1 * version)
    apart, told = nb08.paid(over, found, 200)
    assert said in told and (apart == 0) == ("no clear" in said)
    assert [row["run"] for row in nb08.three_things(over, found, 200)] == ["in turns", "max_lag 4"]


@pytest.mark.parametrize("is_there", [True, False])
def test_the_real_model_runs_if_it_is_there(monkeypatch, is_there):
    monkeypatch.setattr(nb08, "real_model", lambda: "embedded" if is_there else None)
    config = SimpleNamespace(policy="embedded", samples=8, device="cpu", seed=0, real_steps=4)
    run = nb08.real_run(config)
    assert run.task == ("simple" if is_there else "compositional")
    assert run.max_lag == 1


def test_the_generator_is_asked_the_first_question_with_its_newest_weights():
    policy, asked = load_policy("embedded"), []

    async def pull():
        asked.append("pull")

    async def evaluate(tasks):
        asked.append("evaluate")
        return rollout(policy, held_out_requests(tasks), ZORPLEX.execute, Sampling(max_tokens=96))

    generator = SimpleNamespace(
        pull=SimpleNamespace(call_one=pull), evaluate=SimpleNamespace(call_one=evaluate)
    )
    run = Config(policy="embedded", group_size=4)
    found = asyncio.run(nb08.answer(SimpleNamespace(generator=generator), run))
    assert asked == ["pull", "evaluate"]
    assert found["question"].startswith("What is lurp - grix? Right ")
    assert found["question"].endswith("of 4, most often so:")
