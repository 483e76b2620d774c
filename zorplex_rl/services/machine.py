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
    """Handle processes of this machine. ``hosts.Host`` does the same on another one."""

    def start_processes(self, name: str, procs: int) -> Any:
        start_monarch()
        return this_host().spawn_procs(per_host={"procs": procs}, name=name)

    async def until_one_ends(self, pids: Sequence[int]) -> str:
        """Wait until one of ``pids`` has ended. Returns a sentence for people."""
        if not hasattr(os, "pidfd_open"):
            await asyncio.Event().wait()  # macOS: Monarch notices the end
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
        """Kill ``pids``. Returns once they cannot be running any more."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def mirror(self, folder: Path, is_filled: bool) -> AsyncIterator[str]:
        """Yield a path for processes there. It holds the files of ``folder`` if that ``is_filled``; otherwise what
        they write to it is in ``folder`` afterwards."""
        yield str(folder)


THIS_MACHINE = Machine()
