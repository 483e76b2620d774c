"""Answers that learners give to the exercises of notebook 10."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import torch


def _activations(shape, batch, e):
    kv, mask = (
        2 * shape.keys,
        e * min(128, batch.tokens) * shape.heads // shape.kv_heads * batch.seen,
    )
    numbers = 2 * shape.hidden + 4 * shape.intermediate + 3 * shape.attention + kv
    layers = shape.layers * (
        batch.tokens * (16 * shape.hidden + e * numbers) + e * kv * batch.copied
    )
    return layers + 8 * shape.hidden * batch.tokens + mask


def _budget(shape, batch, e, ranks, stage, factors=(4, 4, 8), copies=3, groups=None):
    n = shape.parameters
    masters, gradients, moments = factors
    parts = {
        "weights": e * n,
        "masters": masters * n * (e < 4),
        "gradients": gradients * n,
        "moments": moments * n,
    }
    for group in (groups or [["masters", "moments"], ["gradients"], ["weights"]])[:stage]:
        for part in group:
            parts[part] /= ranks
    logits = copies * 4 * batch.responses * batch.response * shape.vocabulary
    return parts | {"activations": _activations(shape, batch, e), "logits": logits}


def ignores_the_stage(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, ranks, 3)


def ignores_the_ranks(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, 8, stage)


def masters_in_float32_too(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, ranks, stage) | {
        "masters": 4 * shape.parameters / (ranks if stage else 1)
    }


def gradients_as_wide_as_the_weights(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, ranks, stage, (4, e, 8))


def one_moment(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, ranks, stage, (4, 4, 4))


def one_tensor_of_logits(shape, batch, e, ranks, stage):
    return _budget(shape, batch, e, ranks, stage, copies=1)


def divides_the_activations(shape, batch, e, ranks, stage):
    found = _budget(shape, batch, e, ranks, stage)
    return found | {"activations": found["activations"] / (ranks if stage == 3 else 1)}


def whole_bytes(shape, batch, e, ranks, stage):
    return {part: int(size) for part, size in _budget(shape, batch, e, ranks, stage).items()}


def tensors_of_bytes(shape, batch, e, ranks, stage):
    found = _budget(shape, batch, e, ranks, stage)
    return {part: torch.tensor(size, dtype=torch.float64) for part, size in found.items()}


def half_of_them(gpus, sampling, training):
    return gpus // 2


def the_shortest_sum(gpus, sampling, training):
    return min(range(1, gpus), key=lambda g: sampling(g) + training(gpus - g))


def nothing_is_infinite(gpus, sampling, training):
    return min(range(1, gpus), key=lambda g: max(sampling(g), training(gpus - g)))


def the_other_side(gpus, sampling, training):
    found = _split(gpus, sampling, training)
    return None if found is None else gpus - found


def the_largest_of_equals(gpus, sampling, training):
    found = _split(gpus, training, sampling)
    return None if found is None else gpus - found


def all_of_them_too(gpus, sampling, training):
    return min(range(1, gpus + 1), key=lambda g: max(sampling(g), training(gpus - g)))


def _split(gpus, sampling, training):
    times = [max(sampling(g), training(gpus - g)) for g in range(1, gpus)]
    least = min(times)
    return None if least == float("inf") else times.index(least) + 1


def by_a_loop(gpus, sampling, training):
    best, seconds = None, float("inf")
    for g in range(1, gpus):
        if (found := max(sampling(g), training(gpus - g))) < seconds:
            best, seconds = g, found
    return best


def as_a_tensor(gpus, sampling, training):
    found = _split(gpus, sampling, training)
    return None if found is None else torch.tensor(found)


def at_once(now, heard, lease, drift, margin):
    return True


def ignores_the_drift(now, heard, lease, drift, margin):
    return now >= heard + lease + margin


def ignores_the_margin(now, heard, lease, drift, margin):
    return now >= heard + lease * (1 + drift)


def the_margin_on_the_wrong_side(now, heard, lease, drift, margin):
    return now + margin >= heard + lease * (1 + drift)


def a_fast_clock(now, heard, lease, drift, margin):
    return now >= heard + lease / (1 + drift) + margin


def ten_seconds(now, heard, lease, drift, margin):
    return now >= heard + 10 * (1 + drift) + margin


def by_the_seconds_that_are_left(now, heard, lease, drift, margin):
    return not Decimal(now) - Decimal(heard) - Decimal(margin) < Decimal(lease) * (
        1 + Decimal(drift)
    )


def by_fractions(now, heard, lease, drift, margin):
    return Fraction(now - margin - heard) / (1 + Fraction(drift)) >= lease


WRONG = {
    "trainer_budget": [
        ignores_the_stage,
        ignores_the_ranks,
        masters_in_float32_too,
        gradients_as_wide_as_the_weights,
        one_moment,
        one_tensor_of_logits,
        divides_the_activations,
    ],
    "best_split": [
        half_of_them,
        the_shortest_sum,
        nothing_is_infinite,
        the_other_side,
        the_largest_of_equals,
        all_of_them_too,
    ],
    "lease_is_over": [
        at_once,
        ignores_the_drift,
        ignores_the_margin,
        the_margin_on_the_wrong_side,
        a_fast_clock,
        ten_seconds,
    ],
}
RIGHT = {
    "trainer_budget": [whole_bytes, tensors_of_bytes],
    "best_split": [by_a_loop, as_a_tensor],
    "lease_is_over": [by_the_seconds_that_are_left, by_fractions],
}
