"""Run ``env check`` in a process of its own: the user's code may end it, fork, hang, fill memory.

env check ──► child: one check after the other ──► a pipe: the name of each check that begins, and what it has found
                          └──► a mark: the call of the user's code that is under way, which outlives the child
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from zorplex_rl.task.call_limit import MARK_BYTES, call_limit, read_mark

LOOK_SECONDS = 0.2
LATE_SECONDS = 2.0
"""By how much a call may exceed its limit before it counts as one that cannot be interrupted."""
MEMORY_SHARE = 0.5
"""Share of this machine's memory that the child may reserve."""


class Finding(NamedTuple):
    """Hold one line of the report."""

    state: Literal["ok", "note", "no"]
    about: str
    said: str


def findings_apart(program: str, arguments: Any, seconds: float) -> Iterator[Finding]:
    """Yield what ``program``, run with ``arguments`` in a child, reports; at last how it ended."""
    receiver, sender = Pipe(duplex=False)
    with receiver, tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as mark:
        pickle.dump(arguments, asked)
        asked.seek(0)
        mark.truncate(MARK_BYTES)
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(sender.fileno()), str(mark.fileno())],
            stdin=asked,
            stdout=2,
            pass_fds=(sender.fileno(), mark.fileno()),
            start_new_session=True,
        )
        sender.close()
        try:
            yield from _received(receiver, child, mark.fileno(), seconds)
        finally:
            # And whatever the user's code has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _received(receiver: Connection, child: "subprocess.Popen[bytes]", mark: int, seconds: float) -> Iterator[Finding]:
    about = "contract"
    while True:
        ended = child.poll() is not None
        said: Any = None
        if receiver.poll(0 if ended else LOOK_SECONDS):
            with contextlib.suppress(EOFError):
                said = receiver.recv()
        call = read_mark(mark)
        match said:
            case (pid, _) if pid != child.pid:
                yield Finding(
                    "no", about, "its code forks, and the copy of the process goes on; start programs with subprocess"
                )
                return
            case (_, Finding() as finding):
                yield finding
            case (_, str() as name):
                about = name
            case (_, None):
                return
            case None if ended:
                where = call.place if call else "the code of the task"
                yield Finding("no", about, f"{where}: it has ended its process ({_manner(child.returncode)})")
                return
            case None if call and time.monotonic() - call.began > seconds + LATE_SECONDS:
                late = f"it has not returned within {seconds:g} s (--task-timeout), and cannot be interrupted"
                yield Finding("no", about, f"{call.what}: {late}")
                return


def report(findings: Callable[[Any, Callable[[str], None]], Iterator[Finding]]) -> None:
    """In the child: send what ``findings(arguments, begin)`` yields, and names that it begins."""
    sender = Connection(int(sys.argv[1]), readable=False)
    call_limit.leave_marks(int(sys.argv[2]))
    call_limit.tell_copy = lambda: sender.send((os.getpid(), None))
    _bound_memory()
    # Without a parent there is nobody to tell.
    with contextlib.suppress(BrokenPipeError):
        try:
            for finding in findings(pickle.load(sys.stdin.buffer), lambda name: sender.send((os.getpid(), name))):
                sender.send((os.getpid(), finding))
        except Exception as error:
            # Not the task's code, of which a check tells, but what it has done to this process.
            said = next(iter(str(error).splitlines()), "")
            why = f"the checks cannot go on in the process of the task: {type(error).__name__}: {said}"
            sender.send((os.getpid(), Finding("no", "process", why)))
        sender.send((os.getpid(), None))
    # A thread that the user's code has left running would hold up the usual end.
    os._exit(0)


def _bound_memory() -> None:
    """Have this process get a MemoryError before it takes the memory of others."""
    import resource

    most = int(MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _manner(code: int) -> str:
    """Return how a process has ended.

    >>> _manner(3), _manner(-11)
    ('exit code 3', 'killed by SIGSEGV')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
