"""A trainer of several processes: each has a part of the weights (``learning/sharded_learner.py``).

    controller ──► TrainerGroup: one replica ──┬──► rank 0   a half of every tensor ──► its ring ──┐
                      answers as rank 0 does   └──► rank 1   the other half         ──► its ring ──┴──► every generator, both pieces

To the run it is a trainer like any other (``trainer.py``): one replica, which dies as a whole and
comes back. A lost rank leaves the others in a collective, out of reach: all of them are killed.

A generator holds the whole model and asks each rank for its part alone, so it reads every byte of a
version once. No process ever puts the weights together to send them. Only a checkpoint and the
trained policy are gathered, tensor by tensor, on rank 0. Both are what a trainer of one process
writes, so a run can be continued with another number of processes.

The ranks are all on one host, and talk on its loopback address only. When that host is lost, the group starts again on another
one, as late as a single trainer does (``services/host.py``).
"""

import asyncio
import datetime
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zorplex_rl.config import Config
from zorplex_rl.manifest import storing
from zorplex_rl.services.host import Host
from zorplex_rl.services.replica import Replica, ReplicaStart, spawn
from zorplex_rl.services.replica_process import ReplicaProcess
from zorplex_rl.services.runtime import ReplicaDied, concurrent_endpoint, current_rank
from zorplex_rl.training.actors import Result
from zorplex_rl.training.devices import names_of_ranks, one_each, prepare
from zorplex_rl.training.hosts.placement import Hosts
from zorplex_rl.training.trainer import TrainerActor

if TYPE_CHECKING:
    from zorplex_rl.learning.sharded_learner import ShardedLearner
    from zorplex_rl.training.shard_transports import RankPublisher

LOOPBACK = "127.0.0.1"
LAST_WORDS_SECONDS = 10.0
"""Seconds, after one rank's error, for the others' answers: one of them may be gone."""
COLLECTIVE_SECONDS = 1800.0
"""Seconds that a rank waits in a collective. Probes notice a hanging rank long before."""


