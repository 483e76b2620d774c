"""Serve notebook 10b: hosts of the page, a real run of which one is killed, and checks.

two_lives(keeper, fault, …)                a host is killed or cut off, and a successor starts
running_on_two_hosts(flags, one_more)      a run of the package; two sets of processes stand in for its hosts
lost_host(stage)                           its steps, and when what was noticed
check_…(attempt, solution)                 the checks of the page's exercises
"""

import asyncio
import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

from zorplex_rl.course.figures.spans import Lives, LostHost
from zorplex_rl.course.lesson import exercise
from zorplex_rl.hosts.hosts import MARGIN_SECONDS
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline, now

TRAINER = "import time\nwhile True:\n    print(time.monotonic(), flush=True)\n    time.sleep(0.01)"
"""It writes the time, so that one can see afterwards when it lived."""


def serve(keeper: Any, port: int, lease: float, drift: float, program: str, ledger: str) -> None:
    """Be a host: start a trainer, and run the page's ``keeper`` on a link to ``port``."""

    def clock() -> float:
        return time.monotonic() / (1 + drift)  # slow, if there is a drift

    def send(heartbeat: float) -> None:
        link.sendto(str(heartbeat).encode(), ("127.0.0.1", port))

    def receive() -> float:
        with contextlib.suppress(TimeoutError):
            return float(link.recv(64))
        return 0.0

    with open(ledger, "w") as file:
        trainer = subprocess.Popen([sys.executable, "-c", program], stdout=file)
    while not os.path.getsize(ledger):
        time.sleep(0.01)  # it is not up yet
    link = socket.socket(type=socket.SOCK_DGRAM)
    link.settimeout(0.05)
    keeper(trainer, clock, send, receive, lease)


