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
        self.seconds, self.notes, self.hands = seconds, [], asyncio.Semaphore(4)

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


async def routing(callers=12, measured=3.0):
    async def uneven(name):
        return await spawn(name, Tool, 0.5 if name == "tools_0" else 0.1)

    rates = {}
    for router in ("round_robin", "least_loaded"):
        async with Service("tools", uneven, ServiceOptions(replicas=3, router=router)) as tools:
            answered, over = [], time.monotonic() + 1 + measured

            async def caller(tools=tools, answered=answered, over=over):
                while time.monotonic() < over:
                    await tools.look_up.route()
                    answered.append(time.monotonic())

            await asyncio.gather(*(caller() for _ in range(callers)))
            rates[router] = sum(over - measured <= when < over for when in answered) / measured
    print(
        f"Routing: {rates['round_robin']:.0f} answers/s in turns, {rates['least_loaded']:.0f} by load; "
        "one of three replicas is five times slower."
    )


async def bound(crowd=60):
    options = ServiceOptions(replicas=2, max_in_flight=4, max_queue=50, wait_timeout=1.25)
    async with Service("tools", replicas_of(Tool, 0.5), options) as tools:
        outcomes = await asyncio.gather(*(tools.look_up.route() for _ in range(crowd)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    print(
        f"A bound: of {crowd} requests at the same moment {outcomes.count(True)} were answered. The others were told:"
    )
    print(f"    {refused[0]}")


async def sessions():
    async with Service("tools", replicas_of(Tool, 0.1), ServiceOptions(replicas=3, idempotent={"ping"})) as tools:
        scattered = await asyncio.gather(*(tools.note.route(number) for number in range(6)))
        async with tools.session() as session:
            together = await asyncio.gather(*(session.note.route(number) for number in range(10, 16)))
            os.kill(await session.ping.route(), signal.SIGKILL)
            await session.ping.route()
            forgotten = await session.note.route(16)
    print(f"Sessions: a replica knew {scattered[-1]} of six notes that were routed each for itself,")
    print(f"    {together[-1]} within a session, and after a kill {forgotten}: what must survive belongs into a store.")


async def scaling(burst=120):
    options = ServiceOptions(min_replicas=1, max_replicas=3, max_in_flight=4)
    async with Service("tools", replicas_of(Tool, 0.25), options) as tools:
        began, most, up = time.monotonic(), 1, 0.0
        calls = asyncio.gather(*(tools.look_up.route() for _ in range(burst)))
        while not calls.done():
            ready = len(tools.router.ready)
            if ready > most:
                most, up = ready, time.monotonic() - began
            await asyncio.sleep(0.02)
        over = time.monotonic()
        while len(tools.replicas) > 1:
            await tools.look_up.route()
        print(
            f"Scaling: from 1 to {most} replicas within {up:.1f} s of a burst, "
            f"and down to 1 {time.monotonic() - over:.1f} s after its end."
        )


async def main():
    logging.getLogger("monarch.supervision").setLevel(logging.ERROR)  # every death here is intended
    for part in (routing, bound, sessions, scaling):
        await part()


if __name__ == "__main__":
    asyncio.run(main())
