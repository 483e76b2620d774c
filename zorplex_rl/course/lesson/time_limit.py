"""Run a function for a limited time: an endless loop, a long sleep, ``sys.exit``.

It runs in its own thread, so the caller goes on even if it cannot be stopped. It is stopped by
an exception that Python raises in that thread; code that waits outside Python (a lock, a long
sleep) meets it only when it comes back.
"""

import contextvars
import ctypes
import time
from collections.abc import Callable
from typing import Any

import marimo as mo

_PATIENCE_S = 1.0
"""How long to go on stopping a function that catches what is raised in it."""


class TimeUp(BaseException):
    """Stop a function. No ``Exception``, so that ``except Exception`` lets it through."""


class OutOfTime(TimeoutError):
    """The function has not returned in time, and was stopped."""


class StillRunning(OutOfTime):
    """The function has not returned in time, and could not be stopped."""


def run_within(seconds: float, function: Callable[[], object]) -> BaseException | None:
    """Run ``function`` within ``seconds``. Returns what it raised, also ``SystemExit``.

    Returns OutOfTime if it took too long and was stopped, StillRunning if it goes on in spite of
    that.
    """
    raised: list[BaseException | None] = []
    # What the caller has set (Monarch's client, for example) holds in the thread too.
    context = contextvars.copy_context()

    def work() -> None:
        try:
            context.run(function)
            raised.append(None)
        except TimeUp:
            pass
        except BaseException as error:
            raised.append(error)

    # marimo's own thread: what the function prints appears below the cell.
    thread = mo.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        late = not raised
    finally:
        if thread.is_alive():
            _stop(thread)
    if not late:
        return raised[0]
    return (StillRunning if thread.is_alive() else OutOfTime)(f"not done within {seconds:g} s")


def _stop(thread: Any) -> None:
    """Raise TimeUp in ``thread`` until it ends, or patience does."""
    end = time.monotonic() + _PATIENCE_S
    while thread.is_alive() and time.monotonic() < end:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(TimeUp)
        )
        thread.join(0.05)
