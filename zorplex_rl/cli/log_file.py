"""The log of a run: Monarch's reports, Python's warnings, tracebacks: not for the terminal.

a record of ``zorplex_rl``               terminal and file
any other: Monarch, asyncio, warnings    file only
``record_traceback``                     file only; with ``--debug`` all of it is on the terminal, too
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from zorplex_rl.cli.failures import in_plain_words

_unexpected = logging.getLogger("unexpected")


@contextlib.contextmanager
def logged_to(file: Path, say: Callable[[str], object], debug: bool = False) -> Iterator[None]:
    """Write to ``file`` all that is logged, and ``say`` what is for people. Made when needed."""
    root, own = logging.getLogger(), logging.getLogger("zorplex_rl")
    kept = _Kept(file, encoding="utf-8", errors="backslashreplace", delay=True)
    kept.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    told = _Told(say, debug)
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda found: _record(f"ignored in {found.object!r:.200}", found.exc_value)
    threading.excepthook = lambda found: _record("a thread has ended", found.exc_value)
    (root if debug else own).addHandler(told)
    root.addHandler(kept)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(kept)
        (root if debug else own).removeHandler(told)
        sys.unraisablehook, threading.excepthook = hooks
        kept.close()


def record_traceback(error: BaseException) -> None:
    """Write the traceback of ``error``, with the one of the actor that raised it."""
    _record("the run has failed", error)


def _record(what: str, error: BaseException | None) -> None:
    # The text of an ActorError is the traceback in the actor; an exception's text may fail.
    with contextlib.suppress(Exception):
        _unexpected.error("%s", what, exc_info=error)


class _Kept(logging.FileHandler):
    """Write records to a file, or nowhere: that its disk is full, the run itself says."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Told(logging.Handler):
    """Give the messages of records to ``say``; with ``debug`` their tracebacks, too."""

    def __init__(self, say: Callable[[str], object], debug: bool) -> None:
        super().__init__(logging.WARNING)
        self._say, self._debug = say, debug

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self._say(self.format(record) if self._debug else in_plain_words(record.getMessage()))
