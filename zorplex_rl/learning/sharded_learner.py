"""One rank's part of a learner that is sharded over processes (FSDP2, torch's ``fully_shard``).

                    rank 0                          rank 1
    weights         a half of every tensor          the other half
    micro-batch     half of its rows                the other half        as many on every rank: their collectives meet
    layer           gather its weights ──► forward, backward ──► add up the gradients, each rank its half
    optimizer       steps its half                  steps its half

A process keeps its part of weights, gradients, masters and moments; one layer at a time is whole.
Every loss is a sum over tokens divided by the tokens of the *whole* batch, so the gradients of the
ranks add up to that of one process, in another order: the only difference that sharding makes.
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

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.adamw import AdamW
from zorplex_rl.learning.learner import take_step
from zorplex_rl.learning.ratios import Diagnostics
from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode

Result = TypeVar("Result")


class ShardedLearner:
    """Trains ``policy``'s model on all ranks of ``mesh``: whole before, then sharded in place.
    Each method is that of ``Learner``."""

    def __init__(
        self,
        policy: Policy,
        mesh: DeviceMesh,
        config: LearnerConfig,
        decay_steps: int = 0,
        temperature: float = 1.0,
    ) -> None:
        self.policy = policy
        self.mesh = mesh
        self.config = config
        self.version = 0
        self.decay_steps = decay_steps
        self.temperature = temperature
        self._gathering = shard(policy.model, mesh)
        self.optimizer = AdamW([p for p in policy.model.parameters() if p.requires_grad])

    def step(
        self,
        episodes: Sequence[Episode],
        advantages: Sequence[float],
        reference_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> Diagnostics:
        """Train on this rank's part of ``episodes``. Returns the diagnostics of all of them."""
        return take_step(self, episodes, advantages, reference_logprobs)

    @property
    def part(self) -> tuple[int, int]:
        return self.mesh.get_rank(), self.mesh.size()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._gathering(function, *args)

    def of_all_ranks(
        self, totals: Diagnostics, tensors: list[Tensor]
    ) -> tuple[Diagnostics, list[Tensor]]:
        gathered: list[Any] = [None] * self.mesh.size()
        # A batch has some thousand tokens.
        dist.all_gather_object(
            gathered, (totals, [tensor.cpu() for tensor in tensors]), self.mesh.get_group()
        )
        sums = {name: sum(part[name] for part, _ in gathered) for name in totals}
        joined = [
            torch.cat(of_ranks) for of_ranks in zip(*(parts for _, parts in gathered), strict=True)
        ]
        return sums, joined

    def state_dict(self) -> dict[str, Tensor] | None:
        """Return the unsharded state on rank 0, in main memory, else None. Gathers by tensor."""
        return self._gather({"version": torch.tensor(self.version)} | self.optimizer.state_dict())

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the unsharded weights by name on rank 0, in main memory; None elsewhere."""
        return self._gather(self.policy.model.state_dict())

    def _gather(self, state: dict[str, Any]) -> dict[str, Tensor] | None:
        is_first = self.mesh.get_rank() == 0
        gathered = {}
        for name, value in state.items():
            # All ranks take part in gathering a tensor.
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if is_first:
                gathered[name] = whole.detach().cpu()
        return gathered if is_first else None

    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Continue from a ``state_dict``, whose tensor of a name ``read`` returns unsharded."""
        state = self.optimizer.state_dict()

        def own_part(name: str) -> Tensor:
            whole = read(name)
            part = state[name]
            if not isinstance(part, DTensor):
                return whole
            # Every rank has read ``whole`` itself, so none sends anything.
            return distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)

        self.version = int(read("version"))
        self.optimizer.restore(own_part)


class _Gathering(nn.Module):
    """Call functions of a model while the weights that are in none of its layers are gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Result], *args: Any) -> Result:
        return function(*args)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard ``model`` over ``mesh`` by layer. Returns the module through which to call it.
    Gradients are added up over the ranks in float32, not averaged."""
    gathering = _Gathering(model)
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    for part in (*layers, gathering):
        # The root, too: after an evaluation, gathered weights would be old after the next step.
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in gathering.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return gathering
