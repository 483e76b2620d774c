"""Who gets the GPUs: memory decides what is possible, the slower side how long a step takes, and
the peaks are those of a data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zorplex_rl.sizing.allocation import (
    BANDWIDTH_SHARE,
    COMPUTE_SHARE,
    H100,
    MEMORY_SHARE,
    MODELS,
    Side,
    Split,
    best_split,
    sampling,
    splits,
    training,
)
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.step_time import train_seconds
from zorplex_rl.sizing.workload import Workload

WORK = Workload(
    prompt=512, response=1024, prompts=64, group_size=16, evaluated=0,
    dtype="bfloat16", transfer="bfloat16", stored="bfloat16",
)  # fmt: skip
SMALL, LARGE = MODELS["1.5B"], MODELS["32B"]


def side(seconds: float, fits: bool = True) -> Side:
    return Side(4, 4, 1, seconds, 10**9, fits=fits)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("0.5B", 0.49), ("1.5B", 1.54), ("3B", 3.09), ("7B", 7.61), ("14B", 14.7), ("32B", 32.5), ("72B", 72.7)],
)
def test_the_models_have_the_parameters_that_were_published(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_step_takes_as_long_as_the_slower_side_and_the_other_waits():
    split = Split(side(3.0), side(2.0))
    assert (split.seconds, split.waits) == (3.0, "trainer")
    assert Split(side(1.0), side(2.0)).waits == "generators"
    assert Split(side(1.0, fits=False), side(2.0)).seconds == float("inf")


def test_the_best_split_is_the_fastest_of_those_that_fit():
    slow, fast, impossible = (
        Split(side(3.0), side(2.0)),
        Split(side(2.0), side(2.5)),
        Split(side(1.0, False), side(1.0)),
    )
    assert best_split([slow, fast, impossible]) is fast
    assert best_split([impossible]) is None
    assert best_split([]) is None


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_every_gpu_is_on_one_side(gpus):
    found = splits(SMALL, WORK, gpus)
    assert [split.sampling.gpus for split in found] == list(range(max(1, gpus // 8), gpus, max(1, gpus // 8)))
    assert all(split.sampling.gpus + split.training.gpus == gpus for split in found)
    for split in found:
        for half in (split.sampling, split.training):
            assert half.processes * half.tensor <= half.gpus


def test_what_fits_is_within_the_memory_and_one_more_slot_is_not():
    found = sampling(MODELS["14B"], WORK, 2)
    assert found.fits and found.bytes <= MEMORY_SHARE * H100.memory
    assert found.slots < 1024, "else the memory does not decide"
    assert not sampling(MODELS["72B"], WORK, 1).fits
    assert not training(MODELS["7B"], WORK, 1).fits
    assert training(MODELS["7B"], WORK, 64).bytes <= MEMORY_SHARE * H100.memory


def test_a_decode_step_with_few_rows_waits_for_the_weights_and_with_many_for_the_operations():
    few, many = H100.machine(8), H100.machine(4096)
    assert few.decode == pytest.approx(8 * BANDWIDTH_SHARE * H100.bandwidth)
    assert many.decode == many.product == COMPUTE_SHARE * H100.operations


def test_training_is_the_operations_of_the_step_divided_by_the_gpus():
    found = training(SMALL, WORK, 8)
    whole = replace(WORK, token_budget=16384)
    parts = train_seconds(SMALL, whole, H100.machine(1))
    operations = sum(parts.values()) - parts["calls"]
    assert found.seconds * 8 >= operations
    assert found.seconds * 8 == pytest.approx(operations, rel=0.2)


def test_twice_the_gpus_never_take_longer():
    for of in (sampling, training):
        seconds = [of(SMALL, WORK, gpus).seconds for gpus in (8, 16, 32, 64)]
        assert seconds == sorted(seconds, reverse=True)


def share(shape: ModelShape, response: int) -> float:
    best = best_split(splits(shape, replace(WORK, response=response), 64, parts=16))
    return best.sampling.gpus / 64


def test_longer_answers_move_the_best_split_to_the_generators_and_larger_models_to_the_trainer():
    shares = {(shape, response): share(shape, response) for shape in (SMALL, LARGE) for response in (256, 4096)}
    assert shares[LARGE, 4096] > shares[LARGE, 256]
    assert shares[SMALL, 4096] >= shares[SMALL, 256]
    assert shares[SMALL, 256] > shares[LARGE, 256]
