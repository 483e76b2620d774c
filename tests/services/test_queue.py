"""Who is next: requests of one service, in one queue, oldest first. With real processes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from echo import echoes, in_flight

from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.services.replica import State

pytestmark = pytest.mark.slow


async def test_requests_are_answered_in_the_order_in_which_they_came():
    async with echoes(max_in_flight=1) as service:
        order = []

        async def request(number):
            await service.nap.route(0.01)
            order.append(number)

        await asyncio.gather(*map(request, range(30)))
        assert order == list(range(30))


@pytest.mark.parametrize("departure", ["drained", "killed"])
async def test_a_session_whose_replica_leaves_keeps_its_order_on_the_next_one(departure):
    async with (
        echoes(replicas=2, max_in_flight=4, idempotent={"remember"}) as service,
        service.session() as session,
    ):
        await session.remember.route(0)
        home = session.replica
        requests = [asyncio.create_task(session.remember.route(number)) for number in range(1, 60)]
        await asyncio.sleep(0)
        if departure == "killed":
            os.kill(home.pid, signal.SIGKILL)
        else:
            home.move_to(State.DRAINING)
        await asyncio.gather(*requests)
        assert session.replica is not home
        moved = await session.remember.route(60)
        assert moved == sorted(moved) and moved[-1] == 60


async def test_a_caller_that_gives_up_in_the_moment_of_its_turn_hands_it_on():
    async with echoes(max_in_flight=1, wait_timeout=3.0) as service:
        first, second, third = (asyncio.create_task(service.nap.route(0.1)) for _ in range(3))
        first.add_done_callback(lambda _: second.cancel())
        assert await third == service.replicas[0].pid
        assert second.cancelled()
        assert (in_flight(service), service.router.queue) == (0, [])


async def test_who_gives_up_does_not_free_a_slot_that_the_replica_still_works_on():
    async with echoes(max_in_flight=1) as service:
        given_up = asyncio.create_task(service.nap.route(0.5))
        await asyncio.sleep(0.05)
        given_up.cancel()
        began = asyncio.get_running_loop().time()
        await service.who.route()
        assert asyncio.get_running_loop().time() - began > 0.3


async def test_nothing_is_sent_to_a_replica_that_has_been_declared_failed(tmp_path):
    async with echoes(str(tmp_path / "done"), replicas=2) as service:
        suspect = service.replicas[0]
        suspect.move_to(State.FAILED, "somebody says so")
        with pytest.raises(ReplicaFailed, match=r"has failed, and 'do' was not sent to it"):
            await suspect.call("do", 1)
        assert await asyncio.gather(*(service.do.route(number) for number in range(2, 12))) == list(
            range(2, 12)
        )
    done = {path.suffix: path.read_text().split() for path in tmp_path.iterdir()}
    assert f".{suspect.pid}" not in done
