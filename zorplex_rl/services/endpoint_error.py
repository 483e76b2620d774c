"""What a caller gets when an endpoint raises: text, and the exception where it survives the way.

    endpoint raises ──► EndpointError.of    traceback, type, message and notes as text; the exception pickled, if what is unpickled is the same
                              │
    caller        ◄── EndpointError         ``exception`` is the original, or a RemoteException with its text

Whatever the exception is, the text arrives: its class may be unknown to the caller, its pickling
may fail, its unpickling may give something else. So it is tried here, at the sender, and the caller
unpickles only when somebody asks for the exception.
"""

import io
import pickle
from functools import cached_property
from traceback import TracebackException
from typing import Any, Self

from zorplex_rl.services.monarch_settings import ActorError, ReplicaDied

MOST_BYTES = 1 << 16
"""A larger exception is not sent, only its text."""
MOST_CHARACTERS = 20_000
"""Of a longer text both ends are sent."""


class RemoteException(Exception):
    """Stand for an exception of another process that could not be sent: its type and message."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name, self.message = type_name, message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class EndpointError(ActorError):
    """Report what an endpoint raised; ``exception_formatted`` is its traceback, with causes."""

    def __init__(
        self, message: str, exception_formatted: str, stand_in: RemoteException, pickled: bytes | None
    ) -> None:
        # ActorError's own __init__ would keep the exception, which is what must not be sent.
        Exception.__init__(self, message, exception_formatted, stand_in, pickled)
        self.message, self.exception_formatted = message, exception_formatted
        self.stand_in, self._pickled = stand_in, pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args

    @classmethod
    def of(cls, error: BaseException, message: str) -> Self:
        """Return what stands for ``error``, below a line ``message``. Raises nothing at all."""
        try:
            name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        except BaseException:  # Its class may have a class of its own.
            name = type.__repr__(type(error))
        try:
            said = str(error)
        except BaseException:
            said = "(its text cannot be shown)"
        try:
            lines = "".join(TracebackException.from_exception(error).format())
        except BaseException:
            lines = f"{name}: {said}\n"
        lines = lines.replace("Traceback (most recent", "Traceback of where the remote call failed (most recent")
        stand_in = RemoteException(name, _shortened(said))
        for note in _notes_of(error):
            stand_in.add_note(_shortened(note))
        return cls(message, _shortened(lines), stand_in, _pickled(error))

    @cached_property
    def exception(self) -> BaseException:
        """The original where it has survived, else a RemoteException."""
        return self.stand_in if self._pickled is None else _unpickled(self._pickled) or self.stand_in


def reason_of(error: BaseException) -> str:
    """Return the cause in a few words; Monarch's report of a dead process names it last."""
    if isinstance(error, EndpointError):
        return f"{error.message.rstrip('.')}: {error.stand_in}".splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if isinstance(error, ReplicaDied) else 0]


class _Bounded(io.BytesIO):
    def write(self, part: Any) -> int:
        if self.tell() + len(part) > MOST_BYTES:
            raise OverflowError(f"more than {MOST_BYTES} bytes")
        return super().write(part)


def _pickled(error: BaseException) -> bytes | None:
    """Return ``error`` as bytes, or None if it cannot be pickled, or is not the same afterwards."""
    target = _Bounded()
    try:
        pickle.Pickler(target).dump(error)
        again = _unpickled(target.getvalue())
        return target.getvalue() if type(again) is type(error) and str(again) == str(error) else None
    except BaseException:  # Whatever a class of its own raises there.
        return None


def _unpickled(content: bytes) -> BaseException | None:
    try:
        found = pickle.loads(content)
    except BaseException:
        return None
    return found if isinstance(found, BaseException) else None


def _notes_of(error: BaseException) -> list[str]:
    try:
        return [note for note in getattr(error, "__notes__", ()) if type(note) is str]
    except BaseException:
        return []


def _shortened(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]}\n…\n{text[-half:]}"
