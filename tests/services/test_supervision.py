"""Death and stillness: a process that is gone is noticed at once, one that stands still when its
own limit says so, and a start is watched too."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest
from echo import Echo, Finder, Misled, Mortal, Parrot, children, service_of, until
from runs import SMALL, final_weights, same_weights, train_here

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.options import GivenUp, ReplicaFailed, ServiceOptions
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of, spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfds"),
]
NOTICED_SECONDS = 2.0


def strike(pid, number):
    with suppress(ProcessLookupError):
        os.kill(pid, number)


async def killed_after_a_stop(pid):
    """Stop a process, so that somebody is waiting for its answer, then kill it. Returns the time of
    its death."""
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


async def test_stillness_is_judged_by_the_services_own_limit_alone():
    async with (
        service_of(Echo, name="patient", probe_timeout=10.0) as patient,
        service_of(Echo, name="strict", probe_timeout=2.0) as strict,
    ):
        given_up, still = strict.replicas[0], (patient.replicas[0].pid, strict.replicas[0].pid)
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        asking = asyncio.create_task(patient.who.route())
        await asyncio.sleep(6.0)
        assert given_up.reason == "it did not answer a probe within 2 s"
        os.kill(still[0], signal.SIGCONT)
        assert await asking == still[0]
        assert patient.replicas[0].pid == still[0]


async def test_a_death_is_noticed_at_once_also_by_callers_elsewhere_who_were_waiting_for_an_answer():
    """Monarch, whose question was under way when the process died, would have said so an hour
    later."""

    async with service_of(Echo, replicas=2, probe_timeout=30.0, name="asked") as service:
        await register_service(service)
        finder = await spawn("finder", Finder)
        asking = asyncio.ensure_future(
            finder.actor.send.call_one("asked", "ask", list(range(8)), 3.0).as_asyncio()
        )
        await until(lambda: all(replica.load >= 4 for replica in service.replicas))
        victim = service.replicas[0]
        died = await killed_after_a_stop(victim.pid)
        await victim.ended.wait()
        assert time.monotonic() - died < NOTICED_SECONDS
        # Sent again to the other one, which takes three seconds.
        assert await asyncio.wait_for(asking, 20) == list(range(8))
        await finder.stop()


async def test_replicas_that_stand_still_as_soon_as_they_have_started_can_be_told_to_others():
    """Else a service's entry in the registry would never change again."""
    other = await spawn("other", Echo)
    for number in range(4):
        still = await spawn(f"still{number}", Parrot)
        os.kill(still.pid, signal.SIGSTOP)
        await asyncio.wait_for(other.actor.ask.call_one(still.actor), 10)
        await still.kill()
    await other.stop()


async def test_the_death_of_one_process_of_several_is_that_of_their_replica():
    async with Service(
        "wide", replicas_of(Echo, procs=2), ServiceOptions(probe_timeout=30.0)
    ) as service:
        victim = service.replicas[0]
        died = await killed_after_a_stop(victim.pids[1])
        await victim.ended.wait()
        assert time.monotonic() - died < NOTICED_SECONDS
        with pytest.raises(ReplicaFailed):
            await victim.wait_for(asyncio.sleep(5))
        assert len(set(await service.who.route()) - set(victim.pids)) == 2


@pytest.mark.parametrize("spares", [0, 2])
async def test_processes_that_are_killed_while_they_start_are_started_again(spares):
    service, before, struck = (
        service_of(Echo, "", 1.0, replicas=2, spares=spares),
        children(),
        set(),
    )
    opening = asyncio.create_task(service.open())
    # As soon as it is there, while it imports, during its set-up.
    for delay in (0.0, 0.2, 1.0):
        await until(lambda: children() - before - struck or opening.done())
        await asyncio.sleep(delay)
        for pid in children() - before - struck:
            strike(pid, signal.SIGKILL)
            struck.add(pid)
    await opening
    assert len(struck) >= 3
    if spares:
        await until(
            lambda: children() - before - struck - {replica.pid for replica in service.replicas}
        )
        strike(
            next(
                iter(children() - before - struck - {replica.pid for replica in service.replicas})
            ),
            signal.SIGKILL,
        )
    await service.spares_ready()
    assert {await service.who.route() for _ in range(2)} == {
        replica.pid for replica in service.replicas
    }
    await service.close()
    await until(lambda: children() <= before)


async def test_a_role_that_dies_of_every_request_is_given_up_with_one_error_for_everybody():
    options = {"replicas": 1, "idempotent": ("die",), "max_failures": 2}
    async with service_of(Mortal, **options) as service:
        given_up = []
        service.on_give_up = given_up.append
        why = "echo has failed 3 times in a row.* while it ran die: "
        for error in await asyncio.gather(
            *(service.die.route() for _ in range(3)), return_exceptions=True
        ):
            assert isinstance(error, GivenUp)
        with pytest.raises(GivenUp, match=why):
            await service.who.route()
        with pytest.raises(GivenUp, match=why):
            await service.replica_at(0)
        assert len(service.replica_set.lost) == 3 and len(given_up) == 1


async def test_a_role_that_answers_between_its_deaths_is_never_given_up():
    async with service_of(Mortal, max_failures=1) as service:
        for _ in range(4):
            assert await service.who.route() == service.replicas[0].pid
            with pytest.raises(ReplicaFailed):
                await service.die.route()


async def test_a_setting_that_cannot_work_is_not_tried_again(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        await service_of(Misled, str(tmp_path / "starts")).open()
    assert (tmp_path / "starts").read_text() == "x"


def test_the_loss_of_a_role_that_alone_knows_something_ends_the_run_at_once_with_one_sentence(
    tmp_path,
):
    started, killed = [], []

    def show(row):
        if row["event"] == "step" and row["step"] == 1:
            strike(started[0].roles.dataset.replicas[0].pid, signal.SIGKILL)
            killed.append(time.monotonic())

    with pytest.raises(GivenUp, match="^dataset failed, and its state is lost: its process"):
        train_here(SMALL.changed(steps=100), tmp_path / "run", show=show, on_start=started.append)
    # Stopping all the other processes takes most of this.
    assert time.monotonic() - killed[0] < 15


@pytest.mark.long
def test_a_run_of_which_each_role_is_killed_while_it_starts_is_the_run_that_nothing_disturbed(
    tmp_path, sync_run
):
    """At once, and so its successor, after two seconds."""
    before, struck, done = children(), set(), threading.Event()

    def kill_the_first_fourteen():
        while len(struck) < 14 and not done.wait(0.02):
            for pid in children() - before - struck:
                threading.Timer(
                    0.0 if len(struck) < 7 else 2.0, strike, (pid, signal.SIGKILL)
                ).start()
                struck.add(pid)

    killing = threading.Thread(target=kill_the_first_fourteen)
    killing.start()
    try:
        train_here(SMALL, tmp_path / "run")
    finally:
        done.set()
        killing.join()
    assert len(struck) >= 12
    assert same_weights(final_weights(tmp_path / "run"), final_weights(sync_run.path))
