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


def adds_up_everywhere(place, gradient, add_up):
    return add_up(gradient)


def adds_up_and_throws_it_away(place, gradient, add_up):
    whole = add_up(gradient)
    return whole if place == "x" else gradient


def passes_everything_on(place, gradient, add_up):
    return gradient


def the_other_way_round(place, gradient, add_up):
    return gradient if place == "x" else add_up(gradient)


def counts_itself_twice(place, gradient, add_up):
    return add_up(gradient) + gradient if place == "x" else gradient


def forgets_a_place(place, gradient, add_up):
    if place == "x":
        return add_up(gradient)
    return None


def in_place(place, gradient, add_up):
    if place == "x":
        gradient.copy_(add_up(gradient))
    return gradient


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
    "way_back": [
        adds_up_everywhere, passes_everything_on, the_other_way_round, counts_itself_twice, forgets_a_place,
        adds_up_and_throws_it_away,
    ],
    "fsdp_step": [
        forgets_the_mean, uses_its_own_share_alone, steps_up, returns_all_weights, its_own_gradient_alone, forgets_the_rate,
        a_part_of_its_own_gradient, scatters_weights, returns_nothing, forgets_to_gather,
    ],
}  # fmt: skip
RIGHT = {
    "two_layers": [with_linear, interleaved],
    "way_back": [in_place],
    "fsdp_step": [divides_before],
}
