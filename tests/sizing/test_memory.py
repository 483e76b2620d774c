"""What a model needs in memory: the arithmetic by hand, against autograd, and against a process that
was measured."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from zorplex_rl.course.nb10 import make_model
from zorplex_rl.learning.batches import collate
from zorplex_rl.policy.decoder import states_of
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.model import BLOCK, TreeAttention
from zorplex_rl.sizing import memory
from zorplex_rl.sizing.measured import measure
from zorplex_rl.sizing.memory import (
    BatchShape,
    Workload,
    available_memory,
    generator_memory,
    trainer_memory,
)
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.task.episode import Episode

SMALL = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=600)
QWEN = ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936)
GB = 10**9


def test_the_parts_that_stay_are_those_of_the_zero_paper():
    """Mixed precision with Adam: 2 + 2 bytes there, and 12 in the optimizer; here the gradients are
    float32."""
    n = SMALL.parameters
    low = trainer_memory(SMALL, Workload(dtype="bfloat16", transfer="bfloat16")).phases["backward"]
    assert (low["weights"], low["masters"], low["moments"], low["gradients"]) == (
        2 * n,
        4 * n,
        8 * n,
        4 * n,
    )
    assert low["weight ring"] == 2 * 2 * n
    full = trainer_memory(SMALL, Workload()).phases["backward"]
    assert (full["weights"], full["masters"], full["moments"], full["gradients"]) == (
        4 * n,
        0,
        8 * n,
        4 * n,
    )


def test_each_zero_stage_divides_one_more_part():
    n, work = SMALL.parameters, Workload(dtype="bfloat16")
    found = [trainer_memory(SMALL, work, 4, stage).phases["backward"] for stage in range(4)]
    assert [part["moments"] for part in found] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [part["masters"] for part in found] == [4 * n, n, n, n]
    assert [part["gradients"] for part in found] == [4 * n, 4 * n, n, n]
    assert [part["weights"] for part in found] == [2 * n, 2 * n, 2 * n, 2 * n // 4]


def test_a_token_by_hand():
    """One layer, one response to one prompt: every tensor that autograd keeps, counted by hand."""
    shape = ModelShape(layers=1, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=10)
    tokens = 3 + 4
    batch = BatchShape.of([(0, tokens)], response=5)
    of_norms = 4 * 8 * tokens  # of each of two the input and what is scaled
    of_products = (2 * 8 + 8 + 4 * 16) * tokens  # inputs, attention's output, the gated layer
    of_attention = (
        8 + 8 + 2 * 4
    ) * tokens + 2 * tokens**2  # queries, what they find, keys and values, mask of two heads
    ends = 2 * 8 * tokens
    by_hand = 4 * (of_norms + of_products + of_attention + ends)
    assert memory.activation_bytes(shape, batch, "float32") == by_hand
    assert memory.logit_bytes(shape, batch) == 3 * 4 * 5 * 10


def episodes_of(prompts: int, prompt: int, samples: int, response: int) -> list[Episode]:
    """Groups that share their prompt and nothing else."""
    numbers = itertools.count(1)
    asked = [[next(numbers) % 500 for _ in range(prompt)] for _ in range(prompts)]
    return [
        Episode(
            None,
            ids,
            [next(numbers) % 500 for _ in range(response)],
            [True] * response,
            [0.0] * response,
            [],
            "eos",
        )
        for ids in asked
        for _ in range(samples)
    ]


@pytest.mark.parametrize(
    ("prompt", "response", "budget"), [(100, 96, 8192), (100, 20, 500), (50, 90, 400), (7, 2, 1)]
)
def test_the_micro_batches_are_those_of_the_trainer(prompt, response, budget):
    found = Workload(prompt, response, prompts=4, group_size=8, token_budget=budget).micro_batches()
    batches = collate(episodes_of(4, prompt, 8, response), [1.0] * 32, budget)
    assert sorted(batch.responses for batch in found) == sorted(len(b.episodes) for b in batches)
    assert sorted(batch.tokens for batch in found) == sorted(b.tree.ids.numel() for b in batches)
    masked = [TreeAttention(b.tree.subtree_end[None]) for b in batches]
    for each in masked:
        each(0, *torch.zeros(3, 1, each.subtree_end.numel(), 2, 4))
    assert sorted(b.seen for b in found) == sorted(
        sum(mask.shape[-1] for _, mask in each.blocks) for each in masked
    )
    copied = [
        sum(len(keys) for keys, _ in each.blocks if isinstance(keys, torch.Tensor))
        for each in masked
    ]
    assert sorted(b.copied for b in found) == pytest.approx(sorted(copied), abs=BLOCK)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_autograd_keeps_the_activations_that_are_counted(kv_heads, dtype, tmp_path):
    """Every storage that a backward pass needs, once."""
    shape = replace(SMALL, kv_heads=kv_heads, layers=4)
    make_model(shape, tmp_path)
    model = load_policy(str(tmp_path), dtype=dtype).model
    (batch,) = collate(episodes_of(2, 40, 3, 50), [1.0] * 6, 8192)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = states_of(model, batch.tree)
    assert states.requires_grad
    (counted,) = Workload(prompt=40, response=50, prompts=2, group_size=3).micro_batches()
    computed = memory.activation_bytes(shape, counted, dtype)
    assert computed == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.05)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("lora_rank", [0, 16])
def test_a_measured_process_takes_what_was_computed(tmp_path, lora_rank):
    # Large enough that what the allocator leaves unused weighs little.
    shape = ModelShape(
        layers=6, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=9000
    )
    make_model(shape, tmp_path)
    work = Workload(
        prompts=2,
        group_size=4,
        response=40,
        token_budget=600,
        slots=6,
        tasks=3,
        evaluated=0,
        lora_rank=lora_rank,
    )
    trained, sampled = measure([("trainer", work), ("generator", work)], tmp_path)
    assert trainer_memory(shape, trained.work).total == pytest.approx(trained.peak, rel=0.1)
    assert generator_memory(shape, sampled.work).total == pytest.approx(sampled.peak, rel=0.1)
    assert trained.seconds > 0 and sampled.seconds > 0
    assert sampled.decode_steps == 2 * 40


def test_the_ring_has_the_slots_and_the_bytes_that_the_trainer_gives_it():
    from zorplex_rl.weights.layout import Layout
    from zorplex_rl.weights.ring import SLOTS

    layout = Layout.of({"w": torch.zeros(SMALL.parameters, dtype=torch.bfloat16)})
    found = trainer_memory(SMALL, Workload(transfer="bfloat16")).phases["backward"]["weight ring"]
    assert memory.RING_SLOTS == SLOTS
    assert found == pytest.approx(SLOTS * layout.size, rel=1e-2)


def test_a_container_has_what_its_limit_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GB // 1000}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GB // 1000}\n")
    (tmp_path / "memory.max").write_text(f"{5 * GB // 1000}\n")
    assert available_memory() == 3 * GB // 1000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 3 * GB // 1000


def test_with_adapters_only_they_have_gradients_and_moments_and_travel():
    from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy
    from zorplex_rl.sizing.model_shape import shape_of
    from zorplex_rl.weights.layout import named_weights

    shape, work = shape_of(EMBEDDED_PATH), Workload(dtype="bfloat16", lora_rank=4)
    published = named_weights(load_policy(dtype="bfloat16", lora_rank=4).model).values()
    assert sum(weight.numel() for weight in published) == shape.trained(4)
    assert sum(weight.nbytes for weight in published) == memory.version_bytes(shape, work)
    parts = trainer_memory(shape, work).phases["backward"]
    adapters = 4 * shape.trained(4)
    assert (parts["weights"], parts["adapters"]) == (2 * shape.parameters, adapters)
    assert (parts["masters"], parts["gradients"], parts["moments"]) == (0, adapters, 2 * adapters)
