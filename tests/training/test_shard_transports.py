"""Weights from FSDP-sharded trainer processes to tensor-parallel generator processes: real meshes,
a real training step, bit for bit. ``test_trainer_group.py`` has a run with a sharded trainer."""

from __future__ import annotations

import asyncio
import tempfile

import pytest
import torch
from torch import nn

from zorplex_rl.course.nb07b import Rank, SmallModel, minimum_bytes, on_all
from zorplex_rl.course.shard_rings import pull_together, subscribe
from zorplex_rl.services.runtime import endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.weights.reshard.sharded_model import describe, plan_model, rank_in

pytestmark = pytest.mark.slow

WIDTH = 22
"""Four ranks do not divide it evenly."""


def cut(model: nn.Module, mesh) -> nn.Module:
    """Tensor parallel along ``tp``, then FSDP along ``dp`` with replicas along ``replicate``."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, parallel

    axes = mesh.mesh_dim_names
    if "tp" in axes:
        styles = {
            "embed": parallel.RowwiseParallel(input_layouts=Replicate()),
            "blocks.*.up": parallel.ColwiseParallel(),
            "blocks.*.down": parallel.RowwiseParallel(),
            "head": parallel.ColwiseParallel(output_layouts=Replicate()),
        }
        parallel.parallelize_module(model, mesh["tp"], styles)
    if "dp" in axes:
        data = mesh["replicate", "dp"] if "replicate" in axes else mesh["dp"]
        for block in model.blocks:
            fully_shard(block, mesh=data)
        fully_shard(model, mesh=data)
    return model


class MeshRank(Rank):
    """A rank of a mesh of any shape."""

    @endpoint
    def join(self, shape: dict[str, int], seed: int):
        torch.manual_seed(seed)
        self.mesh = torch.distributed.init_device_mesh(
            "cpu", tuple(shape.values()), mesh_dim_names=tuple(shape)
        )
        self.model = cut(SmallModel(WIDTH), self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        return describe(self.model, self.mesh)

    @endpoint
    def subscribe(self, offers, plan, transport) -> int:
        self.subscriber = asyncio.run(
            subscribe(offers, self.model, plan, rank_in(self.mesh), transport)
        )
        return self.subscriber.transfer_bytes


async def train_and_pull(trainer, generator, mesh: dict[str, int], transport: str) -> None:
    """Two steps of the trainer; after each, the generator's weights and what it computes with them
    are compared with the trainer's."""
    described = await asyncio.gather(
        on_all(trainer.join, mesh, 0), on_all(generator.join, {"tp": 2}, 1)
    )
    assert all(rank == side[0] for side in described for rank in side)
    plan = plan_model(*(side[0] for side in described))
    offers = await on_all(trainer.offer, plan)
    read = await on_all(generator.subscribe, offers, plan, transport)
    assert sum(read) == plan.bytes_moved == minimum_bytes(plan)
    for version in (1, 2):
        await on_all(trainer.step)
        await on_all(trainer.publish, version)
        assert version == await pull_together(
            lambda: on_all(generator.fetch), lambda v: on_all(generator.install, v)
        )
        whole, *found = await on_all(trainer.whole) + await on_all(generator.whole)
        for weights in found:
            assert all(torch.equal(weights[name], whole[name]) for name in whole)
        theirs, ours = await asyncio.gather(on_all(trainer.loss), on_all(generator.loss))
        assert ours == pytest.approx([theirs[0]] * 2, abs=1e-5)


@pytest.mark.long
def test_after_each_step_every_generator_shard_is_bit_equal_to_the_trainers_weights():
    async def run():
        replicas = await asyncio.gather(
            spawn("trainer", MeshRank, procs=4), spawn("generator", MeshRank, procs=2)
        )
        trainer, generator = (replica.actor for replica in replicas)
        try:
            await asyncio.gather(
                *(
                    on_all(side.meet, f"{tempfile.mkdtemp()}/meeting")
                    for side in (trainer, generator)
                )
            )
            await train_and_pull(trainer, generator, {"dp": 4}, "rdma")
            await train_and_pull(trainer, generator, {"dp": 2, "tp": 2}, "shm")
            await train_and_pull(trainer, generator, {"replicate": 2, "dp": 2}, "auto")
        finally:
            await asyncio.gather(*(replica.stop() for replica in replicas))

    asyncio.run(run())
