"""What serves notebook 04: a layer is run as every rank of a group, and its one collective is held
to."""

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