class HostProcess:
    """Run ``serve`` with the page's ``keeper`` as a process, with its link, until the end of the block."""

    def __init__(self, keeper: Any, lease: float, drift: float = 0.0) -> None:
        self._keeper = keeper
        self._lease = lease
        self._drift = drift
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="zorplex_rl_10b_")
        self._ledger = Path(self._folder.name) / "ledger"
        self.wrote: list[float] = []

    def __enter__(self) -> Self:
        self.link = socket.socket(type=socket.SOCK_DGRAM)
        self.link.bind(("127.0.0.1", 0))
        self.link.settimeout(60)
        return self

    def start(self) -> None:
        """Start the process; its trainer starts in another."""
        port = self.link.getsockname()[1]
        program = as_program(
            self._keeper, port, self._lease, self._drift, TRAINER, str(self._ledger)
        )
        self._process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)

    def is_running(self) -> bool:
        """Whether the host lives; its trainer ends with it."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the host and its trainer."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.link.close()
        self.wrote = moments_in(self._ledger)
        self._folder.cleanup()


def as_program(keeper: Callable[..., Any], *arguments: Any) -> str:
    """Return the text of a program that calls ``serve`` with ``keeper``, a function of the page."""
    source = inspect.getsource(keeper).partition("def ")[2]
    head = (
        "from __future__ import annotations\nimport contextlib, os, socket, subprocess, sys, time\n"
    )
    call = f"serve({keeper.__name__}, *{arguments!r})"
    return f"{head}def {source}\n{inspect.getsource(serve)}\n{call}"


def renew(link: socket.socket, heartbeats: int) -> list[float]:
    """Send this many heartbeats back. Returns when they came."""
    moments = []
    for _ in range(heartbeats):
        heartbeat, sender = link.recvfrom(64)
        link.sendto(heartbeat, sender)
        moments.append(time.monotonic())
    return moments


def two_lives(
    keeper: Any,
    fault: str,
    lease: float,
    successor_may_start: Callable[..., Any],
    drift: float = 0.0,
) -> Lives:
    """Kill a host ("kill -9"), or cut it off, and start a successor as soon as it may start."""
    with (
        HostProcess(keeper, lease, drift) as first,
        HostProcess(keeper, lease=60.0) as second,  # outlives the look at it
    ):
        first.start()
        moments = renew(first.link, 20)
        heard = moments[-1]
        struck = time.monotonic()
        if fault == "kill -9":
            first.kill()
        # Cut off: from here on nobody hears it, and nobody answers.
        while not successor_may_start(time.monotonic(), heard, lease, drift, MARGIN_SECONDS):
            time.sleep(0.01)
        second.start()
        renew(second.link, 10)
        while first.is_running():
            renew(second.link, 1)
    before, after = ([moment - struck for moment in host.wrote] for host in (first, second))
    silences = [later - earlier for earlier, later in pairwise(moments)]
    over = heard + lease * (1 + drift)
    return Lives(before, after, heard - struck, over - struck, silences)


def moments_in(ledger: Path) -> list[float]:
    """Return what a trainer wrote. A line that was cut off by a kill is no moment."""
    text = ledger.read_text() if ledger.exists() else ""
    return [float(line) for line in text.rpartition("\n")[0].split()]


class TwoHosts:
    """A run over two hosts: where its files are, how far it is, and how to kill the second host."""

    def __init__(self, flags: list[str]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="zorplex_rl_10b_")
        self.folder = RunFolder(Path(self._temporary.name) / "run")
        self.killed: float | None = None
        """The moment at which the second host was killed."""
        self.said: list[str] = []
        self.over = asyncio.Event()
        command = [sys.executable, "-P", "-m", "zorplex_rl", "train", *flags]
        # A closed pipe ends the run: it does not outlive this process.
        self.process = subprocess.Popen(
            [*command, "--out", str(self.folder.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.said.append(line.strip())

    def steps(self) -> int:
        """Return how many steps are done."""
        return sum(row["event"] == "step" for row in self.folder.metrics())

    def kill(self) -> None:
        """Kill the second host."""
        self.killed = now()
        kill_second_worker(self.process.pid)

    async def follow(self, one_more: Callable[..., None]) -> None:
        """Tell ``one_more`` of new steps until the run is over."""
        shown = 0
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.3)
                one_more(number=self.steps() - shown)
                shown = self.steps()
        finally:
            self.over.set()

    async def lose_a_host(self, after: int) -> None:
        """Kill the second host ``after`` steps, and wait. Raises RuntimeError if the run fails."""
        while not self.over.is_set():
            if self.killed is None and self.steps() >= after:
                self.kill()
            await asyncio.sleep(0.1)
        if self.process.returncode != 0:
            raise RuntimeError(self.said[-1] if self.said else "the run said nothing")


@contextlib.asynccontextmanager
async def running_on_two_hosts(
    flags: list[str], one_more: Callable[..., None]
) -> AsyncIterator[TwoHosts]:
    """Start a run over two hosts; all of it ends with the block."""
    stage = TwoHosts(flags)
    following = asyncio.create_task(stage.follow(one_more))
    try:
        yield stage
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        if stage.process.poll() is None:
            stage.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(stage.process.wait, 20)
        stage.process.kill()
        stage.process.wait()


def kill_second_worker(controller: int) -> None:
    """Kill the second of the processes that stand for hosts, with its whole session."""
    listed = subprocess.run(
        ["ps", "-Awwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    (worker,) = (
        int(pid)
        for pid, parent, command in rows
        if int(parent) == controller and "/host_1" in command
    )
    for pid, *_ in rows:
        with contextlib.suppress(OSError):
            if os.getsid(int(pid)) == worker:
                os.kill(int(pid), signal.SIGKILL)


def lost_host(stage: TwoHosts) -> LostHost:
    """Return the steps of a finished run, and when its loss was noticed and mended."""
    spans = Timeline.load(stage.folder.timeline).spans
    trained = [span for span in spans if span.kind == "train"]
    began = min(span.start for span in trained)
    restarts = sorted((span for span in spans if span.kind == "restart"), key=lambda span: span.end)
    return LostHost(
        steps=sorted(span.end - began for span in trained),
        killed=(stage.killed or 0.0) - began,
        noticed=[span.start - began for span in restarts],
        replaced=[span.end - began for span in restarts],
    )


def fixed(solution: Callable[..., Any], place: int, value: float = 0.0) -> Callable[..., Any]:
    """Return ``solution`` as if one argument always had this ``value``."""
    return lambda *given: solution(*given[:place], value, *given[place + 1 :])


NO_DRIFT = "you forgot the drift: a slow clock counts the lease for longer"
DIVIDED = "a slow clock takes longer to count the lease: multiply by `1 + drift`, do not divide"
NO_MARGIN = "the successor waits for the margin, too"
MARGIN_IN_LEASE = "the margin is no part of the lease: add it last, after the drift"


def divided(solution: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return ``solution`` as if ``1 + drift``, the argument at ``place``, divided the lease."""
    return lambda *given: fixed(solution, place, 1 / (1 + given[place]) - 1)(*given)


