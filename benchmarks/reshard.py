"""What does a transfer of weights between differently sharded meshes cost, by the resharding plan and by gathering?

    reshard                every generator rank reads its pieces from the trainer ranks that hold them
    gather, then scatter   trainer rank 0 reads what it lacks, then every generator rank reads its shard from trainer rank 0

Both use the same rings and one-sided reads (``zorplex_rl/weights/reshard/transfer.py``) between
processes of this machine that hold random shards of a Llama-shaped model in bfloat16. On both
sides, ``dp`` is FSDP and ``tp`` is tensor parallelism. Seconds are counted from the first publish to
the last installed shard: the median over the repetitions, in which the two take turns. The set-up is
not timed. Megabytes are counted in the buffers that are read; those of the plan are the minimum,
which is checked.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from statistics import median

import torch
import tyro
from table import describe_machine, print_table
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from zorplex_rl.course.nb07b import minimum_bytes
from zorplex_rl.course.shard_rings import ShardPublisher, offer_all, subscribe
from zorplex_rl.services.replica import Replica
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training.transports import Subscriber
from zorplex_rl.weights.reshard.plan import Sharding, local_box
from zorplex_rl.weights.reshard.sharded_model import (
    Description,
    ModelPlan,
    ShardedWeight,
    plan_model,
)

Mesh = dict[str, int]
PAIRS: tuple[tuple[Mesh, Mesh], ...] = (
    ({"dp": 2}, {"tp": 2}),
    ({"dp": 4}, {"tp": 2}),
    ({"dp": 2, "tp": 2}, {"tp": 2}),
)
WHOLE = Sharding((1,), (Replicate(),))


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    hidden: int = 1024
    """Width of the model; the MLP is 2.75 times as wide."""
    layers: int = 4
    """Layers of the model."""
    vocabulary: int = 8192
    """Rows of the embedding and of the output layer."""
    repeats: int = 7
    """Transfers of each kind for each pair of meshes."""


class RankActor(Actor):
    """Act as a rank of either side; trainer rank 0 may also gather the whole model."""

    def __init__(self, description: Description, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank, self.held = rank, {"shard": hold(description, rank)}
        self.publishers: dict[str, ShardPublisher] = {}
        self.subscribers: dict[str, Subscriber] = {}

    @concurrent_endpoint
    async def offer(self, route: str, plan: ModelPlan, what: str) -> dict:
        """Set up a publisher of the ``shard``, or the ``whole`` that this rank gathered."""
        self.publishers[route] = ShardPublisher(
            self.held[what], plan, 0 if what == "whole" else self.rank
        )
        return offer_all(self.publishers[route])

    @concurrent_endpoint
    async def subscribe(self, route: str, offers: list, plan: ModelPlan) -> int:
        self.subscribers[route] = await subscribe(offers, self.held["shard"], plan, self.rank)
        return self.subscribers[route].transfer_bytes

    @concurrent_endpoint
    async def gather(self, route: str, offers: list, plan: ModelPlan) -> int:
        """Subscribe to the whole model. Returns the bytes that are read from other ranks."""
        self.held["whole"] = hold(plan.destination, 0)
        self.subscribers[route] = await subscribe(offers, self.held["whole"], plan, 0)
        return self.subscribers[route].transfer_bytes - self.publishers[route].rings[0].layout.size

    @concurrent_endpoint
    async def publish(self, route: str, what: str, version: int) -> None:
        await asyncio.to_thread(self.publishers[route].publish, self.held[what], version)

    @concurrent_endpoint
    async def pull(self, route: str) -> None:
        subscriber = self.subscribers[route]
        await subscriber.fetch()
        await asyncio.to_thread(subscriber.swap)


@dataclass(slots=True)
class Sides:
    """Hold the processes of a pair of meshes, and what each side holds."""

    trainer: list[Replica]
    generator: list[Replica]
    source: Description
    destination: Description

    async def connect(self) -> tuple[int, int]:
        """Prepare both kinds of transfer. Returns the bytes that each reads."""
        direct = plan_model(self.source, self.destination)
        offers = await call(self.trainer, "offer", "direct", direct, "shard")
        moved = await call(self.generator, "subscribe", "direct", offers, direct)

        whole = {name: ShardedWeight(w.shape, w.dtype, WHOLE) for name, w in self.source.items()}
        gathering, scattering = plan_model(self.source, whole), plan_model(whole, self.destination)
        offers = await call(self.trainer, "offer", "gather", gathering, "shard")
        gathered = await call(self.trainer[:1], "gather", "gather", offers, gathering)
        offers = await call(self.trainer[:1], "offer", "scatter", scattering, "whole")
        scattered = await call(self.generator, "subscribe", "scatter", offers, scattering)
        found = sum(moved), sum(gathered) + sum(scattered)
        assert found == (minimum_bytes(direct), gather_then_scatter_bytes(direct))
        return found

    async def reshard(self, version: int) -> None:
        await call(self.trainer, "publish", "direct", "shard", version)
        await call(self.generator, "pull", "direct")

    async def gather_then_scatter(self, version: int) -> None:
        await call(self.trainer, "publish", "gather", "shard", version)
        await call(self.trainer[:1], "pull", "gather")
        await call(self.trainer[:1], "publish", "scatter", "whole", version)
        await call(self.generator, "pull", "scatter")


async def call(replicas: list[Replica], endpoint: str, *args) -> list:
    """Call all ``replicas`` at once. Returns their answers."""
    return await asyncio.gather(
        *(getattr(replica.actor, endpoint).call_one(*args) for replica in replicas)
    )


async def measure(options: Options, trainer: Mesh, generator: Mesh) -> list[str]:
    """Run both kinds of transfer between these meshes, in turns. Returns a row of the table."""
    source, destination = (describe_llama(options, mesh) for mesh in (trainer, generator))
    described = [("trainer", source, rank) for rank in range(math.prod(trainer.values()))]
    described += [("generator", destination, rank) for rank in range(math.prod(generator.values()))]
    replicas = [
        await spawn(f"{side}_{rank}", RankActor, held, rank) for side, held, rank in described
    ]
    try:
        first = math.prod(trainer.values())
        sides = Sides(replicas[:first], replicas[first:], source, destination)
        megabytes = [f"{size / 1e6:.1f}" for size in await sides.connect()]
        seconds: dict[str, list[float]] = {"reshard": [], "gather": []}
        for version in range(options.repeats + 1):
            for times, transfer in zip(
                seconds.values(), (sides.reshard, sides.gather_then_scatter), strict=True
            ):
                began = time.perf_counter()
                await transfer(version)
                times.append(time.perf_counter() - began)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))
    # The first round warms up.
    ratios = [theirs / ours for ours, theirs in list(zip(*seconds.values(), strict=True))[1:]]
    medians = [f"{median(times[1:]):.3f}" for times in seconds.values()]
    meshes = " → ".join(
        " × ".join(f"{name} {size}" for name, size in mesh.items()) for mesh in (trainer, generator)
    )
    return [
        meshes,
        *megabytes,
        *medians,
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} – {max(ratios):.2f}",
    ]


def gather_then_scatter_bytes(plan: ModelPlan) -> int:
    """Return the bytes that move if source rank 0 gathers what it has not, and sends every
    destination rank its shard."""
    gathered = 0
    for weight in plan.source.values():
        held = math.prod(local_box(weight.shape, weight.sharding, 0).sizes)
        gathered += (math.prod(weight.shape) - held) * weight.dtype.itemsize
    return gathered + minimum_bytes(plan)


def describe_llama(options: Options, mesh: Mesh) -> dict[str, ShardedWeight]:
    """Return a Llama-shaped model on ``mesh``: ``tp`` splits columns and rows, ``dp`` the rows of
    each part, as fully_shard does."""
    hidden, wide, narrow = options.hidden, options.hidden * 11 // 4, options.hidden // 4
    columns = {"q": (hidden, hidden), "k": (narrow, hidden), "v": (narrow, hidden)}
    columns |= {"gate": (wide, hidden), "up": (wide, hidden)}
    rows = {"o": (hidden, hidden), "down": (hidden, wide)}
    shapes = dict.fromkeys(("embed", "head"), (options.vocabulary, hidden, 0))
    for layer in range(options.layers):
        shapes |= {f"{name}_{layer}": (*shape, 0) for name, shape in columns.items()}
        shapes |= {f"{name}_{layer}": (*shape, 1) for name, shape in rows.items()}
    return {name: _place(shape, dim, mesh) for name, (*shape, dim) in shapes.items()}


def hold(description: Description, rank: int) -> nn.Module:
    """Return random numbers in the shapes of ``rank``'s shards."""
    model = nn.Module()
    for name, weight in description.items():
        model.register_buffer(
            name, torch.randn(local_box(weight.shape, weight.sharding, rank).sizes).to(weight.dtype)
        )
    return model


def _place(shape: list[int], tp_dim: int, mesh: Mesh) -> ShardedWeight:
    strided = _StridedShard(0, split_factor=mesh.get("tp", 1))
    on: dict[str, Placement] = {"tp": Shard(tp_dim)}
    on["dp"] = strided if "tp" in mesh and tp_dim == 0 else Shard(0)
    sharding = Sharding(tuple(mesh.values()), tuple(on[dimension] for dimension in mesh))
    return ShardedWeight(tuple(shape), torch.bfloat16, sharding)


def main(options: Options) -> None:
    print(describe_machine())
    rows = [asyncio.run(measure(options, trainer, generator)) for trainer, generator in PAIRS]
    columns = [
        "meshes",
        "MB, reshard",
        "MB, gather",
        "s, reshard",
        "s, gather",
        "its time ÷ reshard's",
        "range",
    ]
    note = "'gather' is gather, then scatter."
    print_table("Weights from trainer meshes to generator meshes", columns, rows, note)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
