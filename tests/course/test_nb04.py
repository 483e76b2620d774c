"""What serves notebooks 04 and 04b: a function is run as every rank of a group, and its collectives are held
to their number."""

from __future__ import annotations

import pytest
import torch

from zorplex_rl.course import nb04


def layers(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    mine = slice(rank, None, ranks)
    return add_up(torch.relu(x @ up[mine].T + up_bias[mine]) @ down[:, mine].T) + down_bias


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return [torch.randn(size) for size in ((3, 2), (6, 2), (6,), (2, 6), (2,))]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_run_one_after_the_other_compute_what_one_process_computes(tensors, ranks):
    x, up, up_bias, down, down_bias = tensors
    whole = torch.relu(x @ up.T + up_bias) @ down.T + down_bias
    assert torch.allclose(nb04.on_ranks(layers)(*tensors, ranks), whole, atol=1e-6)


def test_a_second_collective_is_refused(tensors):
    def twice(*arguments):
        *others, add_up = arguments
        return layers(*others, lambda part: add_up(add_up(part)))

    with pytest.raises(AssertionError, match="calls `add_up` 2 times on rank 0"):
        nb04.on_ranks(twice)(*tensors, 2)


def test_ranks_of_a_ring_hear_their_neighbours_in_turn():
    def gather(mine, rank, ranks, exchange):
        heard = [mine]
        for _ in range(ranks - 1):
            heard.append(exchange(heard[-1]))
        return [number.item() for number in heard]

    held = [torch.tensor(number) for number in (1, 2, 3)]
    assert nb04.in_a_ring(gather)(held) == [[1, 3, 2], [2, 1, 3], [3, 2, 1]]


def test_a_rank_that_would_wait_for_ever_is_told_and_nothing_hangs():
    def only_rank_0(mine, rank, ranks, exchange):
        return exchange(mine) if rank == 0 else mine

    with pytest.raises(AssertionError, match="on 2 ranks, rank 0 waits in `exchange` for ever"):
        nb04.in_a_ring(only_rank_0)([torch.tensor(1.0), torch.tensor(2.0)])


def test_a_step_of_a_ring_may_change_what_it_was_given():
    def in_place(mine, rank, ranks, exchange):
        mine += exchange(mine)
        return mine.item()

    assert nb04.in_a_ring(in_place)([torch.tensor(1.0), torch.tensor(2.0)]) == [3.0, 3.0]
