"""What a notebook keeps running: never twice, and nothing after it was left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from zorplex_rl.course.lesson import keep_open


@asynccontextmanager
async def noted(log, name):
    log.append(f"open {name}")
    try:
        yield name
    finally:
        log.append(f"close {name}")


def test_what_is_entered_again_is_closed_first():
    async def scenario():
        log = []
        assert await keep_open.enter("a", noted(log, "first")) == "first"
        await keep_open.enter("b", noted(log, "other"))
        await keep_open.enter("a", noted(log, "second"))
        assert log == ["open first", "open other", "close first", "open second"]
        await keep_open.leave("a")
        await keep_open.leave("a")
        await keep_open.leave("b")
        assert log[4:] == ["close second", "close other"]

    asyncio.run(scenario())


def test_what_cannot_be_opened_is_not_kept():
    @asynccontextmanager
    async def broken():
        raise OSError("no room")
        yield

    async def scenario():
        with pytest.raises(OSError, match="no room"):
            await keep_open.enter("a", broken())
        await keep_open.leave("a")

    asyncio.run(scenario())


def test_what_an_event_loop_has_taken_with_it_is_forgotten():
    log = []
    asyncio.run(keep_open.enter("a", noted(log, "first")))
    asyncio.run(keep_open.enter("a", noted(log, "second")))
    assert log.count("open second") == 1
    asyncio.run(keep_open.leave("a"))


def test_where_a_reader_may_change_a_cell_the_last_one_closes_nothing(monkeypatch):
    async def what_is_closed(unattended):
        monkeypatch.setattr(keep_open, "unattended", lambda: unattended)
        log = []
        await keep_open.enter("a", noted(log, "it"))
        await keep_open.done("a")
        return "close it" in log

    assert asyncio.run(what_is_closed(unattended=True))
    assert not asyncio.run(what_is_closed(unattended=False))
