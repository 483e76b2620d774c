"""End what the code of a task leaves behind: processes that have left their parent and its session.

    train ──► replica ──► a tool's program ──► its fork, in a session of its own, with no environment
      ▲                                         │ its parent ends
      └───────────── adopted ◄──────────────────┘

The system gives an orphan to its nearest ancestor that adopts. So whatever a program of this
package has started stays below it, and ends with it. Only Linux has that; elsewhere, and if the
program itself is killed with signal 9, such an orphan goes on.
"""

import contextlib
import os
import sys
import threading
import time

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
REAP_SECONDS = 10.0
END_SECONDS = 5.0


def adopt() -> None:
    """Have this process adopt the orphans below it, and wait for those that have ended: somebody
    must, or each of them keeps its number for ever. Does nothing but on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        threading.Thread(target=_reap, daemon=True, name="orphans").start()


def _reap() -> None:
    seen: set[int] = set()
    while True:
        time.sleep(REAP_SECONDS)
        ended = _ended_children()
        # A child of this program is waited for by whoever has started it, long before a second look.
        for pid in ended & seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        seen = ended


def _ended_children() -> set[int]:
    # Not at the top: the program takes signals only after it has imported this file.
    import psutil

    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


def end() -> None:
    """Kill all processes below this one, adopted ones too, and wait for them, at most for
    ``END_SECONDS``. Nobody else may still want to know how they end."""
    give_up_at = time.monotonic() + END_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < give_up_at:
            if os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
            import psutil

            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)
