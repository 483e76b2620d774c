"""What a generator may do next, as the replay buffer's actor says it: start groups, pull newer
weights, or stop. On a real process."""

from __future__ import annotations

import asyncio

import pytest

from zorplex_rl.config import Config
from zorplex_rl.services.replica import spawn
from zorplex_rl.training.actors import Admission, ReplayBufferActor

pytestmark = pytest.mark.slow

ON_POLICY = Config(max_lag=0, steps=2, prompts_per_step=2)


def test_a_generator_starts_what_its_weights_may_be_used_for_then_pulls_and_in_the_end_stops():
    async def scenario():
        replica = await spawn("replay", ReplayBufferActor, ON_POLICY)
        replay = replica.actor
        try:
            assert await replay.admit.call_one(0, 8) == Admission("start", (0, 1))
            waiting = asyncio.ensure_future(replay.admit.call_one(0, 8).as_asyncio())
            await asyncio.sleep(0.2)
            assert not waiting.done(), "nothing can be started with version 0, and there is nothing newer yet"
            await replay.published.call_one(1)
            assert await waiting == Admission("pull")
            await replay.end.call_one()
            assert await replay.admit.call_one(1, 8) == Admission("over")
        finally:
            await replica.stop()

    asyncio.run(scenario())
