"""End what the code of a task leaves behind: processes that have left their parent and its session.

    train ──► replica ──► a tool's program ──► its fork, in a session of its own, with no environment
      ▲                                         │ its parent ends
      └───────────── adopted ◄──────────────────┘

The system gives an orphan to its nearest ancestor that adopts. So whatever a program of this
package has started stays below it, and ends with it. Only Linux has that; elsewhere, and if the
program itself is killed with signal 9, such an orphan goes on.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
REAP_SECONDS = 30.0
END_SECONDS = 5.0


def adopt() -> None:
    """Have this process adopt the orphans below it. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """From now on remove what is left of ended orphans, for which nobody waits, now and then. Not
    in a process that runs a task's code: that waits for its own children whenever it likes."""

    def run() -> None:
        before: set[int] = set()
        while True:
            time.sleep(REAP_SECONDS)
            ended = {child.pid for child in _children() if _has_ended(child)}
            # One that is waited for is not there for so long.
            for pid in ended & before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            before = ended

    threading.Thread(target=run, daemon=True, name="orphans").start()


def end() -> None:
    """Kill all processes below this one, adopted ones too. Gives up after ``END_SECONDS``."""
    give_up_at = time.monotonic() + END_SECONDS
    while time.monotonic() < give_up_at and (alive := [c for c in _children(True) if not _has_ended(c)]):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _children(recursive: bool = False) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process().children(recursive=recursive)
    return []


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return True
