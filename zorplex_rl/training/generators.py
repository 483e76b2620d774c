"""The generators of a run: one worker for each place of the generator service.

    worker 0 ──► place 0 ──► generator_0   ✗ killed; the service puts generator_2 there, a spare that was loaded already
    worker 1 ──► place 1 ──► generator_1

A worker is a place in the run; which process fills it is the service's business. The worker only has to know that it is another one now,
because a new process has no weights yet.
"""

from __future__ import annotations

from typing import Any

from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.requests import ReplicaFailed
from zorplex_rl.services.service import Service
from zorplex_rl.training.trainer import Trainer

MAX_DEATHS_IN_A_ROW = 5
NO_WEIGHTS = -1


class Worker:
    """A place for one generator. Every call raises ReplicaFailed if its process dies, or was replaced by one that has no weights yet."""

    def __init__(self, service: Service, index: int) -> None:
        self.service, self.index = service, index
        self._replica: Replica | None = None
        self._read_from: Any = None
        self._version = NO_WEIGHTS
        self._dead: Replica | None = None
        self._deaths_in_a_row = 0

    @property
    def version(self) -> int:
        """That of the weights which the present process has, or -1."""
        ready = self._replica is not None and self._replica.state is State.READY
        return self._version if ready else NO_WEIGHTS

    async def pull(self, trainer: Trainer) -> int:
        """Have the newest published weights; their version. Waits for the trainer if that is being restarted."""
        while True:
            publisher = await trainer.actor()
            replica = await self.service.replica_at(self.index)
            if replica is not self._replica:
                self._replica, self._read_from, self._version = replica, None, NO_WEIGHTS
            if publisher is not self._read_from:
                self._read_from = publisher if await self._call("subscribe", publisher) else None
            if self._read_from and (version := await self._call("pull")) is not None:
                self._version = version
                return version
            # The weights could not be read. If the trainer is gone, this notices and waits until it is back.
            await trainer.ping()

    async def generate(self, tasks: list[Any]) -> list[Any]:
        groups = await self._call_with_weights("generate", tasks)
        self._deaths_in_a_row = 0
        return groups

    async def evaluate(self, tasks: list[Any], temperature: float) -> list[Any]:
        return await self._call_with_weights("evaluate", tasks, temperature)

    async def _call_with_weights(self, endpoint: str, *args: Any) -> Any:
        if self.version == NO_WEIGHTS:
            raise ReplicaFailed(f"worker {self.index}", f"the process of worker {self.index} was replaced; pull first")
        return await self._call(endpoint, *args)

    async def _call(self, endpoint: str, *args: Any) -> Any:
        """Have the process that this worker knows answer, and no other: what holds for its weights may not hold for a successor's."""
        replica = self._replica
        try:
            return await self.service.call(replica, endpoint, *args)
        except ReplicaFailed as error:
            # Of all the calls that one death ends, the first counts.
            self._deaths_in_a_row += replica is not self._dead
            self._dead = replica
            if self._deaths_in_a_row > MAX_DEATHS_IN_A_ROW:
                raise RuntimeError(
                    f"the generator of worker {self.index} has died {self._deaths_in_a_row} times without finishing a batch; "
                    f"the last time: {error}"
                ) from error
            raise
