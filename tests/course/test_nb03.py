"""What serves notebook 03: the spare is taken first, and everything ends."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from zorplex_rl.course import nb03


class Guard:
    def __init__(self, begin):
        self.begin = begin

    async def __aenter__(self):
        self.worker = await self.begin()
        return self

    async def __aexit__(self, *_):
        ended.append(self.worker)


ended = []


@pytest.fixture(autouse=True)
def _nobody_has_ended():
    ended.clear()


def processes():
    """Return a function that starts a process for a share: it is (share, number)."""
    numbers = count()

    async def start(share):
        return share, next(numbers)

    return start


async def end(one):
    ended.append(one)


def test_a_learner_that_is_replaced_gets_the_spare_and_only_then_a_new_process():
    async def use():
        async with nb03.guarded(processes(), end, Guard, 2) as guards:
            assert [guard.worker[0] for guard in guards] == [0, 1]
            first, last = guards
            return await first.begin(), await last.begin(), await last.begin()

    assert asyncio.run(use()) == ((0, 3), (1, 0), (1, 4))
    assert sorted(ended) == [(0, 1), (1, 2)], "the block ends what its guards still have"


def test_a_spare_that_nobody_took_ends_with_the_block():
    async def use():
        async with nb03.guarded(processes(), end, Guard, 2):
            assert ended == []

    asyncio.run(use())
    assert sorted(ended) == [(0, 1), (1, 0), (1, 2)]
