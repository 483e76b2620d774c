"""Keep something open from one notebook cell to the next, at most once per name.

    tools = await enter("tools", under_load(…))     first closes what an earlier run of the cell opened as "tools", then opens it
    await leave("tools")                            closes it; does nothing if it is closed already
    async with stopping(procs): …                   stops the processes of a mesh at the end

Otherwise every new run of a cell would leave its earlier processes running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

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


@asynccontextmanager
async def stopping(procs: Any) -> AsyncIterator[Any]:
    """Stop the processes at the end."""
    try:
        yield procs
    finally:
        await procs.stop()
