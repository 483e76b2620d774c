"""Who answers a request: fairness, load, and keys that stay where they are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zorplex_rl.system.routing import Candidate, LeastLoaded, RoundRobin, StickyMap


class Busy(Candidate):
    """A candidate with a load that the test sets."""

    def __init__(self, name: str, load: int = 0) -> None:
        super().__init__(name)
        self.requests = load

    @property
    def load(self) -> int:
        return self.requests


def candidates(count: int) -> list[Busy]:
    return [Busy(f"r{number}") for number in range(count)]


@given(st.lists(st.sampled_from(["join", "leave", "route"]), max_size=200), st.integers(1, 6))
def test_round_robin_is_fair_whoever_comes_and_goes(events, first):
    """Between any two changes of membership nobody answers two requests more than anybody else."""
    router, members, served, number = RoundRobin(), candidates(first), Counter(), first
    for event in events:
        if event == "route":
            served[router.pick(members).name] += 1
        elif event == "join":
            members.append(Busy(f"r{number}"))
            number += 1
            served.clear()
        elif len(members) > 1:
            members.pop(0)
            served.clear()
        counts = [served[member.name] for member in members]
        assert max(counts) - min(counts) <= 1


def test_a_newcomer_is_not_flooded_to_make_up_for_what_it_has_missed():
    router, members = RoundRobin(), candidates(2)
    for _ in range(100):
        router.pick(members)
    members.append(Busy("new"))
    assert Counter(router.pick(members).name for _ in range(30)) == {"r0": 10, "r1": 10, "new": 10}


def test_the_least_loaded_is_chosen_and_equals_take_turns():
    router, members = LeastLoaded(), [Busy("busy", 3), Busy("a"), Busy("b")]
    assert [router.pick(members).name for _ in range(4)] == ["a", "b", "a", "b"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100), st.integers(1, 5))
def test_a_sticky_map_never_holds_more_than_its_capacity_and_forgets_the_key_unused_longest(keys, capacity):
    sticky, member, used = StickyMap(capacity), Busy("r"), []
    for key in keys:
        assert (sticky.find(key) is member) == (key in used[-capacity:])
        sticky.remember(key, member)
        used = [old for old in used if old != key] + [key]
        assert len(sticky) == min(len(used), capacity)


def test_the_keys_of_a_replica_that_left_are_forgotten():
    sticky, (a, b) = StickyMap(9), candidates(2)
    for key in range(4):
        sticky.remember(key, (a, b)[key % 2])
    sticky.forget_candidate(a)
    assert [sticky.find(key) for key in range(4)] == [None, b, None, b]


def test_a_sticky_map_without_room_is_refused():
    with pytest.raises(ValueError, match="use 1 or more"):
        StickyMap(0)
