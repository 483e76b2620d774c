"""Replicas that come and go while requests are under way, some of them from other processes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from echo import Finder, Fragile, children, echoes, in_flight, service_of, until

from zorplex_rl.services.registry import get_service, register_service
from zorplex_rl.services.runtime import ActorError
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of, spawn

pytestmark = pytest.mark.slow


@asynccontextmanager
async def registered(service):
    """``service``, open and known to the registry."""
    async with service:
        await register_service(service)
        yield service


async def test_the_least_loaded_replica_leaves_and_the_busy_one_stays():
    async with registered(echoes(name="uneven", replicas=3)) as service:
        finder = await spawn("finder", Finder)
        elsewhere = finder.actor.send.call_one("uneven", "do", [1], 6.0).as_asyncio()
        await until(lambda: any(replica.load for replica in service.replicas))
        (busy,) = (replica for replica in service.replicas if replica.load)
        await service.scale_to(1)
        assert service.replicas == [busy] and not elsewhere.done()
        assert await elsewhere == [1]
        await finder.stop()


async def test_a_drain_holds_up_no_other_scaling_and_fails_no_request():
    async with echoes(replicas=2) as service:
        requests = [asyncio.create_task(service.nap.route(10.0)) for _ in range(2)]
        await until(lambda: in_flight(service) == 2)
        draining = asyncio.create_task(service.scale_to(1))
        await until(lambda: service.replica_set.draining)
        assert [replica.state for replica in service.replica_set.draining] == ["draining"]
        await service.scale_to(2)
        assert not draining.done() and not any(request.done() for request in requests)
        assert len(set(await asyncio.gather(*requests))) == 2
        await draining
        assert [replica.state for replica in service.replicas] == ["ready", "ready"]


async def test_callers_in_other_processes_make_a_service_grow():
    options = {"min_replicas": 1, "max_replicas": 3, "max_in_flight": 2}
    async with registered(echoes(name="growing", **options)) as service:
        finder = await spawn("finder", Finder)
        sent = finder.actor.send.call_one("growing", "do", list(range(200)), 0.1).as_asyncio()
        await until(lambda: len(service.router.ready) == 3)
        assert await sent == list(range(200))
        assert service.router.counts["requests"] == 0
        await finder.stop()


async def test_scaling_up_says_why_it_cannot_and_keeps_what_there_is(tmp_path):
    broken = tmp_path / "broken"
    async with Service("fragile", replicas_of(Fragile, str(broken))) as service:
        before = children()
        broken.touch()
        with pytest.raises(ActorError, match="the disk is full"):
            await service.scale_to(3)
        assert [replica.name for replica in service.replicas] == ["fragile_0"]
        await until(lambda: children() <= before)
        broken.unlink()
        await service.scale_to(2)
        assert len({await service.who.route() for _ in range(4)}) == 2


async def test_scaling_up_ends_when_another_call_takes_the_new_place_out(tmp_path):
    async with service_of(Fragile, str(tmp_path / "broken"), 1.5) as service:
        scaling = asyncio.create_task(service.scale_to(2))
        await until(lambda: len(service.replicas) == 2)
        await service.scale_to(1)
        async with asyncio.timeout(20):
            await scaling
        assert [replica.name for replica in service.replicas] == ["echo_0"]


async def test_scaling_that_is_cancelled_leaves_nothing_behind(tmp_path):
    async with Service("fragile", replicas_of(Fragile, str(tmp_path / "broken"), 1.5)) as service:
        before = children()
        scaling = asyncio.create_task(service.scale_to(3))
        await until(lambda: len(children()) >= len(before) + 2)
        scaling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scaling
        assert [replica.name for replica in service.replicas] == ["fragile_0"]
        await until(lambda: children() <= before)
        assert len(service.replicas) == len(service.router.ready) == 1


async def test_the_name_of_a_closed_service_is_free_and_its_callers_find_the_new_one():
    async with echoes(name="twice") as old:
        await register_service(old)
        finder = await spawn("finder", Finder)
        assert await finder.actor.find_and_ask.call_one("twice", 1) == [old.replicas[0].pid]
    async with echoes(name="twice") as new:
        await register_service(new)
        assert await finder.actor.find_and_ask.call_one("twice", 3) == [new.replicas[0].pid] * 3
        assert await (await get_service("twice")).who.route() == new.replicas[0].pid
        await finder.stop()
