"""Start one process through Monarch, ask it for its number, and stop it: ``python -m
zorplex_rl.services.first_process``.

Prints the seconds until it answered. ``zorplex-rl check`` runs this as a program of its own,
because native code that fails may end its process.
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
    """Start a process and stop it again. Returns the seconds until it answered. Raises RuntimeError
    if no other process did."""
    began = time.monotonic()
    replica = await bring_up("hello", replicas_of(Hello), timeout)
    try:
        if await replica.actor.pid.call_one() == os.getpid():
            raise RuntimeError("the actor lives in the process that asked for a new one")
        return time.monotonic() - began
    finally:
        await replica.stop()


if __name__ == "__main__":
    # In a module that is run as a program, the class would belong to a module that the new process
    # does not know.
    from zorplex_rl.services.first_process import start_one as start

    code = 1
    # Monarch's threads may still run while the interpreter is taken apart, and that can end the
    # process with SIGABRT. The first to be registered is the last to be called.
    atexit.register(lambda: os._exit(code))
    print(f"{asyncio.run(start()):.1f}", flush=True)
    code = 0
