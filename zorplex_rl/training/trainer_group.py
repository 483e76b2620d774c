"""A trainer of several processes: each has a part of the weights (``learning/sharded_learner.py``).

    controller ──► one replica ──┬──► rank 0   a half of every tensor ──► its ring ──┐
                                 └──► rank 1   the other half         ──► its ring ──┴──► every generator, both pieces

To the run it is a trainer like any other (``trainer.py``): one replica, which dies as a whole and
comes back. All ranks are on one host, and talk on its loopback address only.

A generator asks each rank for its part alone, so it reads every byte of a version once. A checkpoint
and the trained policy are gathered, tensor by tensor, on rank 0: as one process would write them, so
a run can be continued with another number of processes.
"""

import datetime
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from zorplex_rl.config import Config
from zorplex_rl.devices import prepare
from zorplex_rl.hosts.hosts import Hosts
from zorplex_rl.services.machine import Machine
from zorplex_rl.services.replica import ReplicaStart
from zorplex_rl.services.runtime import Result, current_rank
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.training.trainer import TrainerActor

if TYPE_CHECKING:
    from zorplex_rl.learning.sharded_learner import ShardedLearner
    from zorplex_rl.policy.load import Policy
    from zorplex_rl.training.shard_transports import RankPublisher

COLLECTIVE_SECONDS = 1800.0  # probes notice a hanging rank long before


class TrainerRankActor(TrainerActor):
    """One rank of the trainer. Each endpoint has to be called on all ranks, in the same order."""

    # They have the same methods.
    _learner: "ShardedLearner"  # type: ignore[assignment]
    _publisher: "RankPublisher"
    imports = (
        *TrainerActor.imports,
        "zorplex_rl.learning.sharded_learner",
        "zorplex_rl.training.shard_transports",
    )

    def __init__(self, name: str, config: Config, devices: Sequence[str], run: str) -> None:
        """The ranks find each other through a file, whose name no other trainer has."""
        self.rank, self.ranks = current_rank().rank, len(devices)
        self._meeting = Path(tempfile.gettempdir(), f"zorplex-{run}-{name}")
        super().__init__(name, config, devices[self.rank])

    async def compute(self, function: Callable[..., Result], *args: object) -> Result:
        """Return ``function(*args)``, run in a thread once no other compute runs."""

        def run() -> Result:
            if self.device != "cpu":
                import torch

                # Each thread has its own current device.
                torch.cuda.set_device(self.device)
            return function(*args)

        return await super().compute(run)

    def _load(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from zorplex_rl.learning.sharded_learner import ShardedLearner
        from zorplex_rl.policy.load import load_policy_of
        from zorplex_rl.training.shard_transports import RankPublisher

        config, kind = self.config, self.device.partition(":")[0]
        prepare(self.device, config.threads)
        dist.init_process_group(
            "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
            f"file://{self._meeting}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
        )
        # In main memory, wherever the shards go.
        self.policy = load_policy_of(config)
        torch.manual_seed(config.seed)
        mesh = init_device_mesh(kind, (self.ranks,))
        self._learner = ShardedLearner(
            self.policy, mesh, config.learner, config.steps, config.temperature
        )
        self._publisher = RankPublisher(self.policy.model, mesh, config)
        dist.barrier()
        if self.rank == 0:
            self._meeting.unlink()

    def _whole_policy(self) -> "Policy | None":
        from zorplex_rl.policy.load import load_policy_of

        if (weights := self._learner.whole_weights()) is None:
            return None
        whole = load_policy_of(self.config)
        whole.model.load_state_dict(weights)
        return whole


def trainer_of(config: Config, devices: Sequence[str], hosts: Hosts) -> ReplicaStart:
    """Return a function that starts the trainer of ``config`` on ``hosts``, with a process for each
    of ``devices``."""

    run = uuid4().hex

    def start_on(config: Config, devices: Sequence[str], machine: Machine) -> ReplicaStart:
        if len(devices) == 1:
            return replicas_of(TrainerActor, config, *devices, named=True, machine=machine)
        return replicas_of(
            TrainerRankActor, config, devices, run, named=True, procs=len(devices), machine=machine
        )

    return hosts.start(start_on, devices)
