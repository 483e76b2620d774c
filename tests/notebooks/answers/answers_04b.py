"""Answers that learners give to the exercises of notebook 04b."""

from __future__ import annotations

import math

import torch
from torch import nn


def _mine(up, rank, ranks):
    size = math.ceil(len(up) / ranks)
    return slice(rank * size, (rank + 1) * size)


def the_bias_on_every_rank(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T + down_bias)


def a_part_of_the_bias_on_every_rank(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    return the_bias_on_every_rank(x, up, up_bias, down, down_bias / ranks, rank, ranks, add_up)


def the_bias_on_the_last_rank(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    own = down_bias if rank == ranks - 1 else torch.zeros(len(down))
    return the_bias_on_every_rank(x, up, up_bias, down, own, rank, ranks, add_up)


def without_the_second_bias(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T)


def without_relu(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return add_up((x @ up[mine].T + up_bias[mine]) @ down[:, mine].T) + down_bias


def sizes_rounded_down(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    size = len(up) // ranks
    mine = slice(rank * size, (rank + 1) * size)
    return add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T) + down_bias


def adds_up_before_relu_too(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return add_up(add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T)) + down_bias


def no_collective(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    return torch.relu(x @ up.T + up_bias) @ down.T + down_bias


def detached(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return (
        add_up((torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T).detach()) + down_bias
    )


def with_linear(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    hidden = nn.functional.linear(x, up[mine], up_bias[mine]).relu()
    return add_up(nn.functional.linear(hidden, down[:, mine])).add(down_bias)


def interleaved(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    hidden = torch.relu(x @ up[rank::ranks].T + up_bias[rank::ranks])
    return add_up(hidden @ down[:, rank::ranks].T) + down_bias


def a_chunk(flat, rank, ranks):
    return flat.chunk(ranks)[rank]


def not_padded(flat, rank, ranks):
    size = math.ceil(len(flat) / ranks)
    return flat[rank * size : (rank + 1) * size].clone()


def a_view(flat, rank, ranks):
    size = math.ceil(len(flat) / ranks)
    return (
        nn.functional.pad(flat, (0, size * ranks - len(flat)))[rank * size : (rank + 1) * size]
        if (len(flat) % ranks)
        else flat[rank * size : (rank + 1) * size]
    )


def keeps_all_of_the_padded_tensor(flat, rank, ranks):
    size = math.ceil(len(flat) / ranks)
    return nn.functional.pad(flat, (0, size * ranks - len(flat))).clone()[
        rank * size : (rank + 1) * size
    ]


def a_view_where_nothing_is_missing(flat, rank, ranks):
    share = a_view(flat, rank, ranks)
    return share.clone() if len(flat) % ranks else share


def always_one_zero_more(flat, rank, ranks):
    size = len(flat) // ranks + 1
    return nn.functional.pad(flat, (0, size * ranks - len(flat)))[
        rank * size : (rank + 1) * size
    ].clone()


def the_first_share(flat, rank, ranks):
    return flat[: math.ceil(len(flat) / ranks)].clone()


def cut_off(flat, rank, ranks):
    size = len(flat) // ranks
    return flat[rank * size : (rank + 1) * size].clone()


def by_reshape(flat, rank, ranks):
    zeros = torch.zeros(-len(flat) % ranks)
    return torch.cat([flat, zeros]).reshape(ranks, -1)[rank].clone()


def forgets_the_mean(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return share - rate * reduce_scatter(gradient_of(all_gather(share)))


def uses_its_own_share_alone(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return share - rate * gradient_of(share)


def steps_up(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return share + rate * reduce_scatter(gradient_of(all_gather(share))) / ranks


def returns_all_weights(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    weights = all_gather(share)
    return weights - rate * gradient_of(weights)


def its_own_gradient_alone(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    weights = all_gather(share)
    return share - rate * gradient_of(weights)[: len(share)]


def a_part_of_its_own_gradient(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return its_own_gradient_alone(share, gradient_of, all_gather, reduce_scatter, 1, rate / ranks)


def forgets_to_gather(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return share - rate * reduce_scatter(gradient_of(share)) / ranks


def scatters_weights(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    weights = all_gather(share)
    return reduce_scatter(weights - rate * gradient_of(weights)) / ranks


def returns_nothing(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    divides_before(share, gradient_of, all_gather, reduce_scatter, ranks, rate)


def forgets_the_rate(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    return share - reduce_scatter(gradient_of(all_gather(share))) / ranks


def divides_before(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    mean = reduce_scatter(gradient_of(all_gather(share)) / ranks)
    share.sub_(mean, alpha=rate)
    return share


WRONG = {
    "two_layers": [
        the_bias_on_every_rank, without_the_second_bias, without_relu, sizes_rounded_down, adds_up_before_relu_too,
        no_collective, detached, a_part_of_the_bias_on_every_rank, the_bias_on_the_last_rank,
    ],
    "share_of": [
        a_chunk, not_padded, a_view, keeps_all_of_the_padded_tensor, always_one_zero_more, the_first_share, cut_off,
        a_view_where_nothing_is_missing,
    ],
    "fsdp_step": [
        forgets_the_mean, uses_its_own_share_alone, steps_up, returns_all_weights, its_own_gradient_alone, forgets_the_rate,
        a_part_of_its_own_gradient, scatters_weights, returns_nothing, forgets_to_gather,
    ],
}  # fmt: skip
RIGHT = {
    "two_layers": [with_linear, interleaved],
    "share_of": [by_reshape],
    "fsdp_step": [divides_before],
}
