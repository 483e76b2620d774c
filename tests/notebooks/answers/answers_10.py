"""Answers that learners give to the exercises of notebook 10."""

from __future__ import annotations

import torch


def _parts(n, e, ranks, stage, factors=(4, 4, 8), groups=None):
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
    return parts


def ignores_the_stage(n, e, ranks, stage):
    return _parts(n, e, ranks, 3)


def ignores_the_ranks(n, e, ranks, stage):
    return _parts(n, e, 8, stage)


def masters_in_float32_too(n, e, ranks, stage):
    return _parts(n, e, ranks, stage) | {"masters": 4 * n / (ranks if stage else 1)}


def gradients_as_wide_as_the_weights(n, e, ranks, stage):
    return _parts(n, e, ranks, stage, (4, e, 8))


def one_moment(n, e, ranks, stage):
    return _parts(n, e, ranks, stage, (4, 4, 4))


def each_stage_by_itself(n, e, ranks, stage):
    group = [[], ["masters", "moments"], ["gradients"], ["weights"]][stage]
    return {p: size / (ranks if p in group else 1) for p, size in _parts(n, e, 1, 0).items()}


def the_stages_upside_down(n, e, ranks, stage):
    groups = [["weights"], ["gradients"], ["masters", "moments"]]
    return _parts(n, e, ranks, stage, groups=groups)


def whole_bytes(n, e, ranks, stage):
    return {part: int(size) for part, size in _parts(n, e, ranks, stage).items()}


def tensors_of_bytes(n, e, ranks, stage):
    found = _parts(n, e, ranks, stage)
    return {part: torch.tensor(size, dtype=torch.float64) for part, size in found.items()}


def one_tensor(tokens, vocabulary):
    return 4 * tokens * vocabulary


def in_16_bits(tokens, vocabulary):
    return 6 * tokens * vocabulary


def in_numbers(tokens, vocabulary):
    return 3 * tokens * vocabulary


def for_one_token(tokens, vocabulary):
    return 12 * vocabulary


def two_tensors(tokens, vocabulary):
    return 8 * tokens * vocabulary


def as_a_float(tokens, vocabulary):
    return 12.0 * tokens * vocabulary


def of_a_real_tensor(tokens, vocabulary):
    return 3 * torch.zeros(tokens, vocabulary).nbytes


def half_of_them(gpus, sampling, training):
    return gpus // 2


def the_shortest_sum(gpus, sampling, training):
    return min(range(1, gpus), key=lambda g: sampling(g) + training(gpus - g))


def the_shortest_sum_with_room(gpus, sampling, training):
    found = the_shortest_sum(gpus, sampling, training)
    return None if _split(gpus, sampling, training) is None else found


def the_most_equal(gpus, sampling, training):
    if _split(gpus, sampling, training) is None:
        return None
    return min(range(1, gpus), key=lambda g: abs(sampling(g) - training(gpus - g)))


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


WRONG = {
    "static_parts": [
        ignores_the_stage,
        ignores_the_ranks,
        masters_in_float32_too,
        gradients_as_wide_as_the_weights,
        one_moment,
        each_stage_by_itself,
        the_stages_upside_down,
    ],
    "logit_bytes": [one_tensor, in_16_bits, in_numbers, for_one_token, two_tensors],
    "best_split": [
        half_of_them,
        the_shortest_sum,
        the_shortest_sum_with_room,
        the_most_equal,
        nothing_is_infinite,
        the_other_side,
        the_largest_of_equals,
        all_of_them_too,
    ],
}
RIGHT = {
    "static_parts": [whole_bytes, tensors_of_bytes],
    "logit_bytes": [as_a_float, of_a_real_tensor],
    "best_split": [by_a_loop, as_a_tensor],
}
