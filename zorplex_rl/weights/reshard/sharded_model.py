"""Describe a sharded model, and plan how to reshard all of it.

    trainer rank     describe(model, mesh) ──┐
                                             ├──► plan_model ──► ModelPlan; every rank computes the same one
    generator rank   describe(model, mesh) ──┘

A description is plain data, and the same on all ranks of a mesh. A tensor that is not a DTensor counts
as replicated: every rank holds all of it.

>>> from torch.distributed.tensor import Replicate, Shard
>>> rows = Sharding((2,), (Shard(0),))
>>> columns = Sharding((2,), (Shard(1),))
>>> everywhere = Sharding((2,), (Replicate(),))
>>> matrix, vector, float32 = (4, 6), (3,), torch.float32
>>> trainer = {"a": ShardedWeight(matrix, float32, rows), "b": ShardedWeight(vector, float32, rows)}
>>> generator = {"a": ShardedWeight(matrix, float32, columns), "b": ShardedWeight(vector, float32, everywhere)}
>>> plan_model(trainer, generator).traffic()
[[32, 32], [28, 28]]
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from zorplex_rl.weights.layout import check_shapes, named_weights
from zorplex_rl.weights.reshard.plan import Move, Sharding, local_box, plan


@dataclass(frozen=True, slots=True)
class ShardedWeight:
    """A parameter and how it is sharded."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: torch.dtype
    sharding: Sharding


Description = Mapping[str, ShardedWeight]
Pieces = Mapping[int, dict[str, Tensor]]
"""For each rank of the other side, views of shards by name. Both sides use the same names and shapes."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The moves of every parameter."""

    source: Description
    destination: Description
    moves: Mapping[str, tuple[Move, ...]]

    @property
    def bytes_moved(self) -> int:
        """Bytes that this plan sends."""
        return sum(map(sum, self.traffic()))

    def traffic(self) -> list[list[int]]:
        """Return the bytes that each source rank (row) sends to each destination rank (column)."""
        matrix = [[0] * _ranks(self.destination) for _ in range(_ranks(self.source))]
        for move in chain.from_iterable(self.moves.values()):
            matrix[move.source][move.destination] += move.bytes
        return matrix


def plan_model(source: Description, destination: Description) -> ModelPlan:
    """Return the plan for all parameters. Raises LayoutMismatch if the two models differ."""
    check_shapes(_shapes(destination), _shapes(source))
    sent = [0] * _ranks(source)
    moves = {}
    for name, weight in source.items():
        target = destination[name].sharding
        moves[name] = plan(weight.shape, weight.sharding, target, weight.dtype.itemsize, sent)
    return ModelPlan(source, destination, moves)


def _shapes(description: Description) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in description.items()}


def _ranks(description: Description) -> int:
    return next(iter(description.values())).sharding.ranks


def describe(
    model: nn.Module,
    mesh: DeviceMesh,
) -> dict[str, ShardedWeight]:
    """Describe every parameter and saved buffer of ``model``. Its DTensors are on ``mesh``, or on a mesh with
    some of its named dimensions. Raises ValueError for a shard of an unexpected shape."""
    description = {}
    for name, tensor in named_weights(model).items():
        sharding = _sharding_on(mesh, name, tensor)
        description[name] = ShardedWeight(tuple(tensor.shape), tensor.dtype, sharding)
    return description


def local_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return this rank's shard of every parameter and saved buffer. The shards are views of the model."""
    tensors = named_weights(model)
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }


def rank_in(mesh: DeviceMesh) -> int:
    """Return this process's rank in ``mesh``, counted as in ``Sharding``."""
    return mesh.mesh.flatten().tolist().index(mesh.get_rank())


def _sharding_on(mesh: DeviceMesh, name: str, tensor: Tensor) -> Sharding:
    if not isinstance(tensor, DTensor):
        return Sharding(tuple(mesh.shape), (Replicate(),) * mesh.ndim)
    placements = tuple(tensor.placements)
    if tensor.device_mesh != mesh:
        # It is replicated along the dimensions that its mesh does not have.
        along = dict(zip(tensor.device_mesh.mesh_dim_names or (), placements, strict=True))
        placements = tuple(
            along.get(dimension, Replicate()) for dimension in mesh.mesh_dim_names or ()
        )
    sharding = Sharding(tuple(mesh.shape), placements)
    expected = local_box(tensor.shape, sharding, rank_in(mesh)).sizes
    shape = tuple(tensor.to_local().shape)
    if shape != expected:
        # FSDP on top of tensor parallelism cuts some uneven sizes in a way that no placement describes.
        raise ValueError(
            f"parameter {name!r} cannot be resharded: this rank's shard has shape {shape}, and {sharding} "
            f"means {expected}; choose sizes that the mesh divides"
        )
    return sharding


def outgoing(plan: ModelPlan, model: nn.Module, source: int) -> Pieces:
    """Return the pieces of rank ``source``'s shards that go to each destination rank."""
    shards = local_weights(model)
    pieces: Pieces = defaultdict(dict)
    for name, moves in plan.moves.items():
        for number, move in enumerate(moves):
            if move.source == source:
                piece = shards[name][move.source_slices]
                pieces[move.destination][f"{name}[{number}]"] = piece
    return pieces


def incoming(plan: ModelPlan, model: nn.Module, destination: int) -> Pieces:
    """Return the pieces of rank ``destination``'s shards that come from each source rank, in the order of
    the ranks."""
    shards = local_weights(model)
    pieces: Pieces = defaultdict(dict)
    for name, moves in plan.moves.items():
        for number, move in enumerate(moves):
            if move.destination == destination:
                piece = shards[name][move.destination_slices]
                pieces[move.source][f"{name}[{number}]"] = piece
    return dict(sorted(pieces.items()))
