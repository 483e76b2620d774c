"""Serve notebook 10 with hosts: those of the page, and a real run of which one is killed.

HostProcess(host, trainer, …)              a host of the page, which ends with its block
running_on_two_hosts(flags, curve)         a run of the package, on two sets of namespaces or on two plain processes
lost_run(stage)                            its steps, and when what was noticed
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import zorplex_rl
from zorplex_rl.course.figures.spans import Lives, LostHost
from zorplex_rl.course.namespaces import namespaced_hosts, why_not
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline, now

if TYPE_CHECKING:
    from zorplex_rl.course.widgets import LiveCurve

PORT = 4444


def environment() -> dict[str, str]:
    """Return the environment of programs on another host, which do not see this folder."""
    package = str(Path(zorplex_rl.__file__).parents[1])
    found = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": found}


class HostProcess:
    """Run the page's ``host`` as a process, with its link, until the end of the block."""

    def __init__(self, host: Any, trainer: Any, lease: float, drift: float = 0.0) -> None:
        self._host = host
        self._trainer = trainer
        self._lease = lease
        self._drift = drift
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="zorplex_rl_10_")
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
        arguments = (port, self._lease, self._drift, as_program(self._trainer), str(self._ledger))
        program = as_program(self._host, *arguments)
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


def as_program(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the text of a program that calls a function of the page."""
    source = inspect.getsource(function)
    begin = re.search(r"^def ", source, re.MULTILINE)
    source = source[begin.start() if begin else 0 :]
    return f"import contextlib, os, socket, subprocess, sys, time\n{source}\n{function.__name__}(*{arguments!r})"


def moments_in(ledger: Path) -> list[float]:
    """Return what a trainer wrote. A line that was cut off by a kill is no moment."""
    text = ledger.read_text() if ledger.exists() else ""
    return [float(line) for line in text.rpartition("\n")[0].split()]


def lives_of(
    first: HostProcess, second: HostProcess, struck: float, heard: float, over: float
) -> Lives:
    """Return the lives of two trainers in seconds after the fault."""
    before, after = ([moment - struck for moment in host.wrote] for host in (first, second))
    return Lives(before, after, heard - struck, over - struck)


class TwoHosts:
    """A run over two hosts: where its files are, how far it is, and how to kill the second host."""

    def __init__(
        self,
        command: list[str],
        kind: str,
        folder: Path,
        kill: Callable[[int], None],
        around: dict[str, str],
    ) -> None:
        self.kind = kind
        self._folder = folder
        self._kill = kill
        self.killed: float | None = None
        """The moment at which the second host was killed."""
        self.said: list[str] = []
        self.over = asyncio.Event()
        self.code: int | None = None
        self.copy = RunFolder(Path(tempfile.mkdtemp(prefix="zorplex_rl_10_")) / "run")
        # A closed pipe ends the run: it does not outlive this process.
        self.process = subprocess.Popen(
            command,
            cwd="/",
            env=around,
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
        return sum(row["event"] == "step" for row in RunFolder(self._folder).metrics())

    def kill(self) -> None:
        """Kill the second host."""
        self.killed = now()
        self._kill(self.process.pid)

    async def follow(self, curve: LiveCurve) -> None:
        """Show rows as they come, until the run is over; then keep its files."""
        shown = 0
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.3)
                rows = RunFolder(self._folder).metrics()
                for row in rows[shown:]:
                    curve.add_row(row)
                shown = len(rows)
            self.code = self.process.returncode
            shutil.copytree(self._folder, self.copy.path)
        finally:
            self.over.set()

    async def lose_a_host(self, after: int) -> None:
        """Kill the second host ``after`` steps, and wait. Raises RuntimeError if the run fails."""
        while not self.over.is_set():
            if self.killed is None and self.steps() >= after:
                self.kill()
            await asyncio.sleep(0.1)
        if self.code != 0:
            raise RuntimeError(self.said[-1] if self.said else "the run said nothing")


@contextlib.contextmanager
def two_workers(around: dict[str, str]) -> Iterator[Any]:
    """Start a worker on each of two hosts, with a third for their controller."""
    with (
        namespaced_hosts("controller", "first", "second") as network,
        tempfile.TemporaryFile("w+") as log,
    ):
        workers = [network[name] for name in ("first", "second")]
        started = [
            found.popen(
                sys.executable, "-m", "zorplex_rl", "worker", "--listen", f"tcp://{found.address}:{PORT}", "--insecure",
                cwd="/", env=around, stdout=log, stderr=log,
            )
            for found in workers
        ]  # fmt: skip
        while not all(found.listens(PORT) for found in workers):
            if any(worker.poll() is not None for worker in started):
                log.seek(0)
                raise RuntimeError(f"a worker did not start: {log.read()}")
            time.sleep(0.1)
        yield network


@contextlib.asynccontextmanager
async def running_on_two_hosts(flags: list[str], curve: LiveCurve) -> AsyncIterator[TwoHosts]:
    """Start hosts and a run over them; all of it ends with the block."""
    train, around = [sys.executable, "-m", "zorplex_rl", "train", *flags], environment()
    with contextlib.ExitStack() as opened:
        if why_not():
            folder = (
                Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="zorplex_rl_10_")))
                / "run"
            )
            stage = TwoHosts(
                [*train, "--out", str(folder)], "two processes", folder, kill_second_worker, around
            )
        else:
            network = opened.enter_context(two_workers(around))
            controller = network["controller"]
            command = controller.entered(*train, "--out", "/tmp/run", cwd="/")
            kind, folder = "two hosts, each a set of namespaces", controller.path("/tmp/run")
            stage = TwoHosts(command, kind, folder, lambda _: network["second"].kill(), around)
        following = asyncio.create_task(stage.follow(curve))
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
    spans = Timeline.load(stage.copy.timeline).spans
    trained = [span for span in spans if span.kind == "train"]
    began = min(span.start for span in trained)
    restarts = sorted((span for span in spans if span.kind == "restart"), key=lambda span: span.end)
    successors = {span.actor for span in restarts}
    return LostHost(
        steps=sorted(span.end - began for span in trained),
        greedy=[(row["step"], row["greedy_accuracy"]) for row in stage.copy.evaluations()],
        killed=(stage.killed or 0.0) - began,
        noticed=[span.start - began for span in restarts],
        replaced=[span.end - began for span in restarts],
        worked=[
            span.start - began
            for span in spans
            if span.kind == "generate" and span.actor in successors
        ],
    )
