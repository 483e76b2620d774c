"""What a model needs in memory: the arithmetic by hand, against autograd, and against a process that
was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from zorplex_rl.course.nb10 import make_model
from zorplex_rl.learning.batches import split_by_tokens
from zorplex_rl.sizing import measured, memory
from zorplex_rl.sizing.measured import available_memory, measure
from zorplex_rl.sizing.memory import BatchShape, Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape

SMALL = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=500)
QWEN = ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936)
GB = 10**9


def test_the_parts_that_stay_are_those_of_the_zero_paper():
    """Mixed precision with Adam: 2 + 2 bytes there, and 12 in the optimizer; here the gradients are
    float32."""
    n = SMALL.parameters
    low = trainer_memory(SMALL, Workload(dtype="bfloat16", transfer="bfloat16")).phases["update"]
    assert (low["weights"], low["masters"], low["moments"], low["gradients"]) == (2 * n, 4 * n, 8 * n, 4 * n)
    assert low["weight ring"] == 3 * 2 * n
    full = trainer_memory(SMALL, Workload()).phases["update"]
    assert (full["weights"], full["masters"], full["moments"], full["gradients"]) == (4 * n, 0, 8 * n, 4 * n)


def test_each_zero_stage_divides_one_more_part():
    n, work = SMALL.parameters, Workload(dtype="bfloat16")
    found = [trainer_memory(SMALL, work, 4, stage).phases["update"] for stage in range(4)]
    assert [part["moments"] for part in found] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [part["masters"] for part in found] == [4 * n, n, n, n]
    assert [part["gradients"] for part in found] == [4 * n, 4 * n, n, n]
    assert [part["weights"] for part in found] == [2 * n, 2 * n, 2 * n, 2 * n // 4]


def test_a_token_by_hand():
    """One layer, one row after one prompt: every tensor that autograd keeps, counted by hand."""
    shape = ModelShape(layers=1, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=10)
    batch = BatchShape(prompts=1, prompt=3, rows=1, response=5)
    tokens = 3 + 4
    norms, mlp, queries_and_outputs = 6 * 8 * tokens, 4 * 16 * tokens, 2 * 8 * tokens
    keys_and_values = 2 * 8 * 7 + 2 * 4 * 3  # of the response repeated for all heads, of the prompt not
    mask = 4 * 7
    ends = 3 * 8 * tokens
    by_hand = 4 * (norms + mlp + queries_and_outputs + keys_and_values + mask + ends)
    assert memory.activation_bytes(shape, batch, "float32") == by_hand
    assert memory.logit_bytes(shape, batch) == 4 * 4 * 5 * 10


@pytest.mark.parametrize(
    ("prompt", "response", "budget"), [(100, 96, 8192), (300, 20, 1000), (50, 400, 300), (1, 1, 1)]
)
def test_the_micro_batches_are_those_of_the_trainer(prompt, response, budget):
    found = Workload(prompt, response, prompts=4, group_size=8, token_budget=budget).micro_batches
    assert [batch.rows for batch, count in found for _ in range(count)] == [
        len(part) for part in split_by_tokens([response] * 32, budget, prompt)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_autograd_keeps_the_activations_that_are_counted(kv_heads, dtype, tmp_path):
    """Every storage that a backward pass needs, once. A single key head is expanded for the query
    heads, which copies nothing."""
    from transformers import Qwen2ForCausalLM

    from zorplex_rl.learning import batches, learner

    shape = replace(SMALL, kv_heads=kv_heads, layers=4)
    make_model(shape, tmp_path)
    model = Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    rows, prompt, response = 6, 40, 50
    zeros = torch.zeros(rows, response)
    batch = batches.MicroBatch(
        tuple(range(rows)), torch.ones(2, prompt).long(), torch.tensor([prompt] * 2), torch.tensor([0, 1] * 3), zeros.long(), zeros, zeros, zeros,
        torch.ones(rows),
    )  # fmt: skip
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = learner.response_states(model, batch)
    assert states.requires_grad
    computed = memory.activation_bytes(shape, BatchShape(2, prompt, rows, response), dtype)
    assert computed == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.1)


@pytest.mark.slow
def test_a_measured_process_takes_what_was_computed(tmp_path):
    shape = ModelShape(layers=6, hidden=256, heads=8, kv_heads=2, intermediate=1100, vocabulary=9000)
    make_model(shape, tmp_path)
    work = Workload(prompts=2, group_size=4, response=40, token_budget=600, slots=6, tasks=3, evaluated=0)
    trained, sampled = measure([("trainer", work), ("generator", work)], tmp_path)
    assert trainer_memory(shape, trained.work).total == pytest.approx(trained.peak, rel=0.15)
    assert generator_memory(shape, sampled.work).total == pytest.approx(sampled.peak, rel=0.15)
    assert trained.seconds > 0 and sampled.seconds > 0
    assert sampled.decode_steps == 2 * 40


def test_the_ring_has_the_slots_and_the_bytes_that_the_trainer_gives_it():
    from zorplex_rl.weights.layout import Layout
    from zorplex_rl.weights.ring import SLOTS, ring_bytes

    layout = Layout.of({"w": torch.zeros(SMALL.parameters, dtype=torch.bfloat16)})
    found = trainer_memory(SMALL, Workload(transfer="bfloat16")).phases["update"]["weight ring"]
    assert memory.RING_SLOTS == SLOTS
    assert found == pytest.approx(ring_bytes(layout, SLOTS), rel=1e-2)


@pytest.mark.parametrize("place", range(2), ids=["version 2", "version 1"])
def test_a_container_has_what_its_limit_leaves(tmp_path, monkeypatch, place):
    groups = [(tmp_path, *names) for _, *names in measured.CONTROL_GROUPS]
    monkeypatch.setattr(measured, "CONTROL_GROUPS", groups[place : place + 1])
    whole = available_memory()
    _, limit, used, droppable = groups[place]
    (tmp_path / "memory.stat").write_text(f"anon 5\n{droppable} {GB // 1000}\n")
    (tmp_path / used).write_text(f"{3 * GB // 1000}\n")
    (tmp_path / limit).write_text(f"{5 * GB // 1000}\n")
    assert available_memory() == 3 * GB // 1000
    (tmp_path / limit).write_text("max\n")
    assert whole is not None and available_memory() > 3 * GB // 1000
