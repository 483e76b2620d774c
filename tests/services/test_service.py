"""Services of real processes, which are killed, stopped and made to raise while requests are under
way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from echo import Echo, Finder, children, count_overtaking, in_flight, send, service_of, until

from zorplex_rl.services.options import (
    GivenUp,
    Overloaded,
    ReplicaFailed,
    ServiceError,
    ServiceOptions,
)
from zorplex_rl.services.registry import get_service, register_service
from zorplex_rl.services.runtime import Actor, ActorError, concurrent_endpoint
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of, spawn

pytestmark = pytest.mark.slow


@asynccontextmanager
async def echoes(*args, **options):
    """A service of ``Echo``, and what it has restarted."""
    restarts = []
    async with service_of(Echo, *args, **options) as service:
        service.on_restart = restarts.append
        yield service, restarts


def pids(service):
    return [replica.pid for replica in service.replicas if replica.pid]


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


async def test_requests_go_round_and_every_replica_answers_a_fanout():
    async with echoes(replicas=3) as (service, _):
        homes = [await service.who.route() for _ in range(300)]
        assert Counter(homes) == dict.fromkeys(pids(service), 100)
        assert sorted(await service.who.fanout()) == sorted(pids(service))
        everything = pids(service)
    await until(lambda: not any(map(is_running, everything)))


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_replica_that_is_killed_or_hangs_is_replaced_and_its_requests_are_accounted_for(
    blow,
):
    async with echoes(replicas=2) as (service, restarts):
        victim = service.replicas[0]
        (pid,) = victim.pids
        repeated = [asyncio.create_task(service.ask.route(number, 1.0)) for number in range(10)]
        unique = [asyncio.create_task(service.do.route(number, 1.0)) for number in range(10)]
        await until(lambda: in_flight(service) == 20)
        os.kill(pid, blow)
        assert await asyncio.gather(*repeated) == list(range(10))
        outcomes = await asyncio.gather(*unique, return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, ReplicaFailed)]
        assert len(failed) == 5 and len(set(outcomes) & set(range(10))) == 5
        assert all("echo_0 of service 'echo'" in str(error) for error in failed)
        assert victim not in service.router.replicas
        await until(lambda: len(pids(service)) == 2)
        assert set(await service.who.fanout()) == set(pids(service)) and pid not in pids(service)
        assert [(restart.died, restart.took_over) for restart in restarts] == [("echo_0", "echo_2")]
        assert service.router.counts["retries"] == 5
        await until(lambda: not is_running(pid))
        homes = Counter([await service.who.route() for _ in range(100)])
        assert set(homes.values()) == {50}


@pytest.mark.parametrize("spares", [0, 1])
async def test_an_idle_service_notices_a_death_and_a_spare_takes_over_or_a_new_replica_after_its_setup(
    spares,
):
    async with echoes("", 1.0, replicas=1, spares=spares) as (service, restarts):
        await service.spares_ready()
        os.kill(pids(service)[0], signal.SIGKILL)
        await until(lambda: restarts)
        # A spare was set up already: no request waited for that second.
        assert (restarts[0].seconds < 1.0) == bool(spares)
        assert await service.who.route() == pids(service)[0]


async def test_no_more_is_in_flight_or_queued_than_allowed_and_who_waits_too_long_is_told():
    async with echoes(replicas=1, max_in_flight=2, max_queue=8, wait_timeout=1.0) as (service, _):
        requests = [asyncio.create_task(service.nap.route(2.0)) for _ in range(2)]
        requests += [asyncio.create_task(service.nap.route(0.0)) for _ in range(8)]
        await until(lambda: in_flight(service) == 2)
        assert (service.replicas[0].load, len(service.router.queue)) == (2, 8)
        with pytest.raises(Overloaded, match="its queue is full: 8 requests wait"):
            await service.nap.route(0.0)
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert outcomes[:2] == pids(service) * 2
        assert all(isinstance(outcome, Overloaded) for outcome in outcomes[2:])
        assert "could not take the request for 1 s" in str(outcomes[-1])
        assert await service.nap.route(0.0) == pids(service)[0]
        assert in_flight(service) == len(service.router.queue) == 0


async def test_a_session_stays_with_its_replica_in_order_and_moves_when_that_dies():
    async with echoes(replicas=3, max_in_flight=2) as (service, _), service.session() as session:
        answers = await asyncio.gather(*(session.remember.route(number) for number in range(40)))
        assert answers[-1] == list(range(40))
        home = await session.who.route()
        os.kill(home, signal.SIGKILL)
        assert await session.who.route() != home
        assert await session.remember.route(7) == [7]


async def test_a_newcomer_takes_over_requests_that_wait_for_others_but_none_of_a_session():
    async with echoes(replicas=1, max_in_flight=1) as (service, _), service.session() as session:
        assert await session.remember.route(0) == [0]
        # On a busy machine a new replica takes seconds: there is work for fifteen.
        requests = [asyncio.create_task(service.nap.route(0.5)) for _ in range(30)]
        in_order = [asyncio.create_task(session.remember.route(number)) for number in range(1, 5)]
        await until(lambda: len(service.router.queue) == 33)
        await service.scale_to(3)
        assert len(set(await asyncio.gather(*requests))) == 3
        assert (await asyncio.gather(*in_order))[-1] == [0, 1, 2, 3, 4]
        assert session.replica.name == "echo_0"


async def test_a_burst_brings_replicas_and_calm_sends_them_away_again():
    async with echoes(
        replicas=1, min_replicas=1, max_replicas=3, max_in_flight=4, wait_timeout=60.0
    ) as (
        service,
        _,
    ):
        answered = 0

        async def request():
            nonlocal answered
            await service.nap.route(0.1)
            answered += 1

        # On a busy machine a new replica takes its time, so the burst lasts until all are there.
        while len(service.router.replicas) < 3:
            await asyncio.gather(*(request() for _ in range(50)))
        await until(lambda: len(service.replicas) == 1)
        assert (service.router.counts["failed"], service.router.counts["answered"]) == (0, answered)


async def test_nothing_is_lost_done_twice_or_overtaken_under_kills_hangs_and_scaling_with_callers_in_three_processes(
    tmp_path,
):
    """Every request is answered with its own number or fails with an error that names its cause."""

    journal, rng, share = str(tmp_path / "done"), random.Random(0), 500
    async with echoes(journal, name="tormented", replicas=4, max_in_flight=4) as (service, _):
        await register_service(service)
        finders = [await spawn(f"finder_{number}", Finder) for number in range(2)]
        scaling = []

        async def strike():
            while True:
                await asyncio.sleep(0.7)
                if ready := service.router.ready:
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(ready).pid, rng.choice([signal.SIGKILL, signal.SIGSTOP]))
                scaling.append(asyncio.create_task(service.scale_to(rng.randint(2, 5))))
                with suppress(ActorError, ServiceError):
                    await service.complain.route("ouch")

        overtaken = count_overtaking(service.router)
        striking = asyncio.create_task(strike())
        numbers = [list(range(first, first + share)) for first in range(0, 5 * share, share)]
        parts = await asyncio.gather(
            send(service, "do", numbers[0], 0.02, 20),
            *(
                finder.actor.send.call_one("tormented", "ask", numbers[1 + i], 0.02, 10)
                for i, finder in enumerate(finders)
            ),
            *(
                finder.actor.send.call_one("tormented", "do", numbers[3 + i], 0.02, 10)
                for i, finder in enumerate(finders)
            ),
        )
        striking.cancel()
        await asyncio.gather(striking, *scaling, return_exceptions=True)
        outcomes = [outcome for part in parts for outcome in part]
        answered = [number for number, outcome in enumerate(outcomes) if outcome == number]
        failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert len(answered) + len(failed) == len(outcomes) == 5 * share
        assert all(
            "service 'tormented' failed while it ran" in error
            and "may or may not have finished" in error
            for error in failed
        )
        assert len(answered) > 0.8 * len(outcomes)
        assert max(overtaken.values(), default=0) <= service.options.max_in_flight
        for finder in finders:
            await finder.stop()
    done = Counter(int(line) for file in tmp_path.iterdir() for line in file.read_text().split())
    assert max(done.values()) == 1
    assert {number for number in answered if not share <= number < 3 * share} <= done.keys()


async def test_an_actor_finds_a_service_by_its_name_and_follows_its_changes():
    async with echoes(replicas=2, name="found") as (service, restarts):
        await register_service(service)
        finder = await spawn("finder", Finder)
        assert set(await finder.actor.find_and_ask.call_one("found", 4)) == set(pids(service))
        os.kill(pids(service)[0], signal.SIGKILL)
        await until(lambda: restarts)
        assert await finder.actor.find_and_ask.call_one("found", 1)
        client = await get_service("found")
        await until(lambda: {r.id for r in client.router.ready} == {r.id for r in service.replicas})
        homes = Counter(await finder.actor.find_and_ask.call_one("found", 40))
        assert set(homes) == set(pids(service))
        with pytest.raises(ServiceError, match="registered already"):
            await register_service(Service("found", replicas_of(Echo)))
        await finder.stop()
    with pytest.raises(
        ServiceError, match="no service 'found' is registered, or it has been closed"
    ):
        await get_service("found")


async def test_a_replica_outlives_a_caller_that_stops_and_other_callers_get_their_answers():
    async with echoes(name="asked") as (service, _):
        await register_service(service)
        finder = await spawn("finder", Finder)
        asking = asyncio.ensure_future(
            finder.actor.send.call_one("asked", "do", [1, 2, 3], 3.0).as_asyncio()
        )
        await until(lambda: service.replicas[0].load >= 3)
        napping = asyncio.create_task(service.nap.route(2.0))
        # Its process lives on, so the answers that it waits for come back as undeliverable.
        await finder.actor.stop()
        assert await napping == pids(service)[0]
        assert await service.who.route() == await napping
        asking.cancel()
        await finder.stop()


async def test_many_who_ask_for_a_service_at_once_get_one_client_and_its_bounds_hold():
    async with echoes(name="shared", max_in_flight=2) as (service, _):
        await register_service(service)
        clients = await asyncio.gather(*(get_service("shared") for _ in range(8)))
        assert len(set(map(id, clients))) == 1
        assert await get_service("shared") is clients[0]
        naps = [asyncio.create_task(client.nap.route(0.3)) for client in clients]
        await asyncio.sleep(0.1)
        assert in_flight(clients[0]) == 2
        await asyncio.gather(*naps)


def slow_to_come_back(seconds):
    """Starts an ``Echo`` at once, and every later one after ``seconds`` of setup."""
    first = True

    async def start(name):
        nonlocal first
        setup_seconds, first = 0.0 if first else seconds, False
        return await replicas_of(Echo, "", setup_seconds)(name)

    return start


def test_a_request_waits_for_the_restart_of_its_role_as_long_as_a_start_may_take():
    async def after_a_death(seconds, options):
        async with Service("slow", slow_to_come_back(seconds), options) as service:
            os.kill(pids(service)[0], signal.SIGKILL)
            return await service.ask.route(7)

    options = ServiceOptions(start_timeout=60, idempotent=("ask",), wait_timeout=0.5)
    assert asyncio.run(after_a_death(3.0, options)) == 7
    with pytest.raises(Overloaded, match="no healthy replica"):
        asyncio.run(after_a_death(30.0, replace(options, start_timeout=6.0)))


async def test_a_service_whose_only_replica_is_being_replaced_is_found_and_answers_as_soon_as_that_is_done():
    options = ServiceOptions(start_timeout=60)
    async with Service("replaced", slow_to_come_back(4.0), options) as service:
        await register_service(service)
        os.kill(pids(service)[0], signal.SIGKILL)
        await until(lambda: not pids(service))
        client = await get_service("replaced")
        assert await client.who.route() == pids(service)[0]


class Stillborn(Echo):
    """Fails in ``setup``."""

    @concurrent_endpoint
    async def setup(self) -> None:
        raise OSError("no such model")


async def test_a_service_that_cannot_start_says_why_and_leaves_no_process():
    before = children()
    with pytest.raises(ActorError, match="no such model"):
        async with Service("stillborn", replicas_of(Stillborn), ServiceOptions(replicas=2)):
            pass
    await until(lambda: children() <= before)


class Unready(Actor):
    @concurrent_endpoint
    async def setup(self) -> None:
        await asyncio.sleep(600)


async def test_a_service_whose_set_up_never_ends_says_how_long_it_was_waited_for():
    with pytest.raises(GivenUp, match=r"it was not ready within 1\.5 s$"):
        async with Service(
            "unready", replicas_of(Unready), ServiceOptions(start_timeout=1.5, max_failures=0)
        ):
            pass


class Unmade(Actor):
    """Cannot be made, and has no ``setup``."""

    def __init__(self) -> None:
        raise OSError("no such model")

    @concurrent_endpoint
    async def ask(self) -> None:
        pass


async def test_an_actor_whose_init_raises_is_given_up_at_its_first_request():
    async with service_of(Unmade, max_failures=0) as service:
        with pytest.raises(GivenUp, match="no such model"):
            await service.ask.route()
