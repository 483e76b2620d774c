"""Answers to the exercises of notebook 06: wrong ones that learners give, and right ones that look
unusual."""

from __future__ import annotations

import asyncio
import itertools
import math

from zorplex_rl.services.runtime import ReplicaDied


def overflows_after_a_thousand_failures(failures, base, cap, draw):
    return draw * min(base * 2.0 ** (failures - 1), cap)


def is_cut_at_five_doublings(failures, base, cap, draw):
    return draw * min(base * 2.0 ** min(failures - 1, 5), cap)


def doubles_once_too_often(failures, base, cap, draw):
    return draw * min(base * 2.0 ** min(failures, 60), cap)


def ignores_the_cap(failures, base, cap, draw):
    return draw * base * 2.0 ** min(failures - 1, 60)


def ignores_the_draw(failures, base, cap, draw):
    return min(base * 2.0 ** min(failures - 1, 60), cap)


def grows_by_addition(failures, base, cap, draw):
    return draw * min(base * failures, cap)


def caps_after_the_draw(failures, base, cap, draw):
    return min(draw * base * 2.0 ** min(failures - 1, 60), cap)


def multiplies_step_by_step(failures, base, cap, draw):
    wait = base
    for _ in range(failures - 1):
        wait = min(2 * wait, cap)
    return min(wait, cap) * draw


def compares_logarithms(failures, base, cap, draw):
    return draw * (cap if failures - 1 >= math.log2(cap / base) else base * 2 ** (failures - 1))


async def never_ends_what_failed(self):
    failures = 0
    while True:
        replica = await self.start()
        while await self.answers(replica):
            failures = 0
            await asyncio.sleep(self.every)
        failures += 1
        await self.wait(failures)


async def never_counts_anew(self):
    for failures in itertools.count(1):
        replica = await self.start()
        while await self.answers(replica):
            await asyncio.sleep(self.every)
        self.end(replica)
        await self.wait(failures)


async def counts_one_too_few(self):
    failures = 0
    while True:
        replica = await self.start()
        while await self.answers(replica):
            failures = 0
            await asyncio.sleep(self.every)
        self.end(replica)
        await self.wait(failures)
        failures += 1


async def does_not_replace(self):
    replica = await self.start()
    while await self.answers(replica):
        await asyncio.sleep(self.every)
    self.end(replica)


async def does_not_back_off(self):
    while True:
        replica = await self.start()
        while await self.answers(replica):
            await asyncio.sleep(self.every)
        self.end(replica)


async def cannot_be_cancelled(self):
    failures = 0
    while True:
        try:
            replica = await self.start()
            while await self.answers(replica):
                failures = 0
                await asyncio.sleep(self.every)
            self.end(replica)
            failures += 1
            await self.wait(failures)
        except BaseException:
            await asyncio.sleep(1000)


async def probes_with_a_flag(self):
    failures, replica = 0, None
    while True:
        if replica is None:
            replica = await self.start()
        alive = await self.answers(replica)
        if alive:
            failures = 0
            await asyncio.sleep(self.every)
            continue
        self.end(replica)
        replica = None
        failures = failures + 1
        await self.wait(failures)


async def sleeps_before_it_probes(self):
    failures = 0
    while True:
        replica = await self.start()
        while True:
            await asyncio.sleep(self.every)
            if not await self.answers(replica):
                break
            failures = 0
        self.end(replica)
        failures += 1
        await self.wait(failures)


