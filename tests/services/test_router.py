"""Who answers a request: fairness, load, and sessions that stay where they are. No processes: the
replicas here take requests and never answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.router import Router, Session


class Silent:
    def __getattr__(self, endpoint):
        return SimpleNamespace(
            call_one=lambda: SimpleNamespace(as_asyncio=asyncio.get_running_loop().create_future)
        )


def silent(name: str, load: int = 0) -> Replica:
    replica = Replica(name, Silent())
    replica.state, replica.elsewhere = State.READY, load
    return replica


def routed(loads: list[int], requests: int, policy="round_robin") -> list[str]:
    """The replicas, r0, r1, …, to which so many requests go, one after the other."""

    async def scenario():
        router = router_of(loads, policy)
        return [await send(router) for _ in range(requests)]

    return asyncio.run(scenario())


def router_of(loads: list[int], policy="round_robin") -> Router:
    router = Router("r", ServiceOptions(router=policy, max_in_flight=1000))
    for number, load in enumerate(loads):
        router.join(silent(f"r{number}", load))
    return router


async def send(router: Router, session=None) -> str:
    before = {replica: len(replica.in_flight) for replica in router.replicas}
    asyncio.get_running_loop().create_task(router.route("ask", (), {}, session))
    await asyncio.sleep(0)
    return next(replica.name for replica, sent in before.items() if len(replica.in_flight) > sent)


@given(st.lists(st.sampled_from(["join", "leave", "route"]), max_size=60), st.integers(1, 6))
def test_round_robin_is_fair_whoever_comes_and_goes(events, first):
    """Between any two changes of membership no replica answers two requests more than another."""

    async def scenario():
        router, served, number = router_of([0] * first), Counter(), first
        for event in events:
            if event == "route":
                served[await send(router)] += 1
            elif event == "join":
                router.join(silent(f"r{number}"))
                number += 1
                served.clear()
            elif len(router.ready) > 1:
                router.ready[0].move_to(State.DRAINING)
                served.clear()
            counts = [served[member.name] for member in router.ready]
            assert max(counts) - min(counts) <= 1

    asyncio.run(scenario())


def test_the_least_loaded_is_chosen_and_equals_take_turns():
    assert routed([9, 0, 0], 4, "least_loaded") == ["r1", "r2", "r1", "r2"]


def test_a_function_of_a_replica_is_a_policy_too():
    assert routed([1, 9, 2], 1, lambda replica: -replica.load) == ["r1"]


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.FAILED, State.STOPPED])
def test_only_a_ready_replica_is_chosen(state):
    router = Router("r", ServiceOptions())
    router.replicas = [silent("r0"), silent("r1")]
    router.replicas[0].state = state
    assert router.choose().name == "r1"
    router.replicas[1].state = state
    assert router.choose() is None


async def test_a_session_stays_and_moves_only_when_nothing_of_it_is_under_way():
    router = router_of([0, 0])
    session, home = Session(router), router.replicas[0]
    assert {await send(router, session) for _ in range(5)} == {"r0"}
    home.move_to(State.DRAINING)
    assert router.choose(session) is None
    session.under_way = 0
    assert router.choose(session).name == "r1"
