"""Draw the arguments of a loss of notebooks 09 and 11."""

import random

import torch
from torch import Tensor


def draw_batch(draw: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """Draw the arguments of a loss: a small batch with ratios inside and outside all bounds."""
    rows, columns = draw.randint(1, 3), draw.randint(2, 4)

    def table(*values: float) -> Tensor:
        return torch.tensor(draw.choices(values, k=rows * columns)).reshape(rows, columns)

    behaviour = table(-6.0, -5.2, -4.1)
    start = behaviour + table(0.45, 0.9, 1.0, 1.3, 3.0, 6.0).log()
    logp = start + table(0.3, 0.7, 0.9, 1.1, 1.5, 3.0).log()
    mask = table(0.0, 1.0, 1.0)
    mask[0, 0] = 1.0
    advantage = table(-1.7, -0.4, 0.6, 1.9)[:, 0]
    tokens = mask.sum().item() + draw.randint(1, 9)
    return logp.requires_grad_(), start, behaviour, advantage, mask, tokens
