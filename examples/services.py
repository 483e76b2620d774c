"""Four things that the package's ``Service`` adds to the pool of notebook 06, each measured.

python examples/services.py

routing     by load instead of in turns, where one replica is five times slower
a bound     a queue that is full refuses at once, so that callers slow down
sessions    all requests of a caller go to one replica, in order
scaling     as many replicas as the queue asks for
"""

import asyncio
import logging
import os
import signal
import time

from zorplex_rl.services.options import Overloaded, ServiceOptions
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of, spawn


class Tool(Actor):
    """A tool that works on four calls at once, each of ``seconds``, and remembers notes."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.notes = []
        self.hands = asyncio.Semaphore(4)

    @concurrent_endpoint
    async def ping(self):
        return os.getpid()

    @concurrent_endpoint
    async def look_up(self):
        async with self.hands:
            await asyncio.sleep(self.seconds)
        return True

    @concurrent_endpoint
    async def note(self, text):
        self.notes.append(text)
        return self.notes


async def routing():
    """Show the answers per second of both routers, with one slow replica among three."""
    in_turns = await answers_per_second("round_robin")
    by_load = await answers_per_second("least_loaded")
    rates = f"{in_turns:.0f} answers/s in turns, {by_load:.0f} by load"
    print(f"Routing: {rates}; one of three replicas is five times slower.")


async def answers_per_second(router, callers=12, measured=3.0):
    async def uneven(name):
        seconds = 0.5 if name == "tools_0" else 0.1
        return await spawn(name, Tool, seconds)

    options = ServiceOptions(replicas=3, router=router)
    async with Service("tools", uneven, options) as tools:
        begin = time.monotonic() + 1  # by then all callers are under way
        end = begin + measured
        answered = []

        async def call():
            while time.monotonic() < end:
                await tools.look_up.route()
                answered.append(time.monotonic())

        calling = [call() for _ in range(callers)]
        await asyncio.gather(*calling)
    count = sum(begin <= moment < end for moment in answered)
    return count / measured


async def bound(crowd=60):
    """Show what a full queue says to callers."""
    options = ServiceOptions(
        replicas=2,
        max_in_flight=4,
        max_queue=50,
        wait_timeout=1.25,
    )
    async with Service("tools", replicas_of(Tool, 0.5), options) as tools:
        calls = [tools.look_up.route() for _ in range(crowd)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    answered = outcomes.count(True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    print(
        f"A bound: of {crowd} requests at the same moment {answered} were answered. The others got:"
    )
    print(f"    {refused[0]}")


async def sessions():
    """Show that a session's requests go to one replica, and what it remembers after a kill."""
    options = ServiceOptions(replicas=3, idempotent={"ping"})
    async with Service("tools", replicas_of(Tool, 0.1), options) as tools:
        alone = [tools.note.route(number) for number in range(6)]
        scattered = await asyncio.gather(*alone)
        async with tools.session() as session:
            in_session = [session.note.route(number) for number in range(10, 16)]
            together = await asyncio.gather(*in_session)
            pid = await session.ping.route()
            os.kill(pid, signal.SIGKILL)
            await session.ping.route()
            after = await session.note.route(16)
    print(
        f"Sessions: a replica knew {scattered[-1]} of six notes that were routed each for itself,"
    )
    print(f"    {together[-1]} within a session, and after a kill {after}.")
    print("    What must survive belongs into a store.")


async def scaling(burst=120):
    """Show how fast a service grows with its queue, and shrinks again."""
    options = ServiceOptions(
        min_replicas=1,
        max_replicas=3,
        max_in_flight=4,
    )
    async with Service("tools", replicas_of(Tool, 0.25), options) as tools:
        began = time.monotonic()
        most = 1
        seconds_up = 0.0
        requests = [tools.look_up.route() for _ in range(burst)]
        calls = asyncio.gather(*requests)
        while not calls.done():
            ready = len(tools.router.ready)
            if ready > most:
                most = ready
                seconds_up = time.monotonic() - began
            await asyncio.sleep(0.02)

        ended = time.monotonic()
        while len(tools.replicas) > 1:
            await tools.look_up.route()
        seconds_down = time.monotonic() - ended
    print(f"Scaling: from 1 to {most} replicas within {seconds_up:.1f} s of a burst,")
    print(f"    and down to 1 {seconds_down:.1f} s after its end.")


async def main():
    logging.getLogger("monarch.supervision").setLevel(logging.ERROR)  # every death here is intended
    await routing()
    await bound()
    await sessions()
    await scaling()


if __name__ == "__main__":
    asyncio.run(main())
