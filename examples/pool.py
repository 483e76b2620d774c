"""A pool of processes that heals, on bare Monarch actors.

    async with healing_pool(Tool, replicas=3) as pool:
        value = await pool.route("look_up", "blip")

A replica is an actor in a process of its own. A replica that dies or hangs is replaced, and what it had
to answer goes to another one. Each actor needs an endpoint `ping` that returns `os.getpid()`.
"""

import asyncio
import os
import random
import signal
from contextlib import asynccontextmanager, suppress

os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")  # to notice a death
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError as ReplicaDied

START_LIMIT = 60.0
"""Seconds for a replica to start."""
SHORTEST_WAIT = 0.125
LONGEST_WAIT = 8.0
"""Seconds before a replica that could not start is started again."""


class Pool:
    def __init__(self, actor_class, arguments, every, limit):
        self.actor_class = actor_class
        self.arguments = arguments
        self.every = every
        self.limit = limit
        self.ready = {}  # the calls that each replica has still to answer
        self.failures = []

    async def keep_one(self):
        """Start a replica and watch it. Whenever it dies or hangs, start another one."""
        wait = SHORTEST_WAIT
        while True:
            procs = monarch.actor.this_host().spawn_procs(per_host={"procs": 1})
            replica = procs.spawn("replica", self.actor_class, *self.arguments)
            pid = None
            try:
                while True:
                    async with asyncio.timeout(self.limit if pid else START_LIMIT):
                        pid = await replica.ping.call_one()  # raises if the constructor did
                    self.ready.setdefault(replica, [])
                    wait = SHORTEST_WAIT
                    await asyncio.sleep(self.every)
            except (ReplicaDied, TimeoutError) as error:
                self.failures.append(error)
            finally:
                self.end(replica, procs, pid)
            wait = min(2 * wait, LONGEST_WAIT)
            await asyncio.sleep(random.uniform(0, wait))

    def end(self, replica, procs, pid):
        """End a replica's process, and let `route` send its calls to others."""
        for call in self.ready.pop(replica, []):
            call.cancel()
        if pid is None:
            procs.stop().as_asyncio()
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # one that only hangs could wake up again

    async def route(self, endpoint, *arguments, again=True):
        """Call an endpoint of the replica with the fewest calls. If it dies, call another, unless not `again`."""
        while True:
            while not self.ready:
                await asyncio.sleep(0.01)
            replica, calls = min(self.ready.items(), key=lambda item: len(item[1]))
            method = getattr(replica, endpoint)
            call = method.call_one(*arguments).as_asyncio()
            calls.append(call)
            call.add_done_callback(calls.remove)
            await asyncio.wait([call])
            if not call.cancelled() and not isinstance(call.exception(), ReplicaDied):
                return call.result()
            self.ready.pop(replica, None)
            if not again:
                raise ReplicaDied(f"{endpoint} may have been done: its replica is gone")


@asynccontextmanager
async def healing_pool(actor_class, *arguments, replicas=3, every=0.5, limit=3.0):
    """Open a pool of replicas that are asked `every` so many seconds, and have `limit` seconds to answer."""
    # Monarch would end this program when a replica dies. Here its caller gets an exception.
    monarch.actor.unhandled_fault_hook = lambda failure: None
    pool = Pool(actor_class, arguments, every, limit)
    keepers = []
    for _ in range(replicas):
        keeper = asyncio.create_task(pool.keep_one())
        keepers.append(keeper)
    try:
        while len(pool.ready) < replicas and not pool.failures:
            await asyncio.sleep(0.01)
        if pool.failures:
            raise pool.failures[0]  # do not wait for what cannot start
        yield pool
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)
