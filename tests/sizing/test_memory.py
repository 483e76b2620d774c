"""What a model needs in memory: the arithmetic by hand, against real models, and against a process
that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from zorplex_rl.config import Config
from zorplex_rl.learning.batches import split_by_tokens
from zorplex_rl.sizing import memory
from zorplex_rl.sizing.measured_size import Case, make_model, measure, workload_of
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.workload import BYTES, MicroBatch, Parallel, Workload

SMALL = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=500)
SHAPES = [
    SMALL,
    ModelShape(layers=3, hidden=48, heads=6, kv_heads=1, intermediate=100, vocabulary=333, tied=False),
    ModelShape(layers=1, hidden=64, heads=4, kv_heads=4, intermediate=128, vocabulary=77, head_size=32),
    ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parameters_are_those_of_a_real_model(shape):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**shape.as_config())
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert ModelShape.of(config.to_dict()).parameters == shape.parameters


def test_a_llama_has_no_biases():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SMALL.as_config())
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    assert ModelShape.of(config.to_dict()).parameters == sum(p.numel() for p in model.parameters())


def test_the_parts_that_stay_are_those_of_the_zero_paper():
    """Mixed precision with Adam: 2 + 2 bytes there, and 12 in the optimizer; here the gradients are
    float32."""
    n = SMALL.parameters
    low = memory.trainer_memory(SMALL, Workload(dtype="bfloat16", transfer="bfloat16")).phases["update"]
    assert (low["weights"], low["masters"], low["moments"], low["gradients"]) == (2 * n, 4 * n, 8 * n, 4 * n)
    assert low["weight ring"] == 3 * 2 * n
    full = memory.trainer_memory(SMALL, Workload()).phases["update"]
    assert (full["weights"], full["masters"], full["moments"], full["gradients"]) == (4 * n, 0, 8 * n, 4 * n)


def test_each_zero_stage_divides_one_more_part():
    n, work = SMALL.parameters, Workload(dtype="bfloat16")
    found = [memory.trainer_memory(SMALL, work, Parallel(4, stage)).phases["update"] for stage in range(4)]
    assert [part["moments"] for part in found] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [part["masters"] for part in found] == [4 * n, n, n, n]
    assert [part["gradients"] for part in found] == [4 * n, 4 * n, n, n]
    assert [part["weights"] for part in found] == [2 * n, 2 * n, 2 * n, 2 * n // 4]


def test_a_token_by_hand():
    """One layer, one row after one prompt: every tensor that autograd keeps, counted by hand."""
    shape = ModelShape(layers=1, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=10)
    batch = MicroBatch(prompts=1, prompt=3, rows=1, response=5)
    tokens = 3 + 4
    norms, mlp, queries_and_outputs = 6 * 8 * tokens, 4 * 16 * tokens, 2 * 8 * tokens
    keys_and_values = 2 * 8 * 7 + 2 * 4 * 3  # of the response repeated for all heads, of the prompt not
    mask = 4 * 7
    ends = 3 * 8 * tokens
    by_hand = 4 * (norms + mlp + queries_and_outputs + keys_and_values + mask + ends)
    assert memory.activation_bytes(shape, batch, "float32") == by_hand
    assert memory.logit_bytes(shape, batch) == 4 * 4 * 5 * 10


def test_the_cache_of_a_published_model_by_hand():
    shape = SHAPES[-1]  # Qwen2.5-0.5B: 24 layers, 2 key-value heads of 64
    assert memory.cache_bytes(shape, rows=64, length=1024, dtype="bfloat16") == 2 * 24 * 2 * 128 * 64 * 1024


@pytest.mark.parametrize(
    ("prompt", "response", "budget"), [(100, 96, 8192), (300, 20, 1000), (50, 400, 300), (1, 1, 1)]
)
def test_the_micro_batches_are_those_of_the_trainer(prompt, response, budget):
    found = Workload(prompt, response, prompts=4, group_size=8, token_budget=budget).micro_batches
    assert [batch.rows for batch, count in found for _ in range(count)] == [
        len(part) for part in split_by_tokens([response] * 32, budget, prompt)
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("change", [{"slots": 16}, {"token_budget": 1024}, {"max_tokens": 64}])
def test_a_setting_that_is_smaller_never_needs_more(shape, change):
    config = Config(policy="x").changed(slots=64, token_budget=8192, max_tokens=256)
    work, less = Workload.of(config, 200), Workload.of(config.changed(**change), 200)
    assert memory.trainer_memory(shape, less).total <= memory.trainer_memory(shape, work).total
    assert memory.generator_memory(shape, less).total <= memory.generator_memory(shape, work).total


def test_bfloat16_needs_less_for_a_model_of_some_size():
    """Not for a tiny one: the kernels for bfloat16 keep more than it saves."""
    for bytes_of in (memory.trainer_memory, memory.generator_memory):
        total = {
            dtype: bytes_of(SHAPES[-1], Workload(dtype=dtype, transfer=dtype, stored=dtype)).total for dtype in BYTES
        }
        assert total["bfloat16"] < 0.85 * total["float32"]


def test_a_generator_that_computes_in_another_type_needs_that_type_s_memory_and_the_trainer_s_ring():
    config = Config(policy="x", dtype="bfloat16")
    low, mixed = (Workload.of(config.changed(generator_dtype=dtype), 200) for dtype in ("same", "float32"))
    for part, factor in (("weights", 2), ("key-value cache", 2), ("staging", 1)):
        one, other = (memory.generator_memory(SHAPES[-1], work).phases["sample"][part] for work in (low, mixed))
        assert other == factor * one
    assert memory.trainer_memory(SHAPES[-1], mixed).total == memory.trainer_memory(SHAPES[-1], low).total


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_autograd_keeps_the_activations_that_are_counted(kv_heads, dtype):
    """Every storage that a backward pass needs, once. A single key head is expanded for the query
    heads, which copies nothing."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from zorplex_rl.learning import batches, learner

    shape = replace(SMALL, kv_heads=kv_heads, layers=4)
    model = Qwen2ForCausalLM(Qwen2Config(**shape.as_config())).to(getattr(torch, dtype))
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
    computed = memory.activation_bytes(shape, MicroBatch(2, prompt, rows, response), dtype)
    assert computed == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.1)


