"""With new weights, episodes under way go on."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from conftest import babbler

from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, Sampling
from zorplex_rl.task.environment import Zorplex, kinds_of

pytestmark = pytest.mark.slow

ENV = Zorplex(0)
REQUESTS = [
    RolloutRequest(task, i, i) for i, task in enumerate(ENV.tasks(kinds_of("mix"), 24, "train"))
]


@pytest.fixture
def weights(tokenizer):
    """Those of versions 0 and 1."""
    return [babbler(tokenizer, seed=seed).model.state_dict() for seed in (0, 1)]


def under_way(episodes):
    return [e for e in episodes if e.first_version == 0 and e.last_version == 1]


def test_rows_that_wait_for_slow_tools_are_there_when_these_answer(tokenizer, weights):
    calls = []

    def execute(task, call):
        calls.append((Future(), ENV.execute(task, call)))
        return calls[-1][0]

    def answer_all():
        for call, answer in calls:
            if not call.done():
                call.set_result(answer)

    policy = babbler(tokenizer)
    engine = RolloutEngine(policy, execute, Sampling(max_tokens=40, slots=8))
    engine.submit(REQUESTS)
    found = []
    while not engine.idle:
        if engine.stalled_on:
            if engine.version == 0:
                policy.model.load_state_dict(weights[1])
                engine.version = 1
            if engine.stalled_on:
                answer_all()
        found += [episode for _, episode in engine.step()]
    assert len(found) == len(REQUESTS)
    assert all(e.turns[i].result for e in found for i in range(len(e.turns) - 1))
    assert under_way(found)
