"""Who answers a request: fairness, load, and sessions that stay where they are."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zorplex_rl.services import router as router_module
from zorplex_rl.services.options import RouterName, ServiceOptions
from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.router import POLICIES, Router


def replicas(*loads: int, first: int = 0) -> list[Replica]:
    """Ready ones with so many requests each."""
    found = [Replica(f"r{number}") for number in range(first, first + len(loads))]
    for replica, load in zip(found, loads, strict=True):
        replica.state, replica.traffic.elsewhere = State.READY, load
    return found


def pick(among: list[Replica], policy: str = "round_robin", session=None) -> str:
    """Have a request go to one of them."""
    chosen = Router("r", ServiceOptions(router=policy)).choose(among, session)
    chosen.traffic.take_turn()
    return chosen.name


@given(st.lists(st.sampled_from(["join", "leave", "route"]), max_size=200), st.integers(1, 6))
def test_round_robin_is_fair_whoever_comes_and_goes(events, first):
    """Between any two changes of membership nobody answers two requests more than anybody else."""
    members, served, number = replicas(*[0] * first), Counter(), first
    for event in events:
        if event == "route":
            served[pick(members)] += 1
        elif event == "join":
            members += replicas(0, first=number)
            number += 1
            served.clear()
        elif len(members) > 1:
            members.pop(0)
            served.clear()
        counts = [served[member.name] for member in members]
        assert max(counts) - min(counts) <= 1


def test_a_newcomer_is_not_flooded_to_make_up_for_what_it_has_missed():
    members = replicas(0, 0)
    for _ in range(100):
        pick(members)
    members += replicas(0, first=2)
    assert Counter(pick(members) for _ in range(30)) == {"r0": 10, "r1": 10, "r2": 10}


def test_the_least_loaded_is_chosen_and_equals_take_turns():
    members = replicas(3, 0, 0)
    assert [pick(members, "least_loaded") for _ in range(4)] == ["r1", "r2", "r1", "r2"]


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.FAILED, State.STOPPED])
def test_only_a_ready_replica_is_chosen(state):
    members = replicas(0, 9)
    members[0].state = state
    assert pick(members, "least_loaded") == "r1"
    members[1].state = state
    assert Router("r", ServiceOptions()).choose(members) is None


def test_a_session_stays_and_moves_only_when_nothing_of_it_is_under_way():
    members, router = replicas(0, 0), Router("r", ServiceOptions())
    session = router.session()
    session.use(members[0])
    assert {pick(members, session=session) for _ in range(5)} == {"r0"}
    members[0].state = State.DRAINING
    assert router.choose(members, session) is None
    session.under_way -= 1
    assert pick(members, session=session) == "r1"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100), st.integers(1, 5))
def test_the_sessions_of_the_keys_used_last_are_remembered(keys, capacity):
    router, used, before = Router("r", ServiceOptions()), [], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_module, "MAX_SESSION_KEYS", capacity)
        for key in keys:
            session = router.session(key)
            assert (session is before.get(key)) == (key in used[-capacity:])
            before[key] = session
            used = [old for old in used if old != key] + [key]


def test_sessions_without_a_key_have_nothing_in_common():
    router = Router("r", ServiceOptions())
    assert router.session() is not router.session()


def test_every_way_to_choose_a_replica_can_be_asked_for_and_no_other():
    assert get_args(RouterName) == tuple(POLICIES)


def test_a_function_of_a_replica_is_a_policy_too():
    router = Router("r", ServiceOptions(router=lambda replica: -replica.load))
    assert router.choose(replicas(1, 3, 2)).name == "r1"
    with pytest.raises(ValueError, match="router 'fastest' is unknown; expected one of round_robin, least_loaded"):
        ServiceOptions(router="fastest")
