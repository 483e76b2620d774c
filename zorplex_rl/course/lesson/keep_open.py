"""Keep processes open from one notebook cell to the next, at most once per name.

    procs = await keep_open.enter("01", keep_open.stopping(started))    the cell that starts them
    await keep_open.done("01")                                          the page's last cell: ends them where no reader is
    await keep_open.leave("01")                                         ends them now; does nothing if they have ended

``enter`` first closes what an earlier run of its cell has opened, or every run would leave its processes behind.
``done`` closes in an export and in a script only. In `marimo edit` the processes stay: a reader who solves an
exercise, or changes a setting, runs cells that need them. They end with the notebook's kernel. So a cell may run
again on the same processes: what it leaves there (a model, a total) must not change what it finds the next time.
An actor that a cell spawns itself is always a new one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from zorplex_rl.course.lesson.waiting import unattended

T = TypeVar("T")
_open: dict[str, tuple[asyncio.AbstractEventLoop, AsyncExitStack]] = {}


async def enter(name: str, what: AbstractAsyncContextManager[T]) -> T:
    """Open ``what`` under ``name``, after closing what is open there. Returns what it yields."""
    await leave(name)
    stack = AsyncExitStack()
    entered = await stack.enter_async_context(what)
    _open[name] = asyncio.get_running_loop(), stack
    return entered


async def leave(name: str) -> None:
    """Close what is open under ``name``. What has ended with its event loop is forgotten."""
    loop, stack = _open.pop(name, (None, None))
    if stack is not None and loop is asyncio.get_running_loop():
        await stack.aclose()


async def done(name: str) -> None:
    """Close what is open under ``name`` if no reader is there, who could change a cell that needs it."""
    if unattended():
        await leave(name)


@asynccontextmanager
async def stopping(procs: Any) -> AsyncIterator[Any]:
    """Stop the processes at the end."""
    try:
        yield procs
    finally:
        await procs.stop()