def check_two_trainers(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare the seconds in which two trainers may live with ``solution``."""
    exercise.agree(
        attempt,
        solution,
        lambda draw: (draw.randint(0, 80) / 4, draw.randint(1, 40) / 4, draw.choice([0.0, 0.25, 1.0])),
        times=60,
        examples=[(3.0, 10.0, 0.0), (12.0, 10.0, 0.0), (3.0, 10.0, 1.0)],
        mistakes={
            "after the lease no seconds are left, and never fewer": lambda silence, lease, drift: (
                lease * (1 + drift) - silence
            ),
            NO_DRIFT: fixed(solution, 2),
            DIVIDED: divided(solution, 2),
            "you forgot the silence, in which there was one trainer": fixed(solution, 0),
        },
    )  # fmt: skip


def check_lease_is_over(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare answers around the end of a lease with ``solution``."""

    def some(draw: Random) -> tuple[float, ...]:
        lease = draw.randint(1, 40) / 4
        margin = draw.choice([0.0, 0.25, 1.5])
        drift = draw.choice([0.0, 0.25, 1.0, 3.0])
        heard = draw.randint(0, 400) / 4
        around = draw.choice([-lease * drift, -margin, -2 * margin, -0.125, 0.0, 0.125, 4.0])
        return heard + lease * (1 + drift) + margin + around, heard, lease, drift, margin

    exercise.agree(
        attempt,
        solution,
        some,
        times=80,
        examples=[(111.5, 100.0, 10.0, 0.0, 1.5), (112.0, 100.0, 10.0, 1.0, 1.5), (110.0, 100.0, 10.0, 1.0, 1.5)],
        mistakes={
            NO_DRIFT: fixed(solution, 3),
            DIVIDED: divided(solution, 3),
            NO_MARGIN: fixed(solution, 4),
            MARGIN_IN_LEASE: lambda now, heard, lease, drift, margin: (
                solution(now, heard, lease + margin, drift, 0.0)
            ),
            "the margin makes the wait longer, not shorter": lambda *given: solution(*given[:4], -given[4]),
        },
    )  # fmt: skip


def check_shortest_lease(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare leases with ``solution``."""
    exercise.agree(
        attempt,
        solution,
        lambda draw: (
            [draw.randint(1, 40) / 8 for _ in range(draw.randint(1, 5))],
            draw.choice([0.0, 0.25, 1.0]),
            draw.choice([0.0, 0.5, 1.5]),
        ),
        times=60,
        examples=[([2.0], 0.0, 1.0), ([2.0], 1.0, 0.0), ([1.0, 2.0], 0.25, 0.5)],
        mistakes={
            "the drift counts twice: the host's clock may be fast, and may be slow": lambda silences, drift, margin: (
                max(silences), max(silences) * (1 + drift) + margin
            ),
            NO_MARGIN: fixed(solution, 2),
            MARGIN_IN_LEASE: lambda silences, drift, margin: (
                max(silences) * (1 + drift) + margin, (max(silences) * (1 + drift) + margin) * (1 + drift)
            ),
            "a fast clock counts more seconds, and a slow one takes longer: multiply by `1 + drift`, do not divide": divided(solution, 1),
            "the longest silence decides, not the last": lambda silences, *rest: solution(silences[-1:], *rest),
        },
    )  # fmt: skip
