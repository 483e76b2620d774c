"""A limit on the time that one call of the user's code may take, whatever that code does.

    the main thread of a command       a signal interrupts the code: TimeoutError, in the line where it is
    a thread of an actor               those who wait for it (``in_thread``) get a TaskError that names the line. The thread cannot be stopped.
                                       Its process is, by the end of the run
    a call that lets nothing else run  such as ``9**9**9``: ``GRACE_SECONDS`` later the kernel ends the process (SIGALRM)
    a tool                             ends no run: after ``tool_seconds`` it has answered that it timed out (``tool``)

The clock runs during a call (``start``, ``stop``) if ``seconds`` is set: not for our own tasks.
"""

import asyncio
import contextlib
import contextvars
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from zorplex_rl.errors import TaskError

Result = TypeVar("Result")
GRACE_SECONDS = 10.0
"""What a process gets beyond the limit, to say what has happened."""
LOOK_SECONDS = 0.5
"""How often those who wait look at the clock."""
MOST_LEFT = 8
"""Timed-out tools that may still run in one process. With more, none will ever answer."""
MARK_BYTES = 1024
MARKS = "ZORPLEX_CALL_MARKS"
"""Environment variable: the folder of marks, a file for each actor that calls the user's code."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the user's code under way: what it is, in words, its code's file, since when."""

    what: str
    file: str | None
    began: float

    @property
    def place(self) -> str:
        """Return where the code is, for a sentence about what has become of it."""
        return self.what.replace(" failed in ", ", in ")


class CallLimit:
    """The limit of this process, and its calls that are under way, by thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Longest time of a call; 0 is no limit."""
        self.tool_seconds = 0.0
        """Longest time of a tool, if it is less; 0 is no limit."""
        self._left: list[threading.Thread] = []
        self._grace = GRACE_SECONDS
        self._calls: dict[int, Call] = {}
        self._mark: mmap.mmap | None = None
        self._process = 0
        self.tell_copy: Callable[[], None] = lambda: None
        """What a fork of this process, made within a call, does before it ends with the call."""

    def leave_marks(self, file: int) -> None:
        """Write each call under way into ``file`` (``MARK_BYTES``); it outlives this process."""
        self._mark = mmap.mmap(file, MARK_BYTES)

    @contextlib.contextmanager
    def interrupting(self, seconds: float, tool_seconds: float = 0.0) -> Iterator[None]:
        """Raise TimeoutError within a call that takes longer; only in the main thread. Tools have
        ``tool_seconds``, if given."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        usual = signal.signal(signal.SIGALRM, self._interrupt)
        before = self.seconds, self.tool_seconds, self._grace
        self.seconds, self.tool_seconds, self._grace = seconds, tool_seconds, 0.0
        try:
            yield
        finally:
            self.seconds, self.tool_seconds, self._grace = before
            signal.signal(signal.SIGALRM, usual)

    def start(self, what: str, file: str | None) -> None:
        """Note that a call begins in this thread."""
        if self.seconds:
            self._process = os.getpid()
            call = self._calls[threading.get_ident()] = Call(what, file, time.monotonic())
            if self._mark:
                text = f"{call.began} {what}".encode(errors="replace")[: MARK_BYTES - 1] + b"\0"
                self._mark[: len(text)] = text
            # Again after a while: the code may catch the first exception.
            signal.setitimer(signal.ITIMER_REAL, self.seconds + self._grace, 0.5)

    def stop(self) -> None:
        """Note that the call of this thread is over."""
        if self.seconds:
            if os.getpid() != self._process:
                # What comes next is for the original alone.
                self.tell_copy()
                os._exit(0)
            self._forget(threading.get_ident())

    def tool(self, run: Callable[[], str], what: str) -> str:
        """Return ``run()``, or that it timed out. Its thread cannot be stopped and is left behind.
        Raises what ``run`` raises, and TaskError once more than ``MOST_LEFT`` are left."""
        if not 0 < self.tool_seconds < self.seconds:
            return run()
        found: list[str] = []
        raised: list[BaseException] = []

        def answer() -> None:
            try:
                found.append(run())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(answer,), daemon=True)
        thread.start()
        thread.join(self.tool_seconds)
        if thread.is_alive():
            self._forget(thread.ident or 0)
            self._left = [*(left for left in self._left if left.is_alive()), thread]
            if len(self._left) > MOST_LEFT:
                raise TaskError(
                    f"{what}: {len(self._left)} tools have not answered yet, each after {self.tool_seconds:g} s (--tool-timeout)"
                )
            return f"ERROR: timed out after {self.tool_seconds:g} s"
        if raised:
            raise raised[0]
        return found[0]

    def check(self) -> None:
        """Raise TaskError if a call takes too long."""
        for thread, call in list(self._calls.items()):
            if time.monotonic() - call.began > self.seconds:
                raise TaskError(f"{call.what}: {self._late()}{_line_of(thread, call.file)}")

    def _forget(self, thread: int) -> None:
        if self._calls.pop(thread, None):
            if self._mark:
                self._mark[0] = 0
            if not self._calls:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, *_: object) -> None:
        raise TimeoutError(self._late())

    def _late(self) -> str:
        return f"it has not returned within {self.seconds:g} s (--task-timeout)"


call_limit = CallLimit()


def read_mark(file: int) -> Call | None:
    """Return the call that ``leave_marks`` has left in ``file``, or None if none was under way."""
    text = os.pread(file, MARK_BYTES, 0).partition(b"\0")[0].decode(errors="replace")
    began, _, what = text.partition(" ")
    return Call(what, None, float(began)) if what else None


def mark_of(name: str, flags: int = os.O_RDONLY) -> int:
    """Open the marks of the actor ``name`` of this run. Raises OSError if there are none."""
    return os.open(os.path.join(os.environ.get(MARKS) or os.devnull, name), flags | os.O_CLOEXEC, 0o600)


def last_call(name: str) -> Call | None:
    """Return the user's call that was under way when actor ``name``'s process ended, or None."""
    try:
        file = mark_of(name)
    except OSError:
        return None
    try:
        return read_mark(file)
    finally:
        os.close(file)


async def in_thread(function: Callable[..., Result], *args: Any, executor: Executor | None = None) -> Result:
    """Return ``function(*args)``, run in a thread (one of ``executor``). Raises TaskError when a
    call here takes too long, this or one that this waits for."""

    def run() -> Result:
        try:
            return function(*args)
        except StopIteration as error:
            # A future does not take it, and who waits would wait for ever.
            raise RuntimeError(f"{error!r} was raised in a thread") from error

    running = asyncio.get_running_loop().run_in_executor(executor, contextvars.copy_context().run, run)
    while not running.done():
        await asyncio.wait({running}, timeout=LOOK_SECONDS)
        if not running.done():
            call_limit.check()
    return running.result()


async def ask(function: Callable[..., Result], *args: Any) -> Result:
    """Return ``function(*args)``, a call of the environment; limited ones in a thread, in turn."""
    return await in_thread(function, *args, executor=_one_thread()) if call_limit.seconds else function(*args)


@cache
def _one_thread() -> Executor:
    return ThreadPoolExecutor(1)


def _line_of(thread: int, file: str | None) -> str:
    """Return where in ``file`` the thread is, or nothing if it is somewhere else."""
    frame = sys._current_frames().get(thread)
    while frame and frame.f_code.co_filename != file:
        frame = frame.f_back
    return f", in line {frame.f_lineno}" if frame else ""
