"""What a notebook keeps running from one cell to the next, never twice.

    tools = await enter("tools", under_load(…))     opens it; what an earlier run of the cell has opened as "tools" is closed first
    await leave("tools")                            closes it; does nothing if it is closed already

A cell that runs again would otherwise leave its processes behind.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

T = TypeVar("T")
_open: dict[str, tuple[asyncio.AbstractEventLoop, AsyncExitStack]] = {}


async def enter(name: str, what: AbstractAsyncContextManager[T]) -> T:
    """Open ``what`` under ``name``, in place of what is open under it."""
    await leave(name)
    stack = AsyncExitStack()
    entered = await stack.enter_async_context(what)
    _open[name] = asyncio.get_running_loop(), stack
    return entered


async def leave(name: str) -> None:
    """Close what is open under ``name``. What was opened in an event loop that has ended has ended with it, and is forgotten."""
    loop, stack = _open.pop(name, (None, None))
    if stack is not None and loop is asyncio.get_running_loop():
        await stack.aclose()
