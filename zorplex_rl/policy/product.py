"""The product of inputs and a layer's weights, by the library that is faster: MKL, which ``F.linear``
calls, or oneDNN. For few rows oneDNN takes half to three quarters of the time of MKL, and with weights
in its own layout less again."""

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 100_000
"""Weights of a layer from which on it matters which library computes a product."""
ONEDNN = torch.backends.mkldnn.is_available()
"""Whether torch has oneDNN."""


def product_of(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return x · weightᵀ + bias."""
    if weight.is_mkldnn or (suits_onednn(weight) and not torch.is_grad_enabled()):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def suits_onednn(weight: Tensor) -> bool:
    """Return whether oneDNN multiplies by ``weight`` faster."""
    is_on_cpu = ONEDNN and weight.is_cpu
    return is_on_cpu and weight.dtype == torch.float32 and weight.numel() >= LARGE


def packed(weight: Tensor) -> Tensor:
    """Return a copy of ``weight`` for ``product_of``, in the layout of the library that multiplies by it.
    Only where no gradient is needed."""
    if suits_onednn(weight):
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight.clone()
