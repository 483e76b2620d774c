"""Start one process through Monarch and stop it: ``python -m zorplex_rl.services.first_process``.

Prints the seconds until it answered. ``zorplex-rl check`` runs it apart, as it may crash.
"""

import asyncio
import atexit
import os
import time

from zorplex_rl.services.replica import replicas_of
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.supply import bring_up


class Hello(Actor):
    """Say which process this is."""

    @concurrent_endpoint
    async def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()


async def start_one(timeout: float = 60.0) -> float:
    """Start and stop a process. Returns the seconds to its answer, or raises RuntimeError."""
    began = time.monotonic()
    replica = await bring_up("hello", replicas_of(Hello), timeout)
    try:
        if await replica.actor.pid.call_one() == os.getpid():
            raise RuntimeError("the actor lives in the process that asked for a new one")
        return time.monotonic() - began
    finally:
        await replica.stop()


if __name__ == "__main__":
    # The new process would not know the module of a class of a program that is run.
    from zorplex_rl.services.first_process import start_one as start

    code = 1
    # Monarch's threads may abort the process at its end. First registered, last called.
    atexit.register(lambda: os._exit(code))
    print(f"{asyncio.run(start()):.1f}", flush=True)
    code = 0
