"""A host: another machine, or a part of one; whether it is there, and what ends if it is not.

    controller   Host ── renew(token), once a second ──►  HostAgent   (``host_agent.py``) one process on the host, beside the replicas
                  ▲                                           │
                  └───────────── a new token ─────────────────┘

A lease keeps two machines from doing the same work. The keeper counts ``lease`` seconds from the
newest of its own tokens that has come back to it. When they are over, it kills every process of its
host. So a host that is cut off ends by itself, and so does one whose controller has died. A token
comes back only through the controller, which knows that a host of which it last heard at time *t*
has ended by *t + lease*, however late its own last messages arrive. What must not exist twice (the
trainer) is started elsewhere only then (``until_ended``). Everything else may start at once,
because a replica that has failed answers nobody: ``router.py`` drops what arrives later.

A lost host shows in the end of a TCP connection, before its lease is over (``lifeline.py``). One
that only stands still is given up at its lease's end. Monarch's errors prove neither.
"""

import asyncio
import contextlib
import getpass
import logging
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from zorplex_rl import __version__
from zorplex_rl.errors import HostError
from zorplex_rl.services.host_agent import CHUNK_BYTES, HostAgent, HostInfo, read_part, source_digest, write_part
from zorplex_rl.services.lifeline import hold
from zorplex_rl.services.tasks import done_before
from zorplex_rl.services.tls import client_context

log = logging.getLogger(__name__)
Result = TypeVar("Result")

RENEW_EVERY = 1.0
MARGIN_SECONDS = 1.0
"""Added to a lease before it counts as over: the keeper looks at its clock four times a second."""
GREETING_SECONDS, PATIENCE_SECONDS = 30.0, 5.0
"""The longest wait for a host's first answer, and the time until people are told of the wait."""
READY_SECONDS = 10.0
"""A worker needs less to start again for the next run."""
ASK_SECONDS = 1.0
STOP_SECONDS = 10.0


class Tenant(NamedTuple):
    """Describe who lives on a host: how many processes, whether ended, whom to tell of a loss."""

    name: str
    processes: int
    has_ended: Callable[[], bool]
    on_lost: Callable[[str], None]


