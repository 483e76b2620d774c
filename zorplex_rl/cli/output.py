"""A command's standard output and error, also when unread, closed, or on a full disk.

zorplex-rl train --help | head -1     the pipe is closed: whatever else is written is dropped, and the command goes on
zorplex-rl eval > /full/disk          the same, and one sentence on standard error
zorplex-rl eval >&-                   there is no standard output at all: the same as a pipe that is closed
PYTHONIOENCODING=ascii zorplex-rl …   what the encoding lacks is written in ASCII: 40-60 % for 40–60 %
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

IN_ASCII = {
    "│": "|", "┃": "|", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "…": "...", "⏎": "/", "≠": "!=", "≤": "<=", "≥": ">=", "×": "x",
    "━": "=", "╸": "=", "╺": "-", "─": "-", "·": "-", "•": "*", "’": "'", "“": '"', "”": '"',
}  # fmt: skip
"""What stands for a character where the encoding of an output lacks it."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return what to write where ``error`` is: a letter without its accent, or else its number."""
    assert isinstance(error, UnicodeEncodeError)

    def plain(character: str) -> str:
        letter = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        return IN_ASCII.get(character) or letter or character.encode("ascii", "backslashreplace").decode()

    return "".join(map(plain, error.object[error.start : error.end])), error.end


codecs.register_error("zorplex_rl.in_ascii", _in_ascii)


def one_line(text: str) -> str:
    """Return ``text`` with what would move a terminal's cursor or change it written out.

    >>> one_line("a\\x1b[2J\\nb – c")
    'a\\\\x1b[2J\\\\nb – c'
    """
    odd = ("Cc", "Cs", "Zl", "Zp")
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in odd else c for c in text)


def plain_console() -> Console:
    """Return a console that prints every text as it is: ``[/x]`` in a path is no markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


class Output(io.TextIOBase):
    """``stream`` until it cannot be written to; then drops all, and calls ``on_loss`` once."""

    def __init__(self, stream: TextIO | None) -> None:
        self.is_lost = stream is None
        self.failure: OSError | None = None
        """Why it is lost, unless its reader has just gone."""
        self.on_loss: Callable[[], object] = lambda: None
        self._stream, self._is_terminal = stream, stream is not None and stream.isatty()

    @classmethod
    def of(cls, stream: TextIO | Output | None) -> Output:
        """Return ``stream``, which may be one already: a second one would not hear of a loss."""
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="zorplex_rl.in_ascii")
        return stream if isinstance(stream, Output) else cls(stream)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the stub has an attribute, the class a property
        return self._stream.encoding if self._stream else "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._attempt(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(lambda stream: stream.flush())

    def _attempt(self, action: Callable[[TextIO], Any]) -> None:
        if self.is_lost or self._stream is None:
            return
        try:
            action(self._stream)
        except OSError as error:
            self.is_lost = True
            # A terminal that was closed answers with EIO.
            is_gone = error.errno == errno.EPIPE or (self._is_terminal and error.errno == errno.EIO)
            self.failure = None if is_gone else error
            # Python writes what is left of its buffer when it ends, and would complain.
            with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self.on_loss()
