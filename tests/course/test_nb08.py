"""What stands behind notebook 08: accounts of runs, and sentences that follow what was measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zorplex_rl.config import Config
from zorplex_rl.course import nb08
from zorplex_rl.run.timeline import Span, Timeline

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


def test_an_account_has_the_seconds_of_a_step_and_of_its_phases_and_the_oldest_lag():
    found = nb08.account(run_of((1.0, 2.0, 0), (3.0, 4.0, 0), (5.0, 6.0, 2)))
    phases = {"between": 1.0, "step": 2.0, "train": 1.0, "generate": 1.0}
    assert vars(found) == phases | {"ended": [2.0, 4.0, 6.0], "oldest": 1}


def test_the_middle_of_a_run_has_as_many_batches_as_steps():
    beside = [Span("generator_0", "generate", start, start + 2.0) for start in (0.0, 2.0, 4.0)]
    steps = [
        Span("trainer", "train", 2.0 + 2 * n, 4.0 + 2 * n, {"step": n, "groups": [(n, 0)]})
        for n in range(3)
    ]
    found = nb08.account(nb08.steady(Timeline([*beside, *steps]), 1))
    assert (found.step, found.train, found.generate) == (2.0, 2.0, 2.0)


def test_runs_are_drawn_on_one_axis_and_told_in_rows():
    run, settings = run_of((1.0, 2.0, 0), (3.0, 4.0, 1), (5.0, 6.0, 2)), Config(threads=2)
    (row,) = nb08.phases({0: nb08.account(run)}, {0: settings})
    assert row == {
        "run": "in turns",
        "threads of each": "2",
        "sampling": "1.00 s",
        "training": "1.00 s",
        "a step": "2.00 s",
    }
    assert "in turns" in nb08.side_by_side({0: run}, 2.0)


@pytest.mark.parametrize(
    ("busy", "slow", "said"),
    [
        (
            (4.0, 5.0),
            (1.5, 0.5),
            "was 3.0 times as fast (the small policy, `max_lag` 4); with tools that answer at once, 25% slower (SmolLM2,",
        ),
        (
            (4.0, 2.0),
            (1.5, 0.5),
            "with tools that answer at once, 2.0 times as fast (SmolLM2, `max_lag` 1)",
        ),
        ((4.0, 5.0), (1.5, 1.5), "not what makes asynchrony pay"),
    ],
)
def test_the_sentence_follows_what_was_measured(busy, slow, said):
    def runs(turns: float, beside: float, lag: int) -> dict[int, SimpleNamespace]:
        return {of: SimpleNamespace(step=step) for of, step in ((0, turns), (lag, beside))}

    assert said in nb08.pays(runs(*busy, 1), runs(*slow, 4), "SmolLM2")


def test_by_the_clock_the_run_in_turns_is_read_off_where_the_other_one_was_over():
    runs = {
        0: run_of(*((2.0 * n + 1, 2.0 * n + 2, n) for n in range(6))),
        4: run_of((1.0, 5.0, 0), (6.0, 9.0, 0)),
    }
    curves = {
        "in turns": [(step, 0.1 * step) for step in range(1, 7)],
        "max_lag 4": [(1, 0.4), (2, 0.6)],
    }
    said = nb08.by_the_clock(runs, curves)
    assert (
        "after 9 s, 50% of its last" in said
        and "had taken 4 of 6 steps by then, and was at 30%" in said
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_where_nobody_waits_the_real_model_runs_if_it_is_there_with_all_cores_in_turns(
    monkeypatch, is_there
):
    monkeypatch.setattr(nb08, "real_model", lambda: "embedded" if is_there else None)
    monkeypatch.setattr("zorplex_rl.policy.auto.cores", lambda: 4)
    monkeypatch.setattr("zorplex_rl.policy.auto.SMALL_BYTES", 0 if is_there else 1e8)
    config = SimpleNamespace(policy="embedded", samples=8, device="cpu", seed=0, busy_steps=4)
    turns, beside = nb08.busy_run(config, 0), nb08.busy_run(config, 1)
    assert (turns.threads, beside.threads) == ((4, 2) if is_there else (1, 1))
    assert turns.task == ("simple" if is_there else "compositional")
