"""Sample continuously: requests arrive while others are sampled, weights change between two steps.

    sample(requests) ──► inbox ──► engine ──► one future for each episode
                                     ▲
    model_lock ──────────────────────┘   held for a few steps; between them others change the model

A slow tool or a long answer does not delay the next batch: both use the same slots. If new weights
are copied in during an episode, it continues with them. Its ``first_version`` and ``last_version``
say so, and each log-prob is that of the weights that sampled the token.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from zorplex_rl.policy.rollout import Event, RolloutEngine, RolloutRequest
from zorplex_rl.task.episode import Episode

STEPS_AT_ONCE = 16
"""Steps for which the lock is held: tens of milliseconds, a hundred times what taking it costs."""


class RolloutStream:
    """Runs ``make_engine()`` in a thread for many callers at once. The model runs only while
    ``model_lock`` is held. ``busy()`` returns a context that is open while the model computes; a
    dictionary in it gets the number of ``tokens``."""

    def __init__(
        self,
        make_engine: Callable[[], RolloutEngine],
        model_lock: asyncio.Lock,
        busy: Callable[[], AbstractContextManager[dict[str, Any] | None]] = nullcontext,
    ) -> None:
        self._make_engine, self._model_lock, self._busy = make_engine, model_lock, busy
        self._engine = make_engine()
        self._inbox: list[tuple[RolloutRequest, asyncio.Future[Episode]]] = []
        self._promised: dict[int, asyncio.Future[Episode]] = {}
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def use_version(self, version: int) -> None:
        """Set the version of the weights. Call this after changing them, still with the lock."""
        self._engine.version = version

    def take_history(self) -> tuple[int, list[Event]]:
        """Take out what the engine was told so far; see ``RolloutEngine.take_history``."""
        return self._engine.take_history()

    async def sample(self, requests: Sequence[RolloutRequest]) -> list[Episode]:
        """Sample ``requests``. Returns their episodes in the same order. Raises the error of a
        tool; then the episodes of all other callers fail with it too."""
        promises = [asyncio.get_running_loop().create_future() for _ in requests]
        self._inbox += zip(requests, promises, strict=True)
        self._wake.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return list(await asyncio.gather(*promises))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._inbox or not self._engine.idle:
                async with self._model_lock:
                    arrived, self._inbox = self._inbox, []
                    tickets = self._engine.submit(request for request, _ in arrived)
                    self._promised |= dict(zip(tickets, (promise for _, promise in arrived), strict=True))
                    finished = await asyncio.to_thread(self._advance)
                for ticket, episode in finished:
                    if not (promise := self._promised.pop(ticket)).done():
                        promise.set_result(episode)
                while (stalled := self._engine.stalled_on) and not self._inbox:
                    # Wait until a tool has answered or a request has arrived.
                    self._wake.clear()
                    for call in stalled:
                        call.add_done_callback(lambda _: loop.call_soon_threadsafe(self._wake.set))
                    await self._wake.wait()
        except BaseException as error:
            # Whatever it is, all callers must hear of it. A cancellation is only this task's.
            cause = error if isinstance(error, Exception) else RuntimeError(f"sampling was ended by {error!r}")
            version, self._engine = self._engine.version, self._make_engine()
            self._engine.version = version
            promises = [*self._promised.values(), *(promise for _, promise in self._inbox)]
            self._promised, self._inbox = {}, []
            for promise in promises:
                if not promise.done():
                    promise.set_exception(cause)

    def _advance(self) -> list[tuple[int, Episode]]:
        finished: list[tuple[int, Episode]] = []
        with self._busy() as span:
            before = self._engine.tokens
            for _ in range(STEPS_AT_ONCE):
                if self._engine.idle or self._engine.stalled_on:
                    break
                finished += self._engine.step()
            if span is not None:
                span["tokens"] = self._engine.tokens - before
        return finished
