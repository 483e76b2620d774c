"""AdamW (Loshchilov, Hutter 2019, algorithm 2), as torch computes it.

``torch.optim.AdamW`` is a shell around the function called here. Making one imports torch's
compiler, which takes every new trainer 0.8 seconds, and nothing here is compiled.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """Keeps the moments of ``weights``, which must be on one kind of device."""

    def __init__(self, weights: Sequence[Tensor], weight_decay: float = 0.0) -> None:
        self.weights, self.weight_decay = list(weights), weight_decay
        self.state = {
            weight: {
                # Where the weights are: the fused kernel refuses another place.
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
            for weight in self.weights
        }

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change the weights by their gradients, of which none may be missing. On a GPU in one
        kernel, not a dozen a tensor, and without temporaries; on a CPU in a loop."""
        of_step, means, squares = (
            [self.state[w][name] for w in self.weights] for name in ("step", "exp_avg", "exp_avg_sq")
        )
        adamw(
            self.weights,
            [weight.grad for weight in self.weights if weight.grad is not None],
            means, squares, [], of_step,
            fused=True if self.weights[0].is_cuda else None,
            amsgrad=False, maximize=False, beta1=0.9, beta2=0.95, eps=1e-8,
            lr=learning_rate, weight_decay=self.weight_decay,
        )  # fmt: skip

    def forget_gradients(self) -> None:
        """Let the gradients go, with their memory."""
        for weight in self.weights:
            weight.grad = None
