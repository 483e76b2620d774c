"""What a model needs in memory: the arithmetic by hand, against real models, and against a process that was measured."""

from __future__ import annotations

import pytest
import torch

from zorplex_rl.analysis import sizing
from zorplex_rl.analysis.sizing import MicroBatch, ModelShape, Parallel, Workload
from zorplex_rl.config import Config
from zorplex_rl.learning.batches import split_by_tokens

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
    """Mixed precision with Adam: 2 + 2 bytes there, and 12 in the optimizer; here the gradients are float32."""
    n = SMALL.parameters
    low = sizing.trainer_memory(SMALL, Workload(dtype="bfloat16", transfer="bfloat16")).phases["update"]
    assert (low["weights"], low["masters"], low["moments"], low["gradients"]) == (2 * n, 4 * n, 8 * n, 4 * n)
    assert low["weight ring"] == 3 * 2 * n
    full = sizing.trainer_memory(SMALL, Workload()).phases["update"]
    assert (full["weights"], full["masters"], full["moments"], full["gradients"]) == (4 * n, 0, 8 * n, 4 * n)


def test_each_zero_stage_divides_one_more_part():
    n, work = SMALL.parameters, Workload(dtype="bfloat16")
    found = [sizing.trainer_memory(SMALL, work, Parallel(4, stage)).phases["update"] for stage in range(4)]
    assert [part["moments"] for part in found] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [part["masters"] for part in found] == [4 * n, n, n, n]
    assert [part["gradients"] for part in found] == [4 * n, 4 * n, n, n]
    assert [part["weights"] for part in found] == [2 * n, 2 * n, 2 * n, 2 * n // 4]


def test_a_token_by_hand():
    """One layer, one row after one prompt: every tensor that autograd keeps, counted by hand."""
    shape = ModelShape(layers=1, hidden=8, heads=2, kv_heads=1, intermediate=16, vocabulary=10)
    batch = MicroBatch(prompts=1, prompt=3, rows=1, response=5)
    tokens = 3 + 4
    norms, mlp, queries_and_outputs = 6 * 8 * tokens, 4 * 16 * tokens, 2 * 8 * tokens
    keys_and_values = 2 * 8 * 7 + 2 * 4 * 3  # of the response repeated for both heads, of the prompt not
    mask = 4 * 7
    ends = 3 * 8 * tokens
    by_hand = 4 * (norms + mlp + queries_and_outputs + keys_and_values + mask + ends)
    assert sizing.activation_bytes(shape, batch, "float32") == by_hand
    assert sizing.logit_bytes(shape, batch) == 4 * 4 * 5 * 10


def test_the_cache_of_a_published_model_by_hand():
    shape = SHAPES[-1]  # Qwen2.5-0.5B: 24 layers, 2 key-value heads of 64
    assert sizing.cache_bytes(shape, rows=64, length=1024, dtype="bfloat16") == 2 * 24 * 2 * 128 * 64 * 1024


@pytest.mark.parametrize(
    ("prompt", "response", "budget"), [(100, 96, 8192), (300, 20, 1000), (50, 400, 300), (1, 1, 1)]
)
def test_the_micro_batches_are_those_of_the_trainer(prompt, response, budget):
    found = Workload(prompt, response, prompts=4, group_size=8, token_budget=budget).micro_batches
    assert [batch.rows for batch, count in found for _ in range(count)] == [
        len(part) for part in split_by_tokens([response] * 32, budget, prompt)
    ]


def test_a_setting_that_is_smaller_never_needs_more():
    config = Config(policy="x").changed(slots=64, token_budget=8192, max_tokens=256, dtype="float32")
    for shape in SHAPES:
        work = Workload.of(config, 200)
        for change in ({"slots": 16}, {"token_budget": 1024}, {"max_tokens": 64}, {"dtype": "bfloat16"}):
            less = Workload.of(config.changed(**change), 200)
            assert sizing.trainer_memory(shape, less).total <= sizing.trainer_memory(shape, work).total
            assert sizing.generator_memory(shape, less).total <= sizing.generator_memory(shape, work).total


def test_the_ring_has_the_slots_that_the_trainer_gives_it():
    from zorplex_rl.training.transports import SLOTS

    assert sizing.RING_SLOTS == SLOTS
