"""The trainer's process, and its way back when it dies or hangs.

    checkpoint 20 ── step 21 ── step 22 ── step 23 ✗        the process is gone, and with it three steps
         └────► new process: load checkpoint 20 ── 21 ── 22 ── 23     the same batches again, the same weights

Every batch since the last checkpoint is kept here, with its advantages. A step is a function of weights and batch, so doing the steps again
gives the weights that were lost, on a CPU bit for bit: no group is lost, and none counts twice. Meanwhile generators go on with the weights that they
have, as far as the age bound allows.

A call notices that the process is gone. That it hangs, nobody would: so it is probed, all the time, and killed if it does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from zorplex_rl.errors import CheckpointError
from zorplex_rl.manifest import verify
from zorplex_rl.system.member import Gone, reason_of
from zorplex_rl.system.options import ServiceOptions
from zorplex_rl.system.pulse import Live, ReplicaStart, bring_up
from zorplex_rl.system.runtime import Replica, ReplicaDied
from zorplex_rl.system.service import Restart

MAX_DEATHS_IN_A_ROW = 5
PROBING = ServiceOptions(probe_every=2.0, probe_timeout=8.0)
"""A hang is noticed within 10 seconds."""
BUSY_SECONDS = 120.0
"""How long the process may leave a probe unanswered while it is seen to compute: saving a large model can hold up its other threads."""


class Trainer:
    """Calls the trainer's process, and replaces it when it is found dead or hanging. ``start(name)`` brings one up, loaded."""

    def __init__(
        self,
        start: ReplicaStart,
        on_restart: Callable[[Restart], None] = lambda restart: None,
        options: ServiceOptions = PROBING,
    ) -> None:
        self.on_restart, self.options = on_restart, options
        self._start, self._numbers = start, count()
        self._live: Live | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self._checkpoint: Path | None = None
        self._since_checkpoint: list[tuple[Any, ...]] = []
        self._published = False
        self._deaths_in_a_row = 0
        self._burials: set[asyncio.Task[None]] = set()
        self._up = asyncio.Event()

    @property
    def replica(self) -> Replica | None:
        """The process at work, or the dead one while it is being replaced."""
        return self._live.replica if self._live else None

    @property
    def is_up(self) -> bool:
        """False from the moment at which its death was noticed until the next one is ready."""
        return self._up.is_set()

    async def open(self) -> None:
        await self._bring_up()
        self._up.set()

    async def close(self) -> None:
        tasks = [task for task in (self._reviving, self._watching) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._burials, return_exceptions=True)
        if self._live:
            await self._live.stop()

    async def wait_until_up(self) -> None:
        """Wait until there is a trainer. Raises RuntimeError if there will be none, because it died again and again."""
        await self._up.wait()
        if self._broken:
            raise self._broken

    async def actor(self) -> Any:
        """The actor that generators read weights from; waits while there is none."""
        await self.wait_until_up()
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

    async def drain_spans(self) -> list[Any]:
        """What it has recorded since the last call; a dead or hanging one says nothing."""
        if not self.is_up or self._broken:
            return []
        try:
            return await _ask(self._live, "drain_spans")
        except (ReplicaDied, Gone):
            return []

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
            await self.wait_until_up()
            live = self._live
            try:
                return await _ask(live, endpoint, *args)
            except (ReplicaDied, Gone) as error:
                self._lose(live, reason_of(error))

    async def _bring_up(self) -> None:
        options = self.options
        self._live = await bring_up(self._next_name(), self._start, options.start_timeout, options.probe_timeout)
        self._watching = asyncio.create_task(self._watch(self._live))

    async def _watch(self, live: Live) -> None:
        """Probe ``live`` until it fails; then every call in flight fails with it."""
        while True:
            await asyncio.sleep(self.options.probe_every)
            try:
                await live.beat_unless_busy(self.options.probe_timeout, BUSY_SECONDS)
            except Exception as error:
                late = f"it did not answer a probe within {self.options.probe_timeout:g} s"
                reason = late if isinstance(error, asyncio.TimeoutError) else reason_of(error)
                live.member.ready = False
                for future in list(live.member.in_flight):
                    if not future.done():
                        future.set_exception(Gone(reason))
                self._lose(live, reason)
                return

    def _lose(self, dead: Live, reason: str) -> None:
        """Begin to replace ``dead``, unless that is done or under way already."""
        if dead is self._live and self.is_up and not self._broken:
            self._up.clear()
            self._reviving = asyncio.create_task(self._revive(dead, reason))

    async def _revive(self, dead: Live, reason: str) -> None:
        """Have a new process with the weights of the ``dead`` one, or have all who wait for it raise why there is none."""
        noticed = time.monotonic()
        try:
            await self._replace(reason)
        except Exception as error:
            self._broken = error
        else:
            self.on_restart(Restart(dead.name, self._live.name, time.monotonic() - noticed, reason))
        self._up.set()

    async def _replace(self, reason: str) -> None:
        while True:
            self._deaths_in_a_row += 1
            if self._deaths_in_a_row > MAX_DEATHS_IN_A_ROW:
                raise RuntimeError(
                    f"the trainer has died {self._deaths_in_a_row} times without finishing a step; the last time: {reason}"
                )
            self._bury(self._live)
            try:
                await self._bring_up()
                await self._catch_up(self._live)
                return
            except CheckpointError:
                raise
            except Exception as again:
                reason = reason_of(again)

    async def _catch_up(self, live: Live) -> None:
        if self._checkpoint:
            try:
                await asyncio.to_thread(verify, self._checkpoint.parent)
            except CheckpointError as error:
                raise CheckpointError(
                    "the trainer died, and the checkpoint that it comes back from is not whole any more"
                ) from error
            await _ask(live, "load", str(self._checkpoint))
        for batch in self._since_checkpoint:
            await _ask(live, "step", *batch)
        if self._published:
            await _ask(live, "publish")

    def _bury(self, dead: Live) -> None:
        """Kill its process now, and let Monarch forget it meanwhile."""
        burial = asyncio.create_task(dead.kill())
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    def _next_name(self) -> str:
        number = next(self._numbers)
        return f"trainer_{number}" if number else "trainer"


async def _ask(live: Live, endpoint: str, *args: Any) -> Any:
    """What ``live`` answers. Raises ReplicaDied if it is gone, Gone if it was found hanging."""
    member = live.member
    if not member.ready:
        raise Gone("it was found hanging")
    future = member.call(endpoint)(*args).as_asyncio()
    member.in_flight[future] = None
    try:
        return await future
    finally:
        member.in_flight.pop(future, None)
