"""What stands behind notebook 08: draws that reach every case of the rule, and accounts of runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.course import nb08
from zorplex_rl.policy.load import load_policy
from zorplex_rl.run.timeline import Span, Timeline

pytestmark = pytest.mark.slow


def test_a_group_is_as_old_as_the_versions_between_its_sampling_and_its_step():
    groups = [[[0, 0, 1.0, 0.0], [1, 0, 1.0, 0.0]], [[2, 0, 1.0, 0.0], [3, 1, 1.0, 0.0]]]
    spans = [Span("trainer", "train", step, step + 1, {"step": step, "groups": g}) for step, g in enumerate(groups)]
    assert nb08.lags_of(Timeline([*spans, Span("trainer", "publish", 3, 4, {"version": 1})])) == {0: 3, 1: 1}


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


def test_an_account_has_the_seconds_of_phases_and_the_lags():
    found = nb08.account(run_of((1.0, 2.0, 0), (3.0, 4.0, 0), (5.0, 6.0, 2)), 3)
    assert (found.seconds, found.step, found.train, found.generate) == (6.0, 2.0, 1.0, 1.0)
    assert (found.trainer, found.generator) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (found.lag, found.oldest) == (pytest.approx(1 / 3), 1)


def test_runs_are_drawn_on_one_axis_and_told_in_rows():
    run = run_of((1.0, 2.0, 0), (3.0, 4.0, 1), (5.0, 6.0, 2))
    accounts = {0: nb08.account(run, 3)}
    rows = nb08.rows_of(accounts, {0: 0.5}, 12)
    assert rows[0] == {"": "a step, median", "in turns": "2.00 s"}
    assert rows[-1] == {"": "right of 12 held-out tasks", "in turns": "50%"}
    assert "in turns" in nb08.side_by_side({0: SimpleNamespace(timeline=run)}, 2.0)


def test_by_the_rule_lag_shortens_a_step_until_the_trainer_is_busy_and_the_sentence_follows_what_was_measured():
    def account(step: float) -> SimpleNamespace:
        return SimpleNamespace(step=step, train=0.25, between=1.0)

    accounts = {lag: account(step) for lag, step in {0: 1.25, 1: 1.1, 2: 0.6, 8: 0.4}.items()}
    rows = nb08.foretold_steps(accounts)
    assert [row["by the rule"] for row in rows] == ["1.25 s", "0.62 s", "0.42 s", "0.25 s"]
    assert nb08.gain(accounts).endswith("0.40 s at `max_lag` 8: 3.1 times as fast.")
    run = run_of((1.0, 2.0, 0), (3.0, 4.0, 0), (5.0, 6.0, 2))
    told = nb08.paid({0: nb08.account(run, 3), 1: nb08.account(run.between(0.0, 4.5), 2)}, {0: 0.9, 1: 0.8})
    assert "90% in turns, 80% at lag 1" in told and "had taken 2 of its 3 steps" in told
    assert nb08.gain({0: account(1.0), 1: account(1.2)}).endswith("no faster.")


TWO_CORES = nb08.RunTime(start=5.0, sample=2.0, train=3.0, cores=2)


def lasts(expected: nb08.RunTime = TWO_CORES, **changes) -> float:
    run = Config(services=ServicesConfig(spares=0)).changed(**({"eval_tasks": 1, "eval_every": 1000} | changes))
    return expected.run(run.changed(steps=10))


def test_in_turns_the_phases_of_a_run_add_up_and_side_by_side_the_longer_one_counts():
    assert lasts(max_lag=0) == pytest.approx(5 + 10 * (2 + 3), abs=0.5)
    assert lasts(max_lag=1) == pytest.approx(5 + 10 * 3, abs=0.5)
    one_core = nb08.RunTime(start=5.0, sample=2.0, train=3.0, cores=1)
    assert lasts(one_core, max_lag=1) == pytest.approx(2 * 5 + 10 * (2 + 3), abs=0.5)
    few, many = (lasts(max_lag=0, eval_tasks=64, eval_every=every) for every in (1000, 4))
    assert many - few == pytest.approx(2 * 2 * TWO_CORES.sample)


def test_the_seconds_of_this_machine_are_measured_and_the_policy_stays_as_it_was():
    policy = load_policy()
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    run = Config(task="compositional").changed(prompts_per_step=2, group_size=2, max_tokens=32)
    found = nb08.run_time(run, policy, start=1.0)
    assert found.start == 1.0 and 0 < found.sample < 60 and 0 < found.train < 60
    assert all(weight.grad is None and weight.equal(before[name]) for name, weight in policy.model.named_parameters())
