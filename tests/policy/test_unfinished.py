"""What becomes of episodes under way: with new weights they go on, are read again, or begin again;
another engine goes on from their finished turns."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from dataclasses import astuple, replace

import pytest
import torch
from conftest import babbler

from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.task.episode import Prefix

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


def test_an_episode_that_begins_again_is_of_the_new_weights_alone(tokenizer, weights):
    episodes = sampled(tokenizer, weights, "restart")
    assert {(e.first_version, e.last_version) for e in episodes} == {(0, 0), (1, 1)}
    policy = babbler(tokenizer)
    policy.model.load_state_dict(weights[1])
    fresh = rollout(policy, REQUESTS, ENV.execute, Sampling(max_tokens=40, slots=8))
    for episode, other in zip(episodes, fresh, strict=True):
        if episode.first_version:
            assert episode.token_ids == other.token_ids
            assert max(map(lambda p, q: abs(p - q), episode.logprobs, other.logprobs)) < 1e-4


@pytest.mark.parametrize("on_update", ["continue", "keep-prefix", "restart"])
def test_rows_that_wait_for_slow_tools_are_there_when_these_answer(tokenizer, weights, on_update):
    """An answer to a call of an episode that has begun again is nobody's."""
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
    assert bool(under_way(found)) == (on_update != "restart")


def moved(policy, steps, slow):
    """The episodes of an engine that is left after ``steps`` steps, from a second one; and the
    tokens that were kept."""
    calls = []

    def execute(task, call):
        answer = ENV.execute(task, call)
        if not slow:
            return answer
        calls.append((Future(), answer))
        return calls[-1][0]

    sampling = Sampling(max_tokens=40, slots=8)
    first, second = (RolloutEngine(policy, execute, sampling) for _ in range(2))
    first.submit(REQUESTS)
    known = {}
    for _ in range(steps):
        if first.stalled_on:
            break
        known |= {e.seed: Prefix(e, e.finish) for _, e in first.step()}
        known |= {prefix.episode.seed: prefix for prefix in first.finished_turns()}
    # As it is sent to another process.
    known = pickle.loads(pickle.dumps(known))
    kept = {seed: len(prefix.episode.token_ids) for seed, prefix in known.items()}
    tickets = second.submit(replace(request, prefix=known.get(request.seed)) for request in REQUESTS)
    found = {}
    while not second.idle:
        for call, answer in calls:
            if not call.done():
                call.set_result(answer)
        found |= dict(second.step())
    return [found[ticket] for ticket in tickets], kept, second.take_history()[1]


@pytest.mark.parametrize("slow", [False, True])
def test_an_episode_that_another_engine_goes_on_with_is_the_one_that_it_would_have_been(tokenizer, slow):
    policy = babbler(tokenizer)
    expected = rollout(policy, REQUESTS, ENV.execute, Sampling(max_tokens=40, slots=8))
    episodes, kept, history = moved(policy, 30, slow)
    for episode, other in zip(episodes, expected, strict=True):
        assert episode.token_ids == other.token_ids and episode.sampled == other.sampled
        assert [*map(astuple, episode.turns)] == [*map(astuple, other.turns)]
        assert episode.finish == other.finish
        assert max(map(lambda p, q: abs(p - q), episode.logprobs, other.logprobs)) < 1e-4
    lengths = {seed: len(episodes[seed].token_ids) for seed in kept}
    assert any(kept[seed] < lengths[seed] for seed in kept)
    assert slow or any(kept[seed] == lengths[seed] for seed in kept), "of some nothing was left to do"
    assert history[0][1] == "kept" and history[0][2][1::3] == [kept[seed] for seed in sorted(kept)]