def test_what_one_phase_frees_stays_with_the_process_unless_it_is_large():
    """The optimizer's temporaries: 6 MB stay, 600 MB go back to the system."""
    small, large = (
        memory.trainer_memory(replace(SMALL, vocabulary=vocabulary), Workload(token_budget=1)) for vocabulary in (12_000, 1_200_000)
    )  # fmt: skip
    for found, kept in ((small, True), (large, False)):
        parts = next(parts for name, parts in found.phases.items() if name.startswith("forward"))
        temporaries = found.phases["update"]["optimizer's temporaries"]
        assert (parts[memory.KEPT] > temporaries) == kept


def test_a_measured_process_takes_what_was_computed(tmp_path):
    shape = ModelShape(layers=6, hidden=256, heads=8, kv_heads=2, intermediate=1100, vocabulary=9000)
    assert 8e6 < shape.parameters < 12e6
    make_model(shape, tmp_path)
    case = Case("trainer", str(tmp_path), prompts=2, group_size=4, max_tokens=40, token_budget=600, checkpoint=False)
    found = measure(replace(case, calibrate=False), timeout=400)
    computed = memory.trainer_memory(*workload_of(case, found)).total
    assert computed == pytest.approx(found.peak, rel=0.15)
    assert set(found.seconds) == {"load", "optimizer", "ring", "publish", "step 1", "step 2"}


def test_the_ring_has_the_slots_and_the_bytes_that_the_trainer_gives_it():
    from zorplex_rl.weights.layout import Layout
    from zorplex_rl.weights.ring import SLOTS, ring_bytes

    layout = Layout.of({"w": torch.zeros(1_000_000, dtype=torch.bfloat16)})
    work = Workload(10, 10, 1, 1, 100, transfer="bfloat16")
    assert work.ring_bytes * 1_000_000 == pytest.approx(ring_bytes(layout, SLOTS), rel=1e-3)
