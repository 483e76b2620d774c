"""Describe a sharded model, and plan how to reshard all of it.

    trainer rank     describe(model, mesh) ──┐
                                             ├──► plan_model ──► ModelPlan; every rank computes the same one
    generator rank   describe(model, mesh) ──┘

A description is plain data, a few hundred bytes for each parameter, and it is equal on all ranks of
a mesh. A tensor that is not a DTensor counts as replicated: every rank holds all of it.

>>> from torch.distributed.tensor import Replicate, Shard
>>> rows, columns, everywhere = (Sharding((2,), (placement,)) for placement in (Shard(0), Shard(1), Replicate()))
>>> trainer = {"weight": ShardedWeight((4, 6), torch.float32, rows), "bias": ShardedWeight((3,), torch.float32, rows)}
>>> generator = {"weight": ShardedWeight((4, 6), torch.float32, columns), "bias": ShardedWeight((3,), torch.float32, everywhere)}
>>> model_plan = plan_model(trainer, generator)
>>> model_plan.traffic()
[[32, 32], [28, 28]]
>>> model_plan.bytes_moved, model_plan.minimum_bytes, model_plan.gather_then_scatter_bytes
(120, 120, 172)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from zorplex_rl.weights.layout import Layout, TensorEntry, named_weights
from zorplex_rl.weights.reshard.plan import Locations, Move, bytes_moved, gather_then_scatter_bytes, minimum_bytes, plan
from zorplex_rl.weights.reshard.sharding import Sharding, local_shape


@dataclass(frozen=True, slots=True)
class ShardedWeight:
    """A parameter and how it is sharded. ``shape`` is that of the whole tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sharding: Sharding


Description = Mapping[str, ShardedWeight]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The moves of every parameter.

    Parameters with the widest elements come first, so every piece is aligned although pieces are
    packed without gaps.
    """

    source: Description
    destination: Description
    moves: Mapping[str, tuple[Move, ...]]
    locations: Locations | None = None

    @property
    def bytes_moved(self) -> int:
        """Bytes that this plan sends between locations."""
        return sum(map(bytes_moved, self.moves.values()))

    @property
    def minimum_bytes(self) -> int:
        """The fewest bytes that any plan could send."""
        return self._total(minimum_bytes)

    @property
    def gather_then_scatter_bytes(self) -> int:
        """Bytes that would be sent if source rank 0 gathered every parameter and then sent out the
        shards."""
        return self._total(gather_then_scatter_bytes)

    def traffic(self) -> list[list[int]]:
        """Return the bytes that each source rank (row) sends to each destination rank (column)."""
        sources, destinations = _ranks(self.source), _ranks(self.destination)
        matrix = [[0] * destinations for _ in range(sources)]
        for moves in self.moves.values():
            for move in moves:
                matrix[move.source][move.destination] += move.bytes if move.travels else 0
        return matrix

    def _total(self, count) -> int:
        return sum(
            count(weight.shape, weight.sharding, self.destination[name].sharding, weight.dtype.itemsize, self.locations)
            for name, weight in self.source.items()
        )


def plan_model(source: Description, destination: Description, locations: Locations | None = None) -> ModelPlan:
    """Return the plan for all parameters. Raises LayoutMismatch, which names the first difference,
    if the two models differ."""
    _as_layout(destination).check(_as_layout(source))
    sent = [0] * _ranks(source)
    moves = {}
    for name in sorted(source, key=lambda name: -source[name].dtype.itemsize):
        weight = source[name]
        wanted = destination[name].sharding
        moves[name] = plan(weight.shape, weight.sharding, wanted, weight.dtype.itemsize, locations, sent)
    return ModelPlan(source, destination, moves, locations)


def describe(model: nn.Module, mesh: DeviceMesh) -> dict[str, ShardedWeight]:
    """Describe every parameter and saved buffer of ``model``. Its DTensors must be on ``mesh`` or
    on some dimensions of it.

    Raises ValueError for a parameter that is on another mesh, has a ``Partial`` placement, or has a
    shard of an unexpected shape.
    """
    return {
        name: ShardedWeight(tuple(tensor.shape), tensor.dtype, _sharding_on(mesh, name, tensor))
        for name, tensor in named_weights(model).items()
    }


def local_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return this rank's shard of every parameter and saved buffer. The shards share memory with
    the model."""
    with torch.no_grad():
        return {
            name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
            for name, tensor in named_weights(model).items()
        }


def rank_in(mesh: DeviceMesh) -> int:
    """Return this process's rank in ``mesh``, counted as in ``Sharding``."""
    return mesh.mesh.flatten().tolist().index(mesh.get_rank())


def _sharding_on(mesh: DeviceMesh, name: str, tensor: Tensor) -> Sharding:
    if not isinstance(tensor, DTensor):
        return Sharding(tuple(mesh.shape), (Replicate(),) * mesh.ndim)
    placements = _placements_on(mesh, name, tensor)
    sharding = Sharding(tuple(mesh.shape), placements)
    expected, found = local_shape(tensor.shape, sharding, rank_in(mesh)), tuple(tensor.to_local().shape)
    if found != expected:
        raise ValueError(
            f"parameter {name!r} cannot be resharded: this rank's shard has shape {found}, where {placements} on a mesh of "
            f"{sharding.mesh_shape} means {expected}; choose sizes that the mesh divides"
        )
    return sharding


def _placements_on(mesh: DeviceMesh, name: str, tensor: DTensor) -> tuple:
    """Return ``tensor``'s placement on each dimension of ``mesh``. It is replicated along the
    dimensions that its own mesh lacks."""
    if tensor.device_mesh == mesh:
        return tuple(tensor.placements)
    every, own = mesh.mesh_dim_names or (), tensor.device_mesh.mesh_dim_names or ()
    if not own or [dimension for dimension in every if dimension in own] != list(own):
        raise ValueError(
            f"parameter {name!r} lies on a mesh with dimensions {own}, which is no part of the mesh {every}; "
            "give describe() the mesh that all parameters lie on"
        )
    by_name = dict(zip(own, tensor.placements, strict=True))
    return tuple(by_name.get(dimension, Replicate()) for dimension in every)


def _ranks(description: Description) -> int:
    return next(iter(description.values())).sharding.ranks


def _as_layout(description: Description) -> Layout:
    """Return names, shapes and dtypes as a layout, which can be compared with another."""
    return Layout(tuple(TensorEntry(name, w.shape, w.dtype, 0, 0) for name, w in description.items()), 0)