class TrainerRankActor(TrainerActor):
    """One rank of the trainer. Each endpoint has to be called on all ranks, in the same order."""

    _learner: "ShardedLearner"  # type: ignore[assignment]  # It has the same methods.
    _publisher: "RankPublisher"
    imports = (*TrainerActor.imports, "zorplex_rl.learning.sharded_learner", "zorplex_rl.training.shard_transports")

    def __init__(self, name: str, config: Config, devices: Sequence[str]) -> None:
        self.rank, self.ranks = current_rank().rank, len(devices)
        super().__init__(name, config, devices[self.rank])
        self._store: Any = None

    @concurrent_endpoint
    async def meet(self) -> int:
        """Open, for rank 0, where this host's ranks find each other. Returns the port."""
        import torch.distributed as dist

        # Given a port alone, torch would listen on all addresses.
        listening = socket.create_server((LOOPBACK, 0))
        port = listening.getsockname()[1]
        self._store = dist.TCPStore(
            LOOPBACK, port, self.ranks, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return port

    @concurrent_endpoint
    async def join(self, port: int) -> None:
        """Join the other ranks."""

        def join() -> None:
            import torch.distributed as dist

            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback_interface()
            store = self._store or dist.TCPStore(LOOPBACK, port, self.ranks, is_master=False, wait_for_workers=False)
            dist.init_process_group(
                "gloo" if self.device == "cpu" else "cpu:gloo,cuda:nccl",
                store=store,
                rank=self.rank,
                world_size=self.ranks,
                timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
            )

        await self.compute(join)

    async def compute(self, function: Callable[..., Result], *args: Any) -> Result:
        """Return ``function(*args)``, run in a thread once no other compute runs."""

        def run() -> Result:
            if self.device != "cpu":
                import torch

                # A thread has a current device of its own.
                torch.cuda.set_device(self.device)
            return function(*args)

        return await super().compute(run)

    def _load(self) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh

        from zorplex_rl.learning.sharded_learner import ShardedLearner
        from zorplex_rl.policy.load import load_policy
        from zorplex_rl.training.shard_transports import RankPublisher

        config, kind = self.config, self.device.partition(":")[0]
        prepare(self.device, config.threads)
        # In main memory, wherever the shards go.
        self.policy = load_policy(config.policy, "cpu", config.dtype)
        torch.manual_seed(config.seed)
        mesh = init_device_mesh(kind, (self.ranks,))
        self._learner = ShardedLearner(self.policy, mesh, config.learner, config.steps, config.temperature)
        self._publisher = RankPublisher(self.policy.model, mesh, config)

    @concurrent_endpoint
    async def export(self, folder: str) -> None:
        """Write the policy as one process would. Raises StorageError if it cannot be written."""

        def write() -> None:
            from zorplex_rl.policy.load import load_policy, save_model

            weights = self._learner.whole_weights()
            if weights is None:
                return
            whole = load_policy(self.config.policy, "cpu", self.config.dtype)
            whole.model.load_state_dict(weights)
            with storing("the trained policy"):
                save_model(whole.model, whole.tokenizer, Path(folder))

        await self.compute(write)


class TrainerGroup(Replica):
    """All ranks as one replica: a request goes to every rank, and the answer is that of rank 0."""

    def __init__(self, name: str, process: ReplicaProcess | None, actor: Any = None, width: int = 1) -> None:
        super().__init__(name, process, actor)
        self.processes = width

    @property
    def ranks(self) -> list[Any]:
        """The actors of its processes, in the order of their ranks."""
        return [self.actor.slice(procs=rank) for rank in range(self.processes)]

    def method(self, name: str) -> Callable[..., Any]:
        """Return the function that calls endpoint ``name`` of all ranks; or AttributeError."""
        if name not in self._methods:
            calls = [getattr(rank, name).call_one for rank in self.ranks]
            self._methods[name] = lambda *args, **kwargs: _Answer([call(*args, **kwargs) for call in calls])
        return self._methods[name]


class _Answer:
    """What all ranks answer to one request."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def as_asyncio(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(_first_of([answer.as_asyncio() for answer in self._answers]))


async def _first_of(answers: Sequence[asyncio.Future[Any]]) -> Any:
    """Return the first of all ``answers``. Raises ReplicaDied if a rank is gone, else an error. A
    rank whose partner dies reports a broken connection: the step can be taken again."""
    _, missing = await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
    if missing:
        # They may wait for the rank that has failed, for ever.
        await asyncio.wait(missing, timeout=LAST_WORDS_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    errors = [error for answer in answers if answer.done() and (error := answer.exception())]
    for answer in answers:
        if not answer.done():
            answer.cancel()
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, ReplicaDied))
    return answers[0].result()


def trainer_of(config: Config, devices: dict[str, str], hosts: Hosts) -> ReplicaStart:
    """Return a function that starts the trainer of ``config`` on ``hosts``, group or not."""
    if config.services.trainer_processes == 1:
        return hosts.start(TrainerActor, devices["trainer"])
    own = [devices[name] for name in names_of_ranks(config.services.trainer_processes)]
    return hosts.start_as(partial(group_of, TrainerRankActor), own if hosts.hosts else one_each(own))


def group_of(
    actor_class: type[TrainerRankActor], config: Config, devices: Sequence[str], host: Host | None = None
) -> ReplicaStart:
    """Return a function that starts ``actor_class`` on ``devices``, joins and loads them."""

    async def start(name: str) -> Replica:
        group = await spawn(name, actor_class, name, config, devices, procs=len(devices), host=host, kind=TrainerGroup)
        try:
            port = await group.unless_lost(group.actor.slice(procs=0).meet.call_one().as_asyncio())
            # From now on a rank may wait for another that is gone; ``kill`` then ends it.
            await group.unless_lost(group.method("join")(port).as_asyncio())
            await group.unless_lost(group.method("setup")().as_asyncio())
        except BaseException:
            await group.kill()
            raise
        return group

    return start


def loopback_interface() -> str:
    """Return the network interface that no other host can reach: ``lo``, or ``lo0`` on macOS."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
