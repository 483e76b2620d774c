"""The lease that a notebook writes out: one trainer at most, whatever befalls the host, and two of
them if the rule is wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from test_course import minutes
from test_notebooks import load

from zorplex_rl.course.nb10_hosts import two_lives

pytestmark = pytest.mark.slow

PATH = Path(__file__).parents[2] / "notebooks" / "10b_a_host_dies.py"
LEASE = 1.0
"""Seconds. On a busy machine a host stands still for half of one now and then, and would end."""


def test_the_lease_on_the_page_has_at_most_10_lines():
    tree = ast.parse(PATH.read_text())
    tree.body = [n for n in tree.body if getattr(n, "name", "") == "keeper"]
    assert 0 < minutes.visible_lines(tree) <= 10


@pytest.mark.parametrize("fault", ["kill -9", "cut off"])
def test_a_successor_waits_for_the_lease_whatever_has_befallen_the_host(fault):
    page = load(PATH)
    lives = two_lives(page.keeper, fault, LEASE, page.Solutions.lease_is_over)
    assert lives.together < 0
    assert lives.second[0] > lives.over
    # Cut off, the first one goes on for a while; killed, it does not.
    assert (lives.first[-1] > 0.1) == (fault == "cut off")


def test_a_rule_that_forgets_the_slow_clock_has_two_trainers_alive():
    page = load(PATH)
    hasty = two_lives(
        page.keeper,
        "cut off",
        LEASE,
        lambda now, heard, lease, drift, margin: now >= heard + lease,
        drift=7.0,
    )
    assert hasty.together > 0
    patient = two_lives(page.keeper, "cut off", LEASE, page.Solutions.lease_is_over, drift=3.0)
    assert patient.together < 0
