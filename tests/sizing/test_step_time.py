"""How long a step takes: operations and bytes by hand, and a machine that is really measured."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from torch.overrides import _len_torch_function_stack

from zorplex_rl.sizing import step_time
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.step_time import Machine, calibrate, sample_seconds, train_seconds
from zorplex_rl.sizing.workload import Workload

SHAPE = ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, intermediate=16, vocabulary=100)
WEIGHTS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)
"""Of the matrices of both layers: queries, keys and values, output, MLP."""
WORK = Workload(prompt=5, response=4, prompts=1, group_size=2, token_budget=100, slots=2, tasks=1)
INFINITE = Machine(*[float("inf")] * 9, call=0.0)


def test_a_training_step_has_six_operations_for_each_weight_and_token():
    tokens = 2 * 3 + 5  # The first token of a response comes from the prompt's last state.
    parts = train_seconds(SHAPE, WORK, replace(INFINITE, product=1.0))
    assert parts["matrix products"] == 6 * WEIGHTS * tokens == sum(parts.values())


def test_attention_has_twelve_for_each_pair_of_positions_and_the_output_layer_six_for_each_sampled_token():
    parts = train_seconds(SHAPE, WORK, replace(INFINITE, attention=1.0, logits=1.0))
    assert parts["attention"] == 2 * 12 * 8 * (2 * 3 * (5 + 3) + 5 * 5)
    assert parts["logits"] == 6 * 100 * 8 * 2 * 4


def test_gradients_are_fresh_memory_in_every_update_and_those_of_a_tied_table_are_two():
    parts = train_seconds(SHAPE, WORK, replace(INFINITE, fresh=1.0), updates=3)
    assert parts["fresh memory"] == sum(parts.values()) == 3 * 4 * (SHAPE.parameters + SHAPE.vocabulary * SHAPE.hidden)


def test_every_update_takes_as_long_and_micro_batches_add_up():
    machine = Machine(*[1.0] * 9, call=1.0)
    once, twice = (sum(train_seconds(SHAPE, WORK, machine, updates).values()) for updates in (1, 2))
    assert twice == 2 * once
    # The prompt runs again in the second micro-batch.
    split = train_seconds(SHAPE, replace(WORK, token_budget=9), replace(INFINITE, product=1.0))
    assert split["matrix products"] == 6 * WEIGHTS * (2 * 3 + 2 * 5)


def test_a_decode_step_has_two_operations_for_each_weight_and_row():
    parts = sample_seconds(SHAPE, WORK, replace(INFINITE, decode=1.0))
    assert parts["matrix products"] == sum(parts.values()) == 3 * 2 * (WEIGHTS + 800) * 2
    # With one slot for two episodes a step has one row. With two for three, it has one and a half
    # on average.
    one = replace(WORK, slots=1)
    assert sample_seconds(SHAPE, one, replace(INFINITE, decode=1.0), steps=6)["matrix products"] == 6 * 2 * (
        WEIGHTS + 800
    )
    three = replace(WORK, group_size=3)
    assert sample_seconds(SHAPE, three, replace(INFINITE, decode=1.0))["matrix products"] == 6 * 3 * (WEIGHTS + 800)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_this_machine_can_be_measured(dtype):
    work = replace(WORK, dtype=dtype)
    machine = calibrate(SHAPE, work, seconds=0.005)
    assert all(0 < speed < float("inf") for speed in asdict(machine).values())
    assert machine.call < 0.01
    assert 0 < sum(train_seconds(SHAPE, work, machine).values()) < 10


def test_on_a_cpu_nothing_stands_between_the_measured_calls_and_torch(monkeypatch):
    found = []

    def measure(*_):
        found.append(_len_torch_function_stack())

    monkeypatch.setattr(step_time, "_calibrate", measure)
    calibrate(SHAPE, WORK)
    assert found == [0], "a block such as torch.device's doubles the time of a small call"
