"""The seconds of a run are sums of its parts. The parts are tested in `test_step_time.py`."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import pytest

from zorplex_rl.cli.size import run_time
from zorplex_rl.config import Config, ServicesConfig
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.presets import PRESETS
from zorplex_rl.sizing.run_time import RunTime

TWO_CORES = RunTime(start=5.0, sample=2.0, train=3.0, cores=2)
NO_EVALUATION = {"eval_tasks": 1, "eval_every": 1000}


def run_of(**changes):
    return Config(services=ServicesConfig(spares=0)).changed(**({"steps": 10} | NO_EVALUATION | changes))


def test_in_turns_the_phases_add_up_and_side_by_side_the_longer_one_counts():
    in_turns, beside = TWO_CORES.run(run_of(max_lag=0)), TWO_CORES.run(run_of(max_lag=1))
    assert in_turns == pytest.approx(5 + 10 * (2 + 3), abs=0.5)
    assert beside == pytest.approx(5 + 10 * 3, abs=0.5)


def test_one_core_gains_nothing_from_two_processes():
    one_core = RunTime(start=5.0, sample=2.0, train=3.0, cores=1)
    assert one_core.run(run_of(max_lag=1)) == pytest.approx(2 * 5 + 10 * (2 + 3), abs=0.5)


def test_evaluations_before_during_and_after_are_counted():
    evaluation = TWO_CORES.sampling(2 * 64, Config())
    few, many = (TWO_CORES.run(run_of(max_lag=0, eval_tasks=64, eval_every=every)) for every in (1000, 4))
    assert many - few == pytest.approx(2 * evaluation)


def test_this_machine_takes_longer_for_a_larger_model():
    work = Config().changed(prompts_per_step=2, group_size=2, max_tokens=8, token_budget=256)
    small = PRESETS["embedded"].shape
    large = replace(small, layers=8, hidden=512, heads=8, intermediate=1536)
    times = [RunTime.here(work, shape, 40, start=1.0, seconds=0.001) for shape in (small, large)]
    assert times[1].train > 3 * times[0].train
    assert times[1].sample > 2 * times[0].sample


def test_of_a_policy_of_another_family_no_seconds_are_told(tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(EMBEDDED_PATH, folder)
    of_another_family = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_head": 4,
        "n_embd": 128,
        "vocab_size": 533,
    }
    (folder / "config.json").write_text(json.dumps(of_another_family))
    assert math.isnan(run_time(Config(policy=str(folder)), start=1.0).run(Config()))
