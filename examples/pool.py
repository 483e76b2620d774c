"""A pool of processes that heals: notebook 06 writes this file. Its actors need an endpoint `ping`
that returns os.getpid()."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from types import SimpleNamespace

os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")  # to notice a death
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError as ReplicaDied
from monarch.actor import this_host

monarch.actor.unhandled_fault_hook = lambda failure: None  # its caller gets an exception, which is enough


class Pool:
    """Replicas of an actor, each in a process of its own. One that fails is replaced."""

    def __init__(self, actor_class, *args, replicas=3, every=0.5, limit=3.0):
        self.recipe, self.replicas = (actor_class, *args), replicas
        self.every, self.limit = every, limit  # seconds between two probes, and for one
        self.started, self.ready, self.failure = [], [], None

    async def __aenter__(self):
        self.keepers = [asyncio.create_task(self.keep_one()) for _ in range(self.replicas)]
        while len(self.ready) < self.replicas:
            await asyncio.sleep(0.01)
            if self.failure:  # nobody waits for what cannot start
                await self.__aexit__()
                raise self.failure
        return self

    async def __aexit__(self, *_):
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        for replica in self.started[:]:
            self.end(replica)

    async def start(self):
        """Start a replica. It is in ``ready`` once it answers: never, if its constructor raises."""
        procs = this_host().spawn_procs(per_host={"procs": 1})
        actor = procs.spawn("replica", *self.recipe)
        replica = SimpleNamespace(procs=procs, actor=actor, pid=0, load=0)
        self.started.append(replica)
        try:
            replica.pid = await actor.ping.call_one()
            self.ready.append(replica)
        except ReplicaDied as error:
            self.failure = error
        return replica

    async def answers(self, replica):
        """Probe: true if it is in ``ready`` and answers within ``limit`` seconds."""
        with suppress(ReplicaDied, TimeoutError):
            return await asyncio.wait_for(self.ask(replica, "ping"), self.limit)

    async def ask(self, replica, endpoint, *args):
        """Return its answer. Raises ReplicaDied if it is gone before, or not in ``ready``."""
        replica.load += 1
        try:
            asked = getattr(replica.actor, endpoint).call_one(*args).as_asyncio()
            asked.add_done_callback(asyncio.Future.exception)  # perhaps nobody waits any more
            while replica in self.ready and not asked.done():
                await asyncio.wait({asked}, timeout=self.every)
            if not asked.done():
                raise ReplicaDied("its replica was taken out of the pool")
            return asked.result()
        finally:
            replica.load -= 1

    async def there(self):
        """Return the replicas in ``ready``, as soon as there is one."""
        while not self.ready:
            await asyncio.sleep(0.01)
        return self.ready

    def remove(self, replica):
        """Take it out of ``ready``, if it is there: it gets no more requests."""
        if replica in self.ready:
            self.ready.remove(replica)

    def end(self, replica):
        """Remove and kill it: one that only hangs could wake up."""
        self.remove(replica)
        self.started.remove(replica)
        replica.procs.stop()
        with suppress(ProcessLookupError):
            if replica.pid:
                os.kill(replica.pid, signal.SIGKILL)

    async def wait(self, failures):
        await asyncio.sleep(self.retry_delay(failures, 0.25, 8.0, random.random()))

    @staticmethod
    def retry_delay(failures, base, cap, draw):
        return draw * min(base * 2.0 ** min(failures - 1, 60), cap)

    async def keep_one(self):
        failures = 0
        while True:
            replica = await self.start()
            while await self.answers(replica):
                failures = 0
                await asyncio.sleep(self.every)
            self.end(replica)
            failures += 1
            await self.wait(failures)

    async def route(self, endpoint, *args, again=True):
        while True:
            replica = min(await self.there(), key=lambda replica: replica.load)
            try:
                return await self.ask(replica, endpoint, *args)
            except ReplicaDied:
                self.remove(replica)
                if not again:
                    raise
