"""AdamW (Loshchilov, Hutter 2019, algorithm 2), as torch computes it, with float32 master weights.

A bfloat16 weight has eight bits of mantissa: it would lose a small step, and a sum of gradients
would lose whatever is below a 256th of it. So both are kept in float32, and the weights are rounded
from the masters after each step. Each gradient moves to its master at once, so bfloat16 and float32
gradients never all exist together. A float32 model is its own master.

``torch.optim.AdamW`` wraps the function that is called here, and imports torch's compiler.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """Keeps masters and moments of ``parameters``, which share a kind of device and have no other
    optimizer."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.masters: list[Tensor] = []
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        for parameter in self.parameters:
            master = parameter
            if parameter.dtype != torch.float32:
                master = torch.nn.Parameter(parameter.detach().float().clone())
                parameter.register_post_accumulate_grad_hook(partial(_hand_over, master))
            self.masters.append(master)
            self.state[master] = {
                # On the weights' device: the fused kernel rejects a step counter elsewhere.
                "step": torch.zeros((), device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradients down to ``max_norm``. Returns their norm before."""
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return torch.nn.utils.clip_grad_norm_(self.masters, max_norm).item()

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change the weights by their gradients, of which none may be missing, and free these."""
        states = self.state.values()
        adamw(
            self.masters,
            [master.grad for master in self.masters if master.grad is not None],
            exp_avgs=[state["exp_avg"] for state in states],
            exp_avg_sqs=[state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[],
            state_steps=[state["step"] for state in states],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            lr=learning_rate,
            weight_decay=0.0,
        )
        for master in self.masters:
            master.grad = None
        self._round()

    def state_dict(self) -> dict[str, Tensor]:
        """Return masters and moments by name: these tensors, not copies."""
        tensors = {}
        for i, (master, state) in enumerate(self.state.items()):
            tensors[f"masters.{i}"] = master.detach()
            for name, value in state.items():
                tensors[f"optimizer.state.{i}.{name}"] = value
        return tensors

    @torch.no_grad()
    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``: ``read`` returns its tensor of a given name."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(read(name))
        self._round()

    def _round(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)


def _hand_over(master: Tensor, parameter: Tensor) -> None:
    """Add the gradient of ``parameter`` to that of its ``master``, and free it."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None
