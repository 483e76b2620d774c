"""What serves notebook 03: the spare is taken first, and everything ends."""

from __future__ import annotations

import asyncio

from zorplex_rl.course import nb03


class Guard:
    def __init__(self, begin):
        self.begin = begin

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


def test_a_learner_that_is_replaced_gets_the_spare_and_only_then_a_new_process():
    started, ended = [], []

    async def start(share):
        started.append(share)
        return len(started) - 1

    async def end(one):
        ended.append(one)

    async def use():
        async with nb03.guarded(start, end, Guard, 2) as guards:
            first = [await guard.begin() for guard in guards]
            return first, await guards[-1].begin(), await guards[-1].begin()

    assert asyncio.run(use()) == ([0, 1], 2, 3)
    assert started == [0, 1, 1, 1]
    assert ended == []


def test_a_spare_that_nobody_took_ends_with_the_block():
    ended = []

    async def start(share):
        return share

    async def end(one):
        ended.append(one)

    async def use():
        async with nb03.guarded(start, end, Guard, 2):
            assert ended == []

    asyncio.run(use())
    assert ended == [0, 1, 1], "nobody began, so all three were waiting"
