"""AdamW without its shell: the bits of torch's own, and nothing of torch's compiler."""

import pytest
import torch

from zorplex_rl.learning.adamw import AdamW

pytestmark = pytest.mark.slow


def test_it_is_torch_s_own_bit_for_bit():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (130,), ())]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    own = AdamW(ours)
    other = torch.optim.AdamW(theirs, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(20):
        learning_rate = 0.01 / (1 + step)
        other.param_groups[0]["lr"] = learning_rate
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        own.step(learning_rate)
        other.step()
        assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    for one, two in zip(ours, theirs, strict=True):
        assert own.state[one].keys() == other.state[two].keys()
        assert all(
            torch.equal(own.state[one][name], other.state[two][name]) for name in own.state[one]
        )
    assert [weight.grad for weight in ours] == [None] * 3


def test_the_gradient_of_a_bfloat16_weight_is_added_up_at_its_master_alone():
    own = AdamW([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))])
    for _ in range(300):  # In bfloat16 a sum of ones ends at 256.
        own.parameters[0].sum().backward()
    assert own.parameters[0].grad is None and own.masters[0].grad.tolist() == [300.0] * 3
