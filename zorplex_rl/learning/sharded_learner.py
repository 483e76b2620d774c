"""One rank's part of a learner that is sharded over processes (FSDP2, torch's ``fully_shard``).

                    rank 0                          rank 1
    weights         a half of every tensor          the other half
    micro-batch     half of its rows                the other half        as many on every rank: their collectives meet
    layer           gather its weights ──► forward, backward ──► add up the gradients, each rank its half
    optimizer       steps its half                  steps its half

A process keeps its part of weights, gradients, masters and moments; one layer at a time is whole.
Every loss is a sum over tokens divided by the tokens of the *whole* batch, so the gradients of the
ranks add up to that of one process. Only the order of the sum differs. Every rank calls the same
methods with the same arguments, and returns the same diagnostics.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.policy.load import Policy


class ShardedLearner(Learner):
    """Trains ``policy``'s model on all ranks of ``mesh``, and shards it in place. ``step`` gets the whole
    batch on every rank, trains on this rank's part, and returns the diagnostics of all."""

    def __init__(
        self,
        policy: Policy,
        mesh: DeviceMesh,
        config: LearnerConfig,
        decay_steps: int = 0,
        temperature: float = 1.0,
    ) -> None:
        self.mesh = mesh
        self.part = (mesh.get_rank(), mesh.size())
        self._gathering = shard(policy.model, mesh)
        super().__init__(policy, config, decay_steps, temperature)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._gathering(function, *args)

    def of_all_ranks(
        self, totals: Diagnostics, tensors: list[Tensor]
    ) -> tuple[Diagnostics, list[Tensor]]:
        gathered: list[Any] = [None] * self.mesh.size()
        # As objects: a batch has only some thousand tokens.
        sent = (totals, [tensor.cpu() for tensor in tensors])
        dist.all_gather_object(gathered, sent, self.mesh.get_group())
        all_totals, all_tensors = zip(*gathered, strict=True)
        sums = {name: sum(part[name] for part in all_totals) for name in totals}
        return sums, [torch.cat(parts) for parts in zip(*all_tensors, strict=True)]

    def state_dict(self) -> dict[str, Tensor] | None:  # type: ignore[override]
        """Return the whole state on rank 0, in main memory; None elsewhere. Gathers tensor by tensor."""
        return self._gather(super().state_dict())

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the whole weights by name on rank 0, in main memory; None elsewhere."""
        return self._gather(self.policy.model.state_dict())

    def _gather(self, state: dict[str, Any]) -> dict[str, Tensor] | None:
        is_first = self.mesh.get_rank() == 0
        gathered = {}
        for name, value in state.items():
            # Gathering a tensor needs all ranks.
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if is_first:
                gathered[name] = whole.detach().cpu()
        return gathered if is_first else None

    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``: ``read`` returns its whole tensor of a given name."""
        state = self.optimizer.state_dict()

        def own_part(name: str) -> Tensor:
            whole = read(name)
            part = state.get(name)
            if not isinstance(part, DTensor):
                return whole
            # Every rank has read ``whole`` itself, so none sends anything.
            return distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)

        super().restore(own_part)


class _Gathering(nn.Module):
    """Calls functions of a model while the weights outside its layers are gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard ``model`` over ``mesh`` by layer. Returns the module through which it is called. Gradients
    are added up over the ranks in float32, not averaged."""
    gathering = _Gathering(model)
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for part in (*layers, gathering):
        # The root, too: weights that stay gathered after an evaluation are stale after the next step.
        fully_shard(
            part,
            mesh=mesh,
            reshard_after_forward=True,
            mp_policy=precision,
        )
    for module in gathering.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return gathering
