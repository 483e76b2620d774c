"""The rollout stream: one engine for many callers, with weights that change between two steps."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
from conftest import babbler

from zorplex_rl.policy.rollout import (
    RolloutEngine,
    RolloutRequest,
    RolloutStream,
    Sampling,
    rollout,
)
from zorplex_rl.task.environment import Zorplex, kinds_of

pytestmark = pytest.mark.slow

ENV = Zorplex(0)
SAMPLING = Sampling(max_tokens=40, slots=8)


def requests_for(count: int, first: int = 0) -> list[RolloutRequest]:
    tasks = ENV.tasks(kinds_of("mix"), first + count, "train")[first:]
    return [RolloutRequest(task, first + i, i) for i, task in enumerate(tasks)]


def stream_of(policy, execute=ENV.execute) -> tuple[RolloutStream, asyncio.Lock]:
    turn = asyncio.Lock()
    return RolloutStream(lambda: RolloutEngine(policy, execute, SAMPLING), turn), turn


def ids(episodes) -> list[list[int]]:
    return [episode.token_ids for episode in episodes]


def test_one_caller_gets_what_a_rollout_gives(tokenizer):
    policy, requests = babbler(tokenizer), requests_for(24)

    async def run():
        return await stream_of(policy)[0].sample(requests)

    assert ids(asyncio.run(run())) == ids(rollout(policy, requests, ENV.execute, SAMPLING))


def test_callers_share_the_slots_and_each_gets_its_own_episodes_in_order(tokenizer):
    policy = babbler(tokenizer)

    async def run():
        stream, _ = stream_of(policy)
        return await asyncio.gather(
            *(stream.sample(requests_for(10, first)) for first in (0, 10, 20))
        )

    for first, episodes in zip((0, 10, 20), asyncio.run(run()), strict=True):
        assert [episode.task for episode in episodes] == [
            request.task for request in requests_for(10, first)
        ]
        assert all(len(episode.token_ids) <= SAMPLING.max_tokens for episode in episodes)


def test_while_all_episodes_of_one_caller_wait_for_tools_another_gets_its_own(tokenizer):
    policy, called, never = babbler(tokenizer), threading.Event(), Future()

    def execute(task, call):
        if task.kind == "recursive":
            return ENV.execute(task, call)
        called.set()
        return never

    async def run():
        stream, lock = stream_of(policy, execute)
        requests = [RolloutRequest(ENV.tasks(("simple",), 1)[0], seed) for seed in range(64)]
        plain = rollout(policy, requests, ENV.execute, SAMPLING)
        calling = next(r for r, episode in zip(requests, plain, strict=True) if episode.tool_calls)
        slow = asyncio.create_task(stream.sample([calling]))
        await asyncio.to_thread(called.wait)
        # Whoever wants to change the weights is not held up by the tool either.
        async with asyncio.timeout(30), lock:
            pass
        quick = await stream.sample([RolloutRequest(ENV.tasks(("recursive",), 1)[0], 0)])
        never.set_result("17")
        return quick, await slow

    quick, slow = asyncio.run(run())
    assert len(quick) == len(slow) == 1


def test_weights_change_only_while_somebody_has_the_turn_and_episodes_say_so(tokenizer):
    policy = babbler(tokenizer)

    async def run():
        stream, turn = stream_of(policy)
        sampling = asyncio.create_task(stream.sample(requests_for(40)))
        version = 0
        while not sampling.done():
            async with turn:
                version += 1
                stream.use_version(version)
            await asyncio.sleep(0)
        return await sampling, version

    episodes, version = asyncio.run(run())
    assert version > 2
    assert all(0 <= e.first_version <= e.last_version <= version for e in episodes)
    assert any(e.first_version < e.last_version for e in episodes)


def test_a_tool_that_fails_fails_its_callers_and_leaves_the_stream_usable(tokenizer):
    policy, broken = babbler(tokenizer), [True]

    def execute(task, call):
        if broken[0]:
            raise ConnectionError("the tool is down")
        return ENV.execute(task, call)

    async def run():
        stream, _ = stream_of(policy, execute)
        with pytest.raises(ConnectionError, match="the tool is down"):
            await stream.sample(requests_for(16))
        broken[0] = False
        return await stream.sample(requests_for(16))

    assert len(asyncio.run(run())) == 16


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
def test_whatever_a_tool_raises_reaches_those_who_wait(tokenizer, error):
    def execute(task, call):
        raise error

    async def run():
        stream, _ = stream_of(babbler(tokenizer), execute)
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await asyncio.wait_for(stream.sample(requests_for(24)), 60)

    asyncio.run(run())
