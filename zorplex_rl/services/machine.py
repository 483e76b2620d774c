"""Start, watch and end the processes of this machine."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from zorplex_rl.services.runtime import start_monarch, this_host


class Machine:
    """Start, watch and end processes of this machine. A host does the same on its own."""

    def start_processes(self, name: str, procs: int) -> Any:
        start_monarch()
        return this_host().spawn_procs(per_host={"procs": procs}, name=name)

    async def until_one_ends(self, pids: Sequence[int]) -> str:
        """Wait until one of ``pids`` has ended. Returns that, in words."""
        if not hasattr(os, "pidfd_open"):
            await asyncio.Event().wait()  # macOS: there Monarch notices it
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        files: list[int] = []
        try:
            for pid in pids:
                files.append(os.pidfd_open(pid))
                loop.add_reader(files[-1], ended.set)
            await ended.wait()
        except ProcessLookupError:
            pass
        finally:
            for file in files:
                loop.remove_reader(file)
                os.close(file)
        return "its process has ended"

    async def end(self, pids: Sequence[int]) -> None:
        """Kill ``pids``. Returns when they have surely ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def lend(self, folder: Path, is_filled: bool) -> AsyncIterator[str]:
        """Yield ``folder``'s path there; a process reads it or, unless it ``is_filled``, fills it."""
        yield str(folder)


THIS_MACHINE = Machine()
