"""A pool of processes that heals, on bare Monarch actors. Each needs an endpoint `ping` that returns os.getpid()."""

import asyncio
import os
import random
from contextlib import asynccontextmanager, suppress

os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")  # to notice a death
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError as ReplicaDied


@asynccontextmanager
async def healing_pool(actor_class, *args, replicas=3, every=0.5, limit=3.0):
    monarch.actor.unhandled_fault_hook = lambda failure: None  # its caller gets an exception, which is enough
    ready, failures = {}, []  # ready: the calls that each replica has still to answer

    async def keep_one(wait=0.125):
        while True:
            procs = monarch.actor.this_host().spawn_procs(per_host={"procs": 1})
            replica, pid = procs.spawn("replica", actor_class, *args), 0
            try:
                while True:
                    async with asyncio.timeout(limit if pid else 60):
                        pid = await replica.ping.call_one()  # raises if its constructor did
                    ready.setdefault(replica, [])
                    wait = 0.125
                    await asyncio.sleep(every)
            except (ReplicaDied, TimeoutError) as error:
                failures.append(error)
            finally:
                [call.cancel() for call in ready.pop(replica, [])]
                with suppress(ProcessLookupError):  # one that only hangs could wake up, so it is killed, too
                    os.kill(pid, 9) if pid else procs.stop().as_asyncio()
            await asyncio.sleep(random.uniform(0, wait := min(2 * wait, 8.0)))

    async def route(endpoint, *arguments, again=True):
        while True:
            while not ready:
                await asyncio.sleep(0.01)
            replica, calls = min(ready.items(), key=lambda item: len(item[1]))
            calls.append(call := getattr(replica, endpoint).call_one(*arguments).as_asyncio())
            call.add_done_callback(calls.remove)
            await asyncio.wait([call])
            if not call.cancelled() and not isinstance(call.exception(), ReplicaDied):
                return call.result()
            ready.pop(replica, None)
            if not again:
                raise ReplicaDied(f"{endpoint} may have been done: its replica is gone")

    keepers = [asyncio.create_task(keep_one()) for _ in range(replicas)]
    try:
        while len(ready) < replicas and not failures:
            await asyncio.sleep(0.01)
        if failures:  # nobody waits for what cannot start
            raise failures[0]
        yield route
    finally:
        [keeper.cancel() for keeper in keepers]
        await asyncio.wait(keepers)
