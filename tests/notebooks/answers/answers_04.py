"""Answers that learners give to the exercises of notebook 04."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import nn

FACTORS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


def ignores_the_collective(collective, size, ranks):
    return (ranks - 1) * size / ranks


def an_all_to_all_sends_its_whole_share(collective, size, ranks):
    return FACTORS.get(collective, 1) * (ranks - 1) * size / ranks


def sends_to_itself_too(collective, size, ranks):
    return FACTORS[collective] * size if collective in FACTORS else size / ranks


def two_ranks(collective, size, ranks):
    return FACTORS[collective] * size / 2 if collective in FACTORS else size / 4


def an_all_reduce_once(collective, size, ranks):
    return (ranks - 1) * size / ranks / (ranks if collective == "all_to_all" else 1)


def of_all_ranks(collective, size, ranks):
    return (ranks - 1) * size * FACTORS.get(collective, 1 / ranks)


def a_fraction(collective, size, ranks):
    return Fraction((ranks - 1) * size, ranks) * Fraction(
        FACTORS.get(collective, Fraction(1, ranks))
    )


def _mine(up, rank, ranks):
    size = math.ceil(len(up) / ranks)
    return slice(rank * size, (rank + 1) * size)


def the_bias_on_every_rank(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = _mine(up, rank, ranks)
    return add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T + down_bias)


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


WRONG = {
    "bytes_sent": [
        ignores_the_collective, an_all_to_all_sends_its_whole_share, sends_to_itself_too, two_ranks, an_all_reduce_once,
        of_all_ranks,
    ],
    "two_layers": [
        the_bias_on_every_rank, without_the_second_bias, without_relu, sizes_rounded_down, adds_up_before_relu_too,
        no_collective, detached,
    ],
    "share_of": [a_chunk, not_padded, a_view, keeps_all_of_the_padded_tensor, always_one_zero_more, the_first_share, cut_off],
}  # fmt: skip
RIGHT = {
    "bytes_sent": [a_fraction],
    "two_layers": [with_linear, interleaved],
    "share_of": [by_reshape],
}
