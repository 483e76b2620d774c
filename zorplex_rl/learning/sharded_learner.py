"""One rank's part of a learner that is sharded over processes (FSDP2, torch's ``fully_shard``).

                    rank 0                          rank 1
    weights         a half of every tensor          the other half
    micro-batch     half of its rows                the other half        as many micro-batches on every rank, or their collectives would not meet
    layer           gather its weights ──► forward, backward ──► add up the gradients, each rank its half
    optimizer       steps its half                  steps its half

What a process keeps of weights, gradients, masters and moments is divided by the number of ranks;
one layer at a time is whole. Every loss is a sum over tokens divided by the tokens of the *whole*
batch, so the gradients of the ranks add up to that of one process, in another order: the only
difference that sharding makes.

Every rank calls the same methods with the same arguments, and returns the same diagnostics.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.learning.batches import Advantages, MicroBatch, collate
from zorplex_rl.learning.learner import Learner, largest_magnitude
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode

Result = TypeVar("Result")


class ShardedLearner(Learner):
    """Trains ``policy``'s model on all ranks of ``mesh``: whole before, then sharded in place."""

    def __init__(
        self,
        policy: Policy,
        mesh: DeviceMesh,
        config: LearnerConfig = Config.learner,
        decay_steps: int = 0,
        temperature: float = 1.0,
    ) -> None:
        self.mesh = mesh
        self._whole_layers = shard(policy.model, mesh)
        super().__init__(policy, config, decay_steps, temperature)

    def whole_state(self) -> dict[str, Tensor] | None:
        """Return the unsharded state on rank 0, in main memory, else None. Gathers by tensor."""
        return gather(self.state_dict(), self.mesh.get_rank() == 0)

    def _own_part(self, whole: Tensor, own: Tensor) -> Tensor:
        if not isinstance(own, DTensor):
            return whole
        # Every rank has read ``whole`` itself, so none sends anything.
        return distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the unsharded weights by name on rank 0, in main memory; None elsewhere."""
        return gather(self.policy.model.state_dict(), self.mesh.get_rank() == 0)

    def _collate(
        self,
        episodes: Sequence[Episode],
        advantages: Advantages,
        reference_logprobs: Sequence[Sequence[float]] | None,
    ) -> list[MicroBatch]:
        device, part = self.policy.model.device, (self.mesh.get_rank(), self.mesh.size())
        return collate(episodes, advantages, self.config.token_budget, reference_logprobs, device, part)

    def _run(self, function: Callable[..., Result], *args: Any) -> Result:
        return self._whole_layers(function, self.policy, *args)

    def _of_all(self, totals: Diagnostics, tensors: list[Tensor]) -> tuple[Diagnostics, list[Tensor]]:
        everybody: list[Any] = [None] * self.mesh.size()
        # As lists of numbers: a batch has some thousand tokens.
        dist.all_gather_object(everybody, (totals, [tensor.cpu() for tensor in tensors]), self.mesh.get_group())
        parts = [of_rank for of_rank, _ in everybody]
        return (
            {name: sum(part[name] for part in parts) for name in totals},
            [torch.cat(of_ranks) for of_ranks in zip(*(found for _, found in everybody), strict=True)],
        )

    def _largest(self, tensors: Sequence[Tensor]) -> float:
        own = largest_magnitude([t.to_local() if isinstance(t, DTensor) else t for t in tensors])
        _, (everybody,) = self._of_all({}, [torch.tensor([own])])
        return largest_magnitude([everybody])


class _Together(nn.Module):
    """Calls functions of a model while the weights that are in none of its layers are gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Result], *args: Any) -> Result:
        return function(*args)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard ``model`` over ``mesh`` by layer. Returns the module through which to call it.
    Gradients are added up over the ranks in float32, not averaged."""
    together = _Together(model)
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    for part in (*layers, together):
        # The root, too: after an evaluation, gathered weights would be old after the next step.
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in together.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return together


def gather(state: Any, keep: bool) -> Any:
    """Return ``state`` whole, in main memory; None unless ``keep``. All ranks must call this."""

    def whole(value: Any) -> Any:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return (value.detach().cpu() if isinstance(value, Tensor) else value) if keep else None

    found = tree_map(whole, state)
    return found if keep else None
