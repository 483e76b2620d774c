"""Run coroutines together, or until something happens, and tell a cancellation from an error."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background(set[asyncio.Task[Any]]):
    """Hold tasks that run beside everything else, until they are done."""

    def spawn(self, coroutine: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run ``coroutine`` as one of these tasks."""
        task = asyncio.create_task(coroutine)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def finish(self) -> None:
        """Wait until all are done, also those that are added meanwhile."""
        while self:
            await asyncio.gather(*self, return_exceptions=True)


async def run_together(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all to their end. If one fails, cancels the others, waits for them, and raises why."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(fail_if_cancelled_inside(coroutine))
    except BaseExceptionGroup as failures:
        error: BaseException = failures
        while isinstance(error, BaseExceptionGroup):
            # The failed one may itself have raised a group.
            error = error.exceptions[0]
        raise error from None


async def fail_if_cancelled_inside(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``coroutine`` returns. Raises RuntimeError for a CancelledError of its own."""
    try:
        return await coroutine
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise RuntimeError(f"{getattr(coroutine, '__qualname__', coroutine)} was cancelled from inside") from error


def is_being_cancelled() -> bool:
    """Return whether the present task was cancelled: only then is a CancelledError no error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def done_before(doing: Awaitable[Result], event: asyncio.Event) -> "asyncio.Future[Result] | None":
    """Return the done future of ``doing``, or None, cancelling it, if ``event`` is set first."""
    asked, happened = asyncio.ensure_future(doing), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({asked, happened}, return_when=asyncio.FIRST_COMPLETED)
        return asked if asked.done() else None
    finally:
        for future in (asked, happened):
            future.cancel()
            # Nobody waits for it any more, so its exception has been seen.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
