"""Weights from FSDP-sharded trainer processes to tensor-parallel generator processes: real meshes,
a real training step, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM
from zorplex_rl.services.own_folder import own_folder

from zorplex_rl.services.replica import Replica, spawn
from zorplex_rl.services.runtime import Actor, current_rank, endpoint
from zorplex_rl.training.shard_transports import offer, subscribe
from zorplex_rl.weights.reshard.sharded_model import describe, local_weights, plan_model, rank_in
from zorplex_rl.weights.reshard.transfer import ShardPublisher, pull_together

# Four ranks divide neither 77 nor 42 rows evenly, and two not 77.
SIZES = {"vocab_size": 77, "hidden_size": 24, "intermediate_size": 42, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}


def make_model(seed: int) -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS))


def parallelize(model, mesh) -> None:
    """Tensor parallelism as for any Llama: columns, then rows, so that each block needs one sum."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {f"model.layers.*.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    styles |= {f"model.layers.*.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    styles |= {f"model.layers.*.{name}_proj": RowwiseParallel() for name in ("self_attn.o", "mlp.down")}
    styles["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
    styles["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, styles)


class RankActor(Actor):
    """A rank of either side. Its endpoints are plain functions, as collectives need it."""

    @endpoint
    def join(self, meeting: Path, shape: dict[str, int], seed: int):
        """Build the model on a mesh, tensor parallel along ``tp``, FSDP along ``dp`` with replicas
        along ``replicate``, and describe it."""
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        if not dist.is_initialized():
            here = current_rank()
            ranks = here.extent.nelements
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=here.rank, world_size=ranks)
        self.mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
        self.model = make_model(seed)
        if "tp" in shape:
            parallelize(self.model, self.mesh["tp"])
        if "dp" in shape:
            data = self.mesh["replicate", "dp"] if "replicate" in shape else self.mesh["dp"]
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=data)
            fully_shard(self.model, mesh=data)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        return describe(self.model, self.mesh)

    @endpoint
    def offer(self, plan):
        self.publisher = ShardPublisher(self.model, plan, rank_in(self.mesh))
        return offer(self.publisher)

    @endpoint
    def train(self, version: int) -> dict[str, torch.Tensor]:
        """One step, published as ``version``; returns the whole weights, as FSDP itself gathers
        them."""
        tokens = torch.arange(SIZES["vocab_size"])[None]
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.publisher.publish(self.model, version)
        whole = {name: p.data for name, p in self.model.named_parameters()}
        return {name: t.full_tensor().clone() for name, t in whole.items()}

    @endpoint
    def subscribe(self, offers, plan, transport) -> int:
        self.subscriber = asyncio.run(subscribe(offers, self.model, plan, rank_in(self.mesh), transport))
        return self.subscriber.transfer_bytes

    @endpoint
    def fetch(self) -> int:
        return asyncio.run(self.subscriber.fetch())

    @endpoint
    def install(self, version: int) -> None:
        self.subscriber.install(version)

    @endpoint
    def shards(self) -> dict[str, tuple[torch.Tensor, tuple[int, ...]]]:
        """Each parameter's shard, and where it stands in the whole according to DTensor."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        found = {}
        for name, p in self.model.named_parameters():
            offsets = (0,) * p.ndim
            if isinstance(p, DTensor):
                _, offsets = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
            found[name] = (local_weights(self.model)[name].clone(), offsets)
        return found

    @endpoint
    def loss(self) -> float:
        tokens = torch.arange(SIZES["vocab_size"])[None]
        with torch.no_grad():
            return self.model(input_ids=tokens, labels=tokens).loss.item()


async def start(name: str, ranks: int) -> Replica:
    return await spawn(name, RankActor, procs=ranks)


async def on_all(endpoint, *args) -> list:
    return [value for _, value in (await endpoint.call(*args)).items()]


async def train_and_pull(trainer, generator, trainer_mesh, transport) -> None:
    """Two steps of the trainer; after each, the generator's shards and what it computes with them
    are compared with the trainer's."""
    described = await asyncio.gather(
        on_all(trainer.join, own_folder() / "meeting", trainer_mesh, 0),
        on_all(generator.join, own_folder() / "meeting", {"tp": 2}, 1),
    )
    assert all(rank == side[0] for side in described for rank in side)
    plan = plan_model(*(side[0] for side in described))
    offers = await on_all(trainer.offer, plan)
    read = await on_all(generator.subscribe, offers, plan, transport)
    assert sum(read) == plan.bytes_moved == plan.minimum_bytes < plan.gather_then_scatter_bytes
    for version in (1, 2):
        whole = (await on_all(trainer.train, version))[0]
        assert version == await pull_together(lambda: on_all(generator.fetch), lambda v: on_all(generator.install, v))
        for shards in await on_all(generator.shards):
            for name, (shard, offsets) in shards.items():
                block = tuple(slice(o, o + size) for o, size in zip(offsets, shard.shape, strict=True))
                assert torch.equal(shard, whole[name][block]), name
        theirs, ours = await asyncio.gather(on_all(trainer.loss), on_all(generator.loss))
        assert ours == pytest.approx([theirs[0]] * 2, abs=1e-5)


@pytest.mark.long
def test_after_each_step_every_generator_shard_is_bit_equal_to_the_trainers_weights():
    async def run():
        replicas = trainers, generators = await asyncio.gather(start("trainer", 4), start("generator", 2))
        trainer, generator = trainers.actor, generators.actor
        try:
            await train_and_pull(trainer, generator, {"dp": 4}, "rdma")
            await train_and_pull(trainer, generator, {"dp": 2, "tp": 2}, "shm")
            await train_and_pull(trainer, generator, {"replicate": 2, "dp": 2}, "auto")
        finally:
            await asyncio.gather(*(replica.stop() for replica in replicas))

    asyncio.run(run())
