"""Who gets the GPUs on page 10: memory decides what is possible, the slower side how long a step
takes, and the peaks are those of a data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zorplex_rl.course.nb10 import job
from zorplex_rl.course.nb10_gpus import (
    BANDWIDTH,
    CALL,
    MODELS,
    ROOM,
    SPEED,
    Side,
    Split,
    sample_seconds,
    sampling,
    splits,
    train_seconds,
    training,
)
from zorplex_rl.sizing.memory import Workload
from zorplex_rl.sizing.model_shape import ModelShape

WORK = job(1024)
SMALL, LARGE = MODELS["1.5B"], MODELS["32B"]
TINY = ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, intermediate=16, vocabulary=100)
WEIGHTS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)
"""Of the matrices of both layers: queries, keys and values, output, MLP."""
FEW = Workload(
    prompt=5,
    response=4,
    prompts=1,
    group_size=2,
    token_budget=100,
    slots=2,
    tasks=1,
    dtype="bfloat16",
)


def side(seconds: float, fits: bool = True) -> Side:
    return Side(4, 4, 1, seconds, 10**9, fits=fits)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("0.5B", 0.49),
        ("1.5B", 1.54),
        ("3B", 3.09),
        ("7B", 7.61),
        ("14B", 14.7),
        ("32B", 32.5),
        ("72B", 72.7),
    ],
)
def test_the_models_have_the_parameters_that_were_published(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_training_step_by_hand():
    tokens = 5 + 2 * 3  # In one row: the prompt, and of each response all but its last token.
    attention = 2 * 12 * 8 * tokens**2  # in one block
    logits = 6 * 100 * 8 * 2 * 4
    expected = (6 * WEIGHTS * tokens + attention + logits) / SPEED
    expected += 22 * 4 * TINY.parameters / BANDWIDTH
    assert train_seconds(TINY, FEW) == pytest.approx(expected + 900 * CALL, rel=1e-12)
    assert train_seconds(TINY, FEW, tensor=2) == pytest.approx(expected / 2 + 900 * CALL, rel=1e-12)


def test_sampling_by_hand_and_few_rows_wait_for_the_weights():
    expected = 2 * WEIGHTS * 5 / SPEED  # prefill
    expected += (
        3 * 2 * (WEIGHTS + 800) * 2 / (2 * BANDWIDTH)
    )  # two rows: a 16-bit weight is read for four operations
    expected += 2 * 3 * 2 * (5 + 4 / 2) * (2 * 4 * 2 / BANDWIDTH + 4 * 8 / SPEED)
    assert sample_seconds(TINY, FEW) == pytest.approx(expected + 3 * 70 * CALL, rel=1e-12)
    one_slot = replace(FEW, slots=1)
    assert (
        sample_seconds(TINY, one_slot) > 1.9 * sample_seconds(TINY, FEW) - 2 * WEIGHTS * 5 / SPEED
    )


def test_a_step_takes_as_long_as_the_slower_side_and_the_other_waits():
    split = Split(side(3.0), side(2.0))
    assert (split.seconds, split.waits) == (3.0, "trainer")
    assert Split(side(1.0), side(2.0)).waits == "generators"
    assert Split(side(1.0, fits=False), side(2.0)).seconds == float("inf")


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_every_gpu_is_on_one_side(gpus):
    found = splits(SMALL, WORK, gpus)
    assert [split.sampling.gpus for split in found] == list(
        range(max(1, gpus // 8), gpus, max(1, gpus // 8))
    )
    for split in found:
        assert split.sampling.gpus + split.training.gpus == gpus
        assert all(
            half.processes * half.tensor <= half.gpus for half in (split.sampling, split.training)
        )


def test_what_fits_is_within_the_memory():
    found = sampling(MODELS["14B"], WORK, 2)
    assert found.fits and found.bytes <= ROOM
    assert found.slots < 1024, "else the memory does not decide"
    assert not sampling(MODELS["72B"], WORK, 1).fits
    assert not training(MODELS["7B"], WORK, 1).fits
    assert training(MODELS["7B"], WORK, 64).bytes <= ROOM


@pytest.mark.parametrize("of", [sampling, training])
def test_twice_the_gpus_never_take_longer(of):
    seconds = [of(SMALL, WORK, gpus).seconds for gpus in (8, 16, 32, 64)]
    assert seconds == sorted(seconds, reverse=True)


def share(shape: ModelShape, response: int) -> float:
    found = splits(shape, replace(WORK, response=response), 64, parts=16)
    return min(found, key=lambda split: split.seconds).sampling.gpus / 64


def test_longer_answers_move_the_best_split_to_the_generators_and_larger_models_to_the_trainer():
    shares = {
        (shape, response): share(shape, response)
        for shape in (SMALL, LARGE)
        for response in (256, 4096)
    }
    assert shares[LARGE, 4096] > shares[LARGE, 256]
    assert shares[SMALL, 4096] >= shares[SMALL, 256]
    assert shares[SMALL, 256] > shares[LARGE, 256]
