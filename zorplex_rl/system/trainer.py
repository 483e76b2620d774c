"""The trainer's process, and its way back when it dies.

    checkpoint 20 ── step 21 ── step 22 ── step 23 ✗        the process is gone, and with it three steps
         └────► new process: load checkpoint 20 ── 21 ── 22 ── 23     the same batches again, the same weights

Every batch since the last checkpoint is kept here, with its advantages. A step is a function of weights and batch, so doing the steps again
gives the weights that were lost, bit for bit: no group is lost, and none counts twice. Meanwhile generators go on with the weights that they
have, as far as the age bound allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from zorplex_rl.errors import CheckpointError
from zorplex_rl.manifest import verify
from zorplex_rl.system.member import reason_of
from zorplex_rl.system.runtime import Replica, ReplicaDied
from zorplex_rl.system.service import Restart

MAX_DEATHS_IN_A_ROW = 5


class Trainer:
    """Calls the trainer's process, and replaces it when it is found dead. ``start(name)`` brings one up, loaded."""

    def __init__(
        self,
        start: Callable[[str], Awaitable[Replica]],
        on_restart: Callable[[Restart], None] = lambda restart: None,
    ) -> None:
        self.on_restart = on_restart
        self.replica: Replica | None = None
        self._start, self._numbers = start, count()
        self._checkpoint: Path | None = None
        self._since_checkpoint: list[tuple[Any, ...]] = []
        self._published = False
        self._deaths_in_a_row = 0
        self._up = asyncio.Event()
        self._reviving = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        """False from the moment at which its death was noticed until the next one is ready."""
        return self._up.is_set()

    async def open(self) -> None:
        self.replica = await self._start(self._next_name())
        self._up.set()

    async def close(self) -> None:
        if self.replica:
            await self.replica.stop()

    async def wait_until_up(self) -> None:
        await self._up.wait()

    async def actor(self) -> Any:
        """The actor that generators read weights from; waits while there is none."""
        await self._up.wait()
        return self.replica.actor

    async def ping(self) -> None:
        """Return when the trainer is alive, which may take a restart."""
        await self._call("ping")

    async def step(self, *batch: Any) -> dict[str, float]:
        """One training step on ``batch`` (episodes, advantages, reference log-probs); its diagnostics."""
        metrics = await self._call("step", *batch)
        self._since_checkpoint.append(batch)
        self._deaths_in_a_row = 0
        return metrics

    async def publish(self) -> int:
        """Publish the present weights; their version."""
        version = await self._call("publish")
        self._published = True
        return version

    async def save(self, folder: Path) -> None:
        await self._call("save", str(folder))

    async def export(self, folder: Path) -> None:
        await self._call("export", str(folder))

    async def load(self, folder: Path) -> None:
        """Continue from what ``save`` wrote to ``folder``."""
        await self._call("load", str(folder))
        self.checkpointed(folder)

    def checkpointed(self, folder: Path) -> None:
        """All steps so far are in ``folder``: a restart begins there."""
        self._checkpoint = folder
        self._since_checkpoint.clear()

    async def _call(self, endpoint: str, *args: Any) -> Any:
        while True:
            await self._up.wait()
            replica = self.replica
            try:
                return await getattr(replica.actor, endpoint).call_one(*args)
            except ReplicaDied as error:
                await self._revive(replica, error)

    async def _revive(self, dead: Replica, error: ReplicaDied) -> None:
        """Have a new process with the weights of the ``dead`` one; does nothing if another call has seen to it."""
        async with self._reviving:
            if self.replica is not dead:
                return
            self._up.clear()
            noticed, reason = time.monotonic(), reason_of(error)
            while True:
                self._deaths_in_a_row += 1
                if self._deaths_in_a_row > MAX_DEATHS_IN_A_ROW:
                    raise RuntimeError(
                        f"the trainer has died {self._deaths_in_a_row} times without finishing a step; the last time: {reason}"
                    ) from error
                await self.replica.stop()
                try:
                    self.replica = await self._start(self._next_name())
                    await self._catch_up(self.replica)
                    break
                except ReplicaDied as again:
                    reason = reason_of(again)
            self._up.set()
            self.on_restart(Restart(dead.name, self.replica.name, time.monotonic() - noticed, reason))

    async def _catch_up(self, replica: Replica) -> None:
        if self._checkpoint:
            try:
                await asyncio.to_thread(verify, self._checkpoint.parent)
            except CheckpointError as error:
                raise CheckpointError(
                    "the trainer died, and the checkpoint that it comes back from is not whole any more"
                ) from error
            await replica.actor.load.call_one(str(self._checkpoint))
        for batch in self._since_checkpoint:
            await replica.actor.step.call_one(*batch)
        if self._published:
            await replica.actor.publish.call_one()

    def _next_name(self) -> str:
        number = next(self._numbers)
        return f"trainer_{number}" if number else "trainer"
