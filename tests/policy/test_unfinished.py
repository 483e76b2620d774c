"""With new weights, episodes under way go on, or are read again first."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from conftest import babbler

from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, Sampling
from zorplex_rl.task.environment import Zorplex, kinds_of

pytestmark = pytest.mark.slow

ENV = Zorplex(0)
REQUESTS = [RolloutRequest(task, i, i) for i, task in enumerate(ENV.tasks(kinds_of("mix"), 24, "train"))]
STEPS = 9


@pytest.fixture
def weights(tokenizer):
    """Those of versions 0 and 1."""
    return [babbler(tokenizer, seed=seed).model.state_dict() for seed in (0, 1)]


def sampled(tokenizer, weights, on_update, execute=ENV.execute):
    """The episodes of an engine whose weights change from version 0 to 1 after ``STEPS`` steps."""
    policy = babbler(tokenizer)
    engine = RolloutEngine(policy, execute, Sampling(max_tokens=40, slots=8, on_update=on_update))
    tickets, found = engine.submit(REQUESTS), {}
    while not engine.idle:
        if engine.version == 0 and engine._steps == STEPS:
            policy.model.load_state_dict(weights[1])
            engine.version = 1
        found |= dict(engine.step())
    return [found[ticket] for ticket in tickets]


def distance(tokenizer, weights, episode, first):
    """How far the log-probs of the tokens from ``first`` on are from those of version 1, which has
    read all before them."""
    model = babbler(tokenizer).model
    model.load_state_dict(weights[1])
    ids = torch.tensor([episode.prompt_ids + episode.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(episode.prompt_ids) - 1 : -1]
    own = torch.log_softmax(logits, -1).gather(1, ids[0, len(episode.prompt_ids) :, None])[:, 0]
    chosen = torch.tensor(episode.sampled) & (torch.arange(len(own)) >= first)
    return float((own - torch.tensor(episode.logprobs))[chosen].abs().max()) if chosen.any() else 0.0


def under_way(episodes):
    return [e for e in episodes if e.first_version == 0 and e.last_version == 1]


def test_a_kept_prefix_is_read_by_the_new_weights_and_one_that_continues_is_not(tokenizer, weights):
    kept, continued = (sampled(tokenizer, weights, mode) for mode in ("keep-prefix", "continue"))
    before = sampled(tokenizer, weights[:1] * 2, "continue")
    crossing = [place for place, e in enumerate(kept) if e in under_way(kept)]
    assert len(crossing) >= 4
    for place in crossing:
        episode, first = kept[place], kept[place].token_ids
        same = next(
            (i for i, (a, b) in enumerate(zip(first, before[place].token_ids, strict=False)) if a != b), len(first)
        )
        # What was written stays, with its log-probs; what is new is that of version 1 alone.
        assert same > 0 and episode.logprobs[0] == before[place].logprobs[0]
        assert distance(tokenizer, weights, episode, same) < 1e-4
    assert max(distance(tokenizer, weights, e, 12) for e in under_way(continued)) > 1e-2


@pytest.mark.parametrize("on_update", ["continue", "keep-prefix"])
def test_rows_that_wait_for_slow_tools_are_there_when_these_answer(tokenizer, weights, on_update):
    calls = []

    def execute(task, call):
        calls.append((Future(), ENV.execute(task, call)))
        return calls[-1][0]

    def answer_all():
        for call, answer in calls:
            if not call.done():
                call.set_result(answer)

    policy = babbler(tokenizer)
    engine = RolloutEngine(policy, execute, Sampling(max_tokens=40, slots=8, on_update=on_update))
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
