"""What serves notebook 01: actors that are played in this process take messages as Monarch's do."""

from __future__ import annotations

import asyncio

import pytest

from zorplex_rl.course import nb01
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, current_rank, endpoint


class Napper(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    async def alone(self, things):
        return await self.nap(things)

    @concurrent_endpoint
    async def together(self, things):
        return await self.nap(things)

    async def nap(self, things):
        things.append("chocolate")
        count = self.count
        await asyncio.sleep(0.01)
        self.count = count + 1
        return self.count, things

    @endpoint
    async def rank(self):
        me = current_rank()
        return me.rank, me.extent.nelements

    @endpoint
    async def fail(self):
        raise KeyError("no")


def test_a_message_is_a_copy_and_a_plain_endpoint_takes_one_at_a_time():
    async def use(kind):
        napper, things = nb01.Mailbox(Napper), ["milk"]
        replies = [getattr(napper, kind).call_one(things) for _ in range(3)]
        things.append("tea")
        return [await reply for reply in replies], things

    alone, things = asyncio.run(use("alone"))
    assert [count for count, _ in alone] == [1, 2, 3]
    assert [list_ for _, list_ in alone] == [["milk", "chocolate"]] * 3 and things == [
        "milk",
        "tea",
    ]
    assert [count for count, _ in asyncio.run(use("together"))[0]] == [1, 1, 1]


def test_an_actor_knows_its_rank_in_the_mesh_that_is_called():
    async def use():
        napper = nb01.Mailbox(Napper, rank=2, size=4)
        return await napper.rank.call_one(), await napper.ask("rank", rank=0, size=1)

    assert asyncio.run(use()) == ((2, 4), (0, 1))


def test_an_error_reaches_its_caller_and_a_broadcast_has_none():
    async def use():
        napper = nb01.Mailbox(Napper)
        assert napper.fail.broadcast() is None
        with pytest.raises(KeyError):
            await napper.fail.call_one()
        with pytest.raises(AttributeError, match="Napper has no endpoint nap"):
            _ = napper.nap
        return await napper.rank.call_one()

    assert asyncio.run(use()) == (0, 1)


def test_a_deadlock_is_said_in_one_sentence(monkeypatch):
    class Waits(Actor):
        def __init__(self):
            self.hits = 0

        @endpoint
        async def meet(self, other):
            self.other = other

        @endpoint
        async def hit(self, left):
            self.hits += 1
            if left:
                await self.other.hit.call_one(left - 1)

        @endpoint
        async def hits_so_far(self):
            return self.hits

    monkeypatch.setattr(nb01, "PATIENCE_S", 0.2)
    with pytest.raises(AssertionError, match=r"`ping.hit\(2\)`: a deadlock"):
        nb01.expect_long_rallies(Waits)


def test_seconds_are_of_one_thing():
    assert (
        0.001
        < asyncio.run(nb01.seconds_each(lambda: asyncio.sleep(0.02), times=10, within=0.1))
        < 0.02
    )
    assert nb01.listed([1, None]) == "`1`, `None`"