async def leaves_the_dead_in_rotation(self, endpoint, *args, again=True):
    while True:
        replica = min(await self.there(), key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            if not again:
                raise


async def ignores_again(self, endpoint, *args, again=True):
    while True:
        replica = min(await self.there(), key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            self.remove(replica)


async def raises_before_it_removes(self, endpoint, *args, again=True):
    while True:
        replica = min(await self.there(), key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            if not again:
                raise
            self.remove(replica)


async def ignores_the_load(self, endpoint, *args, again=True):
    while True:
        replica = (await self.there())[0]
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            self.remove(replica)
            if not again:
                raise


async def sends_again_whatever_is_raised(self, endpoint, *args, again=True):
    while True:
        replica = min(await self.there(), key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except Exception:
            self.remove(replica)
            if not again:
                raise


async def does_not_wait_for_a_replica(self, endpoint, *args, again=True):
    while True:
        replica = min(self.ready, key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            self.remove(replica)
            if not again:
                raise


async def sorts_and_calls_itself(self, endpoint, *args, again=True):
    first, *_ = sorted(await self.there(), key=lambda replica: replica.load)
    try:
        return await self.ask(first, endpoint, *args)
    except ReplicaDied:
        self.remove(first)
        if again:
            return await sorts_and_calls_itself(self, endpoint, *args)
        raise


async def calls_the_pools_route(self, endpoint, *args, again=True):
    replica = min(await self.there(), key=lambda replica: replica.load)
    try:
        return await self.ask(replica, endpoint, *args)
    except ReplicaDied:
        self.remove(replica)
        if not again:
            raise
    return await self.route(endpoint, *args, again=again)


async def ends_the_process(self, endpoint, *args, again=True):
    while True:
        replica = min(await self.there(), key=lambda replica: replica.load)
        try:
            return await self.ask(replica, endpoint, *args)
        except ReplicaDied:
            self.end(replica)
            if not again:
                raise


async def waits_by_itself(self, endpoint, *args, again=True):
    while True:
        while len(self.ready) == 0:
            await asyncio.sleep(0.01)
        loads = [replica.load for replica in self.ready]
        replica = self.ready[loads.index(min(loads))]
        try:
            answer = await self.ask(replica, endpoint, *args)
        except ReplicaDied as error:
            if replica in self.ready:
                self.ready.remove(replica)
            if not again:
                raise error
        else:
            return answer


def charges_always(database, number, amount):
    with database:
        database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


def notes_first(database, number, amount):
    with database:
        new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number])
    if new.rowcount:
        with database:
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


def charges_first(database, number, amount):
    if not database.execute("SELECT 1 FROM seen WHERE number = ?", [number]).fetchone():
        with database:
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])
        with database:
            database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number])


def charges_a_hundred(database, number, amount):
    with database:
        if database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number]).rowcount:
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, 100])


def never_commits(database, number, amount):
    if database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number]).rowcount:
        database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


def looks_into_the_charges(database, number, amount):
    with database:
        if not database.execute("SELECT 1 FROM charges WHERE number = ?", [number]).fetchone():
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


def looks_in_a_transaction(database, number, amount):
    with database:
        database.execute("BEGIN IMMEDIATE")
        if not database.execute("SELECT 1 FROM charges WHERE number = ?", [number]).fetchone():
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


def commits_by_hand(database, number, amount):
    new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (number,))
    if new.rowcount == 1:
        database.execute("INSERT INTO charges VALUES (?, ?)", (number, amount))
    database.commit()


WRONG = {
    "retry_delay": [
        overflows_after_a_thousand_failures,
        is_cut_at_five_doublings,
        doubles_once_too_often,
        ignores_the_cap,
        ignores_the_draw,
        grows_by_addition,
        caps_after_the_draw,
    ],
    "keep_one": [
        never_ends_what_failed,
        never_counts_anew,
        counts_one_too_few,
        does_not_replace,
        does_not_back_off,
        cannot_be_cancelled,
        sleeps_before_it_probes,
    ],
    "route": [
        ends_the_process,
        leaves_the_dead_in_rotation,
        ignores_again,
        raises_before_it_removes,
        ignores_the_load,
        sends_again_whatever_is_raised,
        does_not_wait_for_a_replica,
    ],
    "charge_once": [
        charges_always,
        notes_first,
        charges_first,
        charges_a_hundred,
        never_commits,
        looks_into_the_charges,
    ],
}
RIGHT = {
    "retry_delay": [multiplies_step_by_step, compares_logarithms],
    "keep_one": [probes_with_a_flag],
    "route": [sorts_and_calls_itself, calls_the_pools_route, waits_by_itself],
    "charge_once": [commits_by_hand, looks_in_a_transaction],
}