class Host:
    """The controller's view of one host. ``mesh`` is Monarch's; ``name`` is for people; with an
    ``address`` it has a lifeline. ``needed`` says what to check if it is silent."""

    def __init__(self, name: str, mesh: Any, lease: float, address: str = "", needed: str = "it is up") -> None:
        self.name, self.mesh, self.lease, self.address, self.needed = name, mesh, lease, address, needed
        self.agent: Any = None
        self.info: HostInfo | None = None
        self.lost = asyncio.Event()
        self.reason = ""
        self.tenants: list[Tenant] = []
        self._procs: Any = None
        self.clock_ahead, self._round_trip = 0.0, math.inf
        """By how many seconds its monotonic clock is ahead of this host's."""
        self._heard = time.monotonic()
        self._watching: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Host({self.name!r})"

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set()

    @property
    def rank(self) -> tuple[str, str]:
        """Return its place in the order in which controllers claim hosts."""
        return (self.info.hostname, self.info.worker) if self.info else ("", "")

    @property
    def is_lent(self) -> bool:
        """Return whether a worker program lends it."""
        return bool(self.info and self.info.worker)

    @property
    def occupants(self) -> int:
        """Return how many processes of replicas live here."""
        self.tenants = [tenant for tenant in self.tenants if not tenant.has_ended()]
        return sum(tenant.processes for tenant in self.tenants)

    async def greet(self) -> None:
        """Start its keeper. Raises HostError if the host is silent or of another version."""
        self.info = there = await self._from_keeper(lambda: self.agent.info.call_one().as_asyncio())
        here = source_digest()
        if (there.version, there.digest) != (__version__, here):
            raise HostError(
                f"host {self.name} has zorplex-rl {there.version} ({there.digest}), and this is {__version__} ({here}); install the same there"
            )

    async def claim(self) -> None:
        """Become its owner, from now on under a lease. Raises HostError if it is another run's."""

        async def ask() -> tuple[str, float]:
            taken = await self.agent.claim.call_one(_this_run()).as_asyncio()
            return taken, 0.0 if taken else await self._ask_for_token(0.0)

        taken, token = await self._from_keeper(ask)
        if taken:
            raise HostError(
                f"host {self.name} is in use by {taken}; wait until that run is over, or leave the host out"
            )
        self._heard = time.monotonic()
        self._watching = [asyncio.create_task(self._renew(token)), asyncio.create_task(self._hold_lifeline())]

    async def _from_keeper(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Return what ``ask`` gets from its keeper. Starts one, again and again for some time: a worker makes
        its host ready for the next run. Raises HostError."""
        asked_at, saying = time.monotonic(), asyncio.create_task(self._say_what_is_waited_for())
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await self.mesh.initialized
                while True:
                    if self.agent is None:
                        self._procs = self.mesh.spawn_procs(per_host={"procs": 1}, name="keeper")
                        self.agent = self._procs.spawn("keeper", HostAgent, self.lease)
                    try:
                        return await ask()
                    except Exception as error:
                        self.agent = None
                        if time.monotonic() - asked_at > READY_SECONDS:
                            raise HostError(
                                f"host {self.name} could not start a process of this package ({str(error).strip().splitlines()[-1]}); "
                                f"install zorplex-rl {__version__} there, and start `zorplex-rl worker` with it"
                            ) from error
                    await asyncio.sleep(RENEW_EVERY)
        except TimeoutError:
            raise HostError(f"host {self.name} does not answer; make sure that {self.needed}") from None
        finally:
            saying.cancel()

    async def _say_what_is_waited_for(self) -> None:
        await asyncio.sleep(PATIENCE_SECONDS)
        log.warning("host %s has not answered for %.0f s; make sure that %s", self.name, PATIENCE_SECONDS, self.needed)

    async def close(self) -> None:
        """End what is this run's on the host, with its keeper. A lost one ends by itself."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self._procs and self.is_alive:
            # Later nobody may wait for it any more; what is left there ends with the lease.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._procs.stop().as_asyncio()

    def lose(self, reason: str) -> None:
        """Count this host as lost: its replicas have failed, and no other is started here."""
        if self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        for tenant in list(self.tenants):
            tenant.on_lost(f"its host {self.name} {reason}")

    async def make_folder(self) -> str:
        """Return a new, empty folder of that host."""
        return await self.unless_lost(self.agent.make_folder.call_one().as_asyncio())

    async def fetch_folder(self, there: str, here: Path) -> None:
        """Copy the host's folder ``there`` into ``here``, through messages. Raises OSError."""
        for name, size in await self.unless_lost(self.agent.list_folder.call_one(there).as_asyncio()):
            for offset in range(0, max(size, 1), CHUNK_BYTES):
                part = await self.unless_lost(self.agent.read.call_one(there, name, offset).as_asyncio())
                await asyncio.to_thread(write_part, here / name, offset, part)

    async def send_folder(self, here: Path) -> str:
        """Copy the files of ``here`` into a new folder of that host. Returns its path there."""
        there = await self.make_folder()
        for path in sorted(path for path in here.rglob("*") if path.is_file()):
            name = path.relative_to(here).as_posix()
            for offset in range(0, max(path.stat().st_size, 1), CHUNK_BYTES):
                part = await asyncio.to_thread(read_part, path, offset)
                await self.unless_lost(self.agent.write.call_one(there, name, offset, part).as_asyncio())
        return there

    async def remove_folder(self, there: str) -> None:
        """Remove a folder of that host, if it is still there."""
        with contextlib.suppress(Exception):
            await self.unless_lost(self.agent.remove_folder.call_one(there).as_asyncio())

    async def until_ended(self) -> None:
        """Wait until whatever ran on this lost host has surely ended; see the top of this file."""
        await asyncio.sleep(max(0.0, self._heard + self.lease + MARGIN_SECONDS - time.monotonic()))

    async def kill(self, pids: Collection[int]) -> bool:
        """Have the keeper kill processes. Returns whether it says that it has."""
        return await self._answer_soon(self.agent.kill, pids) is not None

    async def until_one_ends(self, pids: Collection[int]) -> str:
        """Wait until one of ``pids`` has ended or the host is lost. Returns which, in words."""
        with contextlib.suppress(Exception):
            return await self.agent.until_one_ends.call_one(pids).as_asyncio()
        await self.lost.wait()
        return f"its host {self.name} {self.reason}"

    async def processor_seconds(self, pids: Collection[int]) -> float:
        """Return the processor seconds of processes of this host; 0.0 if it does not say."""
        return await self._answer_soon(self.agent.processor_seconds, pids) or 0.0

    async def _answer_soon(self, endpoint: Any, pids: Collection[int]) -> Any:
        """Return what the keeper answers within ``ASK_SECONDS``, or None."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ASK_SECONDS):
                return await endpoint.call_one(pids).as_asyncio() if self.is_alive else None

    async def end(self, pids: Collection[int]) -> None:
        """Return when its processes have surely ended: they are killed, or its lease is over."""
        while self.is_alive:
            if await self.kill(pids):
                return
            await asyncio.sleep(ASK_SECONDS)
        await self.until_ended()

    async def unless_lost(self, coroutine: Awaitable[Result]) -> Result:
        """Return what ``coroutine`` returns. Cancels it and raises HostError if this is lost."""
        if done := await done_before(coroutine, self.lost):
            return done.result()
        raise HostError(f"host {self.name} {self.reason}")

    async def _ask_for_token(self, token: float) -> float:
        sent = time.monotonic()
        token, there = await self.agent.renew.call_one(token).as_asyncio()
        self.compare_clocks(sent, there, time.monotonic())
        return token

    def compare_clocks(self, sent: float, there: float, received: float) -> None:
        """Note that host's clock between two moments of this one's. The shortest exchange counts.

        >>> host = Host("a", mesh=None, lease=10.0)
        >>> host.compare_clocks(sent=100.0, there=7.5, received=101.0)
        >>> host.compare_clocks(sent=200.0, there=190.0, received=300.0)
        >>> host.clock_ahead
        -93.0
        """
        if received - sent <= self._round_trip:
            self._round_trip, self.clock_ahead = received - sent, there - (sent + received) / 2

    async def _renew(self, token: float) -> None:
        """Extend the lease once a second until it is over. A call that fails proves nothing."""
        while (left := self._heard + self.lease - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    token = await self._ask_for_token(token)
                self._heard = time.monotonic()
            except Exception as error:
                log.debug("%s: %s", self.name, error)
            await asyncio.sleep(RENEW_EVERY)
        self.lose(f"has not answered for {self.lease:g} s")

    async def _hold_lifeline(self) -> None:
        """Count this host as lost when its lifeline says so. Without one, only its lease counts."""
        if not self.address:
            return
        try:
            there = await self.agent.lifeline.call_one(self.address).as_asyncio()
            await hold(replace(there, host=self.address), client_context())
        except Exception as error:
            log.info("host %s has no lifeline (%s); if it is lost, that is noticed after its lease", self.name, error)
            return
        self.lose("is gone, or cut off")


def _this_run() -> str:
    """Return who has started this run, for others who want its hosts: user, machine and process."""
    return f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"
