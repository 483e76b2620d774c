"""A trainer of several processes: each has a part of the weights (``learning/sharded_learner.py``).

    controller ──► one replica ──┬──► rank 0   a half of every tensor ──► its ring ──┐
                                 └──► rank 1   the other half         ──► its ring ──┴──► every generator reads both

The run handles it like any trainer (``trainer.py``): it is one replica, which dies and is restored as
a whole. All ranks are on one host, and use only its loopback address.

A generator reads from each rank only that rank's part, so it reads every byte of a version once. For
a checkpoint or the trained policy, rank 0 gathers one tensor after another, and writes the same files
as a single process. So a run can be continued with another number of processes.
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

COLLECTIVE_SECONDS = 1800.0
"""Limit of a collective. Probes notice a hanging rank long before."""


class TrainerRankActor(TrainerActor):
    """One rank of the trainer. Every endpoint must be called on all ranks, in the same order."""

    # Same methods, other classes.
    _learner: "ShardedLearner"
    _publisher: "RankPublisher"
    imports = (
        *TrainerActor.imports,
        "zorplex_rl.learning.sharded_learner",
        "zorplex_rl.training.shard_transports",
    )

    def __init__(
        self,
        name: str,
        config: Config,
        devices: Sequence[str],
        run: str,
    ) -> None:
        self.rank = current_rank().rank
        self.ranks = len(devices)
        self._meeting_point = Path(tempfile.gettempdir(), f"zorplex-{run}-{name}")
        """The file through which the ranks find each other. No other trainer has that name."""
        super().__init__(name, config, devices[self.rank])

    async def compute(
        self,
        function: Callable[..., Result],
        *args: object,
    ) -> Result:
        """Return ``function(*args)``. Waits for earlier calls, then runs it in a thread."""

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

        config = self.config
        kind = self.device.partition(":")[0]
        prepare(self.device, config.threads)
        dist.init_process_group(
            "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
            f"file://{self._meeting_point}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
        )
        # The whole model is loaded in main memory, whatever the device of the shards.
        self.policy = load_policy_of(config)
        torch.manual_seed(config.seed)
        mesh = init_device_mesh(kind, (self.ranks,))
        self._learner = ShardedLearner(
            self.policy, mesh, config.learner, config.steps, config.temperature
        )
        self._publisher = RankPublisher(self.policy.model, mesh, config)
        dist.barrier()
        if self.rank == 0:
            self._meeting_point.unlink()

    def _whole_policy(self) -> "Policy | None":
        from zorplex_rl.policy.load import load_policy_of

        weights = self._learner.whole_weights()
        if weights is None:
            return None
        whole = load_policy_of(self.config)
        whole.model.load_state_dict(weights)
        return whole


def trainer_of(config: Config, devices: Sequence[str], hosts: Hosts) -> ReplicaStart:
    """Return a function that starts the trainer of ``config`` on ``hosts``, with one process for each of
    ``devices``."""
    run = uuid4().hex

    def start_on(config: Config, devices: Sequence[str], machine: Machine) -> ReplicaStart:
        if len(devices) == 1:
            return replicas_of(TrainerActor, config, *devices, named=True, machine=machine)
        return replicas_of(
            TrainerRankActor, config, devices, run, named=True, procs=len(devices), machine=machine
        )

    return hosts.start(start_on, devices)
