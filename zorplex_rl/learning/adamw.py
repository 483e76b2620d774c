"""AdamW (Loshchilov, Hutter 2019, algorithm 2), as torch computes it, with float32 master weights.

A bfloat16 weight has eight bits of mantissa: it would lose a small step, and a sum of gradients
would lose whatever is below a 256th of it. So both are kept in float32, and the weights are rounded
from the masters after each step. A parameter's gradient goes to its master as soon as it is there, so
there are never all of both kinds. A float32 model is its own master.

``torch.optim.AdamW`` is a shell around the function called here, and imports torch's compiler.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """Keeps masters and moments of ``parameters``, which are on one kind of device and have no other
    optimizer."""

    def __init__(self, parameters: Iterable[Tensor], weight_decay: float = 0.0) -> None:
        self.parameters, self.weight_decay = list(parameters), weight_decay
        self.masters = [
            p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float().clone())
            for p in self.parameters
        ]
        self.state = {
            master: {
                # Where the weights are: the fused kernel refuses another place.
                "step": torch.zeros((), device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
            for master in self.masters
        }
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.register_post_accumulate_grad_hook(partial(_hand_over, master))

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradients down to ``max_norm``. Returns their norm before."""
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return torch.nn.utils.clip_grad_norm_(self.masters, max_norm).item()

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change the weights by their gradients, of which none may be missing, and let these go."""
        of_step, means, squares = (
            [self.state[master][name] for master in self.masters]
            for name in ("step", "exp_avg", "exp_avg_sq")
        )
        adamw(
            self.masters,
            [master.grad for master in self.masters if master.grad is not None],
            means, squares, [], of_step,
            fused=True,
            amsgrad=False, maximize=False, beta1=0.9, beta2=0.95, eps=1e-8,
            lr=learning_rate, weight_decay=self.weight_decay,
        )  # fmt: skip
        for master in self.masters:
            master.grad = None
        self._round()

    def state_dict(self) -> dict[str, Tensor]:
        """Return masters and moments by name: these tensors, not copies."""
        state = {}
        for i, master in enumerate(self.masters):
            state[f"masters.{i}"] = master.detach()
            state |= {
                f"optimizer.state.{i}.{name}": value for name, value in self.state[master].items()
            }
        return state

    @torch.no_grad()
    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``, whose tensor of a name ``read`` returns."""
        for name, own in self.state_dict().items():
            own.copy_(read(name))
        self._round()

    def _round(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)


def _hand_over(master: Tensor, parameter: Tensor) -> None:
    """Add the gradient of ``parameter`` to that of its ``master``, and let it go."""
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
