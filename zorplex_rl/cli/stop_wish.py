"""Note that somebody wants a run to stop, and how soon.

Ctrl-C, SIGTERM, SIGHUP, a closed pipe    a checkpoint after this step, and a stop
the same again, a second later            a stop at once
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from zorplex_rl.cli.output import Output

if TYPE_CHECKING:
    from zorplex_rl.training.controller import Controller


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_WISH_SECONDS = 1.0
"""Signals within this time say nothing new: a held key repeats, ``timeout`` signals twice."""


@contextlib.contextmanager
def stops_taken(take: Callable[[int], None]) -> Iterator[None]:
    """Have ``take`` called with the number of each of STOPS that comes, in place of what else would
    be done. One that the program was started to ignore (``nohup``) stays ignored."""
    usual = {number: is_now for number in STOPS if (is_now := signal.getsignal(number)) != signal.SIG_IGN}
    for number in usual:
        signal.signal(number, lambda number, _: take(number))
    try:
        yield
    finally:
        for number, was in usual.items():
            signal.signal(number, was)


@contextlib.contextmanager
def stops_held() -> Iterator[None]:
    """Let STOPS wait until the block is left. By then what it made can be put away again."""
    came: list[int] = []
    try:
        with stops_taken(came.append):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


class StopWish:
    """That somebody wants the run to stop, and how soon."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.controller: Controller | None = None
        self._say = say
        self._training: asyncio.Future[Any] | None = None
        self._asked_at: float | None = None
        self._stop_after_step = False

    def noted(self) -> contextlib.AbstractContextManager[None]:
        """Take signals from now on, also during imports, where an exception may get lost."""
        return stops_taken(lambda _: self._on_signal())

    def begin(self, controller: Controller) -> None:
        """Know ``controller`` from now on, and tell it what was wished for before."""
        self.controller, controller.stop_requested = controller, self._stop_after_step

    @property
    def training_is_done(self) -> bool:
        """Whether only the last evaluation is missing, or in the way."""
        return (
            self.controller is not None
            and not self.controller.under_way
            and self.controller.step >= self.controller.config.steps
        )

    def listen(self, training: asyncio.Future[Any], output: Output) -> None:
        """Take signals, and the end of ``output``, for wishes to stop ``training``."""
        loop = asyncio.get_running_loop()
        self._training = training
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal)
        if self._asked_at is not None:
            training.cancel()
        # A view may redraw itself in a thread.
        output.on_loss = lambda: loop.call_soon_threadsafe(self._stop_soon)

    def _on_signal(self) -> None:
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at < SAME_WISH_SECONDS:
            return
        first, self._asked_at = self._asked_at is None, now
        if first and self.controller and self.controller.under_way:
            self._stop_soon()
            self._say("stopping after this step; press Ctrl-C again to stop without a checkpoint")
            return
        if first:
            done = "the training is done and saved; leaving out its last evaluation"
            self._say(done if self.training_is_done else "stopping")
        if self._training:
            self._training.cancel()

    def _stop_soon(self) -> None:
        self._stop_after_step = True
        if self.controller:
            self.controller.stop_requested = True
