"""Answers that learners give to the exercises of notebook 01. Those of 1 and 3 are classes."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import torch

from zorplex_rl.services.runtime import Actor, concurrent_endpoint, current_rank, endpoint


class Right(Actor):
    """Do what ``Summer`` should, for the others to change a part of it."""

    def __init__(self):
        self.total = 0

    @endpoint
    def add(self, numbers):
        if self.total + sum(numbers) < 0:
            raise ValueError("below 0")
        self.total += sum(numbers)
        return self.total

    @endpoint
    def add_range(self, end):
        return sum(range(current_rank().rank, end, current_rank().extent.nelements))


class LearnsItsRankOnce(Right):
    def __init__(self):
        self.total = 0
        self.me = current_rank()

    @endpoint
    def add_range(self, end):
        return sum(range(self.me.rank, end, self.me.extent.nelements))


class KeepsItsRank(Right):
    def __init__(self):
        self.total = 0
        self.rank = current_rank().rank

    @endpoint
    def add_range(self, end):
        return sum(range(self.rank, end, current_rank().extent.nelements))


class ForFourActors(Right):
    @endpoint
    def add_range(self, end):
        return sum(range(current_rank().rank, end, 4))


class EverybodyAddsAll(Right):
    @endpoint
    def add_range(self, end):
        return sum(range(end))


class IncludesTheEnd(Right):
    @endpoint
    def add_range(self, end):
        return sum(range(current_rank().rank, end + 1, current_rank().extent.nelements))


class AddsUpToWhereItFails(Right):
    @endpoint
    def add(self, numbers):
        for number in numbers:
            if self.total + number < 0:
                raise ValueError("below 0")
            self.total += number
        return self.total


class AddsFirst(Right):
    @endpoint
    def add(self, numbers):
        self.total += sum(numbers)
        if self.total < 0:
            raise ValueError("below 0")
        return self.total


class RefusesZero(Right):
    @endpoint
    def add(self, numbers):
        if self.total + sum(numbers) <= 0:
            raise ValueError("below 0")
        self.total += sum(numbers)
        return self.total


class NeverRaises(Right):
    @endpoint
    def add(self, numbers):
        self.total = max(self.total + sum(numbers), 0)
        return self.total


class ReturnsNothing(Right):
    @endpoint
    def add(self, numbers):
        if self.total + sum(numbers) < 0:
            raise ValueError("below 0")
        self.total += sum(numbers)


class SharesOneList(Right):
    seen: list[int] = []  # noqa: RUF012, the mistake

    def __init__(self):
        pass

    @endpoint
    def add(self, numbers):
        if sum(self.seen) + sum(numbers) < 0:
            raise ValueError("below 0")
        self.seen.extend(numbers)
        return sum(self.seen)


class UndoesIt(Right):
    @endpoint
    def add(self, numbers):
        self.total += sum(numbers)
        if self.total < 0:
            self.total -= sum(numbers)
            raise ValueError("below 0")
        return self.total


class Meets(Actor):
    """Play no ball yet."""

    def __init__(self):
        self.hits = 0

    @endpoint
    async def meet(self, other):
        self.other = other

    @endpoint
    async def hits_so_far(self):
        return self.hits


class StillWaits(Meets):
    @endpoint
    async def hit(self, left):
        self.hits += 1
        if left > 0:
            await self.other.hit.call_one(left - 1)


class LosesHits(Meets):
    @concurrent_endpoint
    async def hit(self, left):
        hits = self.hits
        if left > 0:
            await self.other.hit.call_one(left - 1)
        self.hits = hits + 1


class NeverPassesOn(Meets):
    @endpoint
    async def hit(self, left):
        self.hits += 1


class ForgetsToCountDown(Meets):
    @concurrent_endpoint
    async def hit(self, left):
        self.hits += 1
        if left > 0:
            await self.other.hit.call_one(left)


class OnlyShortRallies(Meets):
    @concurrent_endpoint
    async def hit(self, left):
        self.hits += 1
        if 0 < left < 10:
            await self.other.hit.call_one(left - 1)


class NoLongerAsync(Meets):
    @endpoint
    def hit(self, left):
        self.hits += 1
        if left > 0:
            self.other.hit.broadcast(left - 1)


class Broadcasts(Meets):
    @endpoint
    async def hit(self, left):
        self.hits += 1
        if left > 0:
            self.other.hit.broadcast(left - 1)


class WaitsInATask(Meets):
    @endpoint
    async def hit(self, left):
        self.hits += 1
        if left > 0:
            self.task = asyncio.ensure_future(self.other.hit.call_one(left - 1).as_asyncio())


def always_one_at_a_time(seconds, concurrent):
    return list(accumulate(seconds))


def always_side_by_side(seconds, concurrent):
    return list(seconds)


def the_other_way_round(seconds, concurrent):
    return list(accumulate(seconds)) if concurrent else list(seconds)


def when_they_begin(seconds, concurrent):
    return [0.0] * len(seconds) if concurrent else [0.0, *accumulate(seconds[:-1])]


def all_with_the_last(seconds, concurrent):
    return [max(seconds)] * len(seconds) if concurrent and seconds else list(accumulate(seconds))


def in_order_of_arrival(seconds, concurrent):
    return sorted(seconds) if concurrent else list(accumulate(seconds))


def a_tuple(seconds, concurrent):
    return tuple(seconds) if concurrent else tuple(accumulate(seconds))


def a_tensor(seconds, concurrent):
    times = torch.tensor(seconds, dtype=torch.float64)
    return times if concurrent else times.cumsum(0)


WRONG = {
    "Summer": [
        LearnsItsRankOnce, KeepsItsRank, ForFourActors, EverybodyAddsAll, IncludesTheEnd,
        AddsUpToWhereItFails, AddsFirst, RefusesZero, NeverRaises,
        ReturnsNothing, SharesOneList,
    ],
    "answer_times": [
        always_one_at_a_time, always_side_by_side, the_other_way_round, when_they_begin, all_with_the_last,
        in_order_of_arrival,
    ],
    "MendedPlayer": [
        StillWaits, LosesHits, NeverPassesOn, ForgetsToCountDown,
        OnlyShortRallies, NoLongerAsync,
    ],
}  # fmt: skip
RIGHT = {
    "Summer": [Right, UndoesIt],
    "answer_times": [a_tensor, a_tuple],
    "MendedPlayer": [Broadcasts, WaitsInATask],
}
