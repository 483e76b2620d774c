"""What a model on a mesh says about itself: real FSDP and tensor parallelism, seen from any rank,
in one process whose collectives do nothing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from zorplex_rl.weights.reshard.plan import Sharding, local_box
from zorplex_rl.weights.reshard.sharded_model import (
    ShardedWeight,
    describe,
    local_weights,
    plan_model,
    rank_in,
)


@pytest.fixture
def mesh_of():
    """Puts this process at a rank of a mesh with ``dp`` × ``tp`` ranks."""

    def build(rank, dp, tp):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=dp * tp, store=FakeStore())
        return init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))

    yield build
    dist.destroy_process_group()


def make_model(mesh, rows):
    """A layer that is cut along both dimensions of the mesh, and a norm that is cut along ``dp``
    only."""
    model = nn.Sequential(nn.Linear(4, rows), nn.BatchNorm1d(rows))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


def test_every_rank_describes_the_model_alike_and_holds_what_the_description_says(mesh_of):
    expected = {
        "0.weight": ((11, 4), (_StridedShard(0, split_factor=2), Shard(0))),
        "0.bias": ((11,), (_StridedShard(0, split_factor=2), Shard(0))),
        "1.weight": ((11,), (Shard(0), Replicate())),
        "1.bias": ((11,), (Shard(0), Replicate())),
        "1.running_mean": ((11,), (Replicate(), Replicate())),
        "1.running_var": ((11,), (Replicate(), Replicate())),
        "1.num_batches_tracked": ((), (Replicate(), Replicate())),
    }
    for rank in range(6):
        mesh = mesh_of(rank, 3, 2)
        model = make_model(mesh, 11)
        found = describe(model, mesh)
        assert {
            name: (weight.shape, weight.sharding.placements) for name, weight in found.items()
        } == expected
        assert rank_in(mesh) == rank
        for name, shard in local_weights(model).items():
            assert shard.shape == local_box(found[name].shape, found[name].sharding, rank).sizes


def test_local_weights_share_memory_with_the_model(mesh_of):
    model = make_model(mesh_of(0, 2, 2), 8)
    for shard in local_weights(model).values():
        shard.fill_(3)
    assert (model[0].weight.to_local() == 3).all()
    assert (model[1].running_var == 3).all()


def test_a_shard_that_is_not_cut_as_its_placement_says_is_refused(mesh_of):
    # fully_shard cuts the 5 rows of one tp rank and the 4 of the other apart; its placement would
    # give the ninth row to another rank.
    mesh = mesh_of(6, 4, 2)
    model = make_model(mesh, 9)
    with pytest.raises(ValueError, match=r"'0.weight' .* shape \(0, 4\).*means \(1, 4\)"):
        describe(model, mesh)


def test_a_parameter_that_lies_elsewhere_is_refused(mesh_of):
    mesh = mesh_of(0, 2, 2)
    other = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    model = nn.ParameterDict({"p": DTensor.from_local(torch.zeros(2), other, [Shard(0)])})
    with pytest.raises(ValueError, match="cannot be resharded"):
        describe(model, mesh)


def test_a_plan_between_meshes_of_different_sizes_and_dimensions_is_the_minimum(mesh_of):
    mesh = mesh_of(0, 3, 2)
    source = describe(make_model(mesh, 11), mesh)
    columns = Sharding((2,), (Shard(0),))
    destination = {
        name: ShardedWeight(
            weight.shape, weight.dtype, columns if weight.shape else Sharding((2,), (Replicate(),))
        )
        for name, weight in source.items()
    }
    whole = sum(
        torch.Size(weight.shape).numel() * weight.dtype.itemsize for weight in source.values()
    )
    assert plan_model(source, destination).bytes_moved == whole + torch.int64.itemsize
