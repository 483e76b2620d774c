"""The batched engine against slow and plain references: the same tokens and log-probabilities,
whatever the batch."""

from __future__ import annotations

import copy
import gc
import math
import queue
import random
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from conftest import babbler
from hypothesis import given, settings
from hypothesis import strategies as st

from zorplex_rl.errors import ConfigError, TrainingDiverged
from zorplex_rl.policy.decoder import Decoder, SlotCache
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.model import TreeAttention
from zorplex_rl.policy.requests import RolloutRequest, Sampling, held_out_requests
from zorplex_rl.policy.rollout import RolloutEngine, draw, rollout
from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
from zorplex_rl.policy.tool_loop import PartialEpisode, ToolLoop
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.parser import find_answer, find_call, format_result
from zorplex_rl.task.rewards import final_answer, score

pytestmark = pytest.mark.slow

ENV, SHOWN = Zorplex(seed=0), Zorplex(seed=0, shots=1)
PATIENCE = 30.0
"""Seconds after which a test that hangs is failed; nothing waits so long when all is well."""


def mixed_requests(count: int) -> list[RolloutRequest]:
    """Tasks of every kind, every third with a worked example, so that prompts of very different length meet
    in a batch."""
    return [
        RolloutRequest((SHOWN if i % 3 == 2 else ENV).task(i), seed=100 + i, group=i // 4)
        for i in range(count)
    ]


def tokens_of(episodes: list[Episode]) -> list[tuple]:
    return [(e.token_ids, e.sampled, e.finish, [t.call for t in e.turns]) for e in episodes]


@torch.no_grad()
def full_logprobs(policy: Policy, episode: Episode, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities [T, V] of every position of the episode, by one forward over all of it and
    no cache."""
    ids = torch.tensor([episode.prompt_ids + episode.token_ids])
    logits = policy.model(ids).logits[0, len(episode.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, dim=-1)


def logprob_gap(policy: Policy, episode: Episode, temperature: float = 1.0) -> float:
    """The largest difference between the recorded and the recomputed log-probability of a sampled
    token."""
    chosen = full_logprobs(policy, episode, temperature).gather(
        1, torch.tensor(episode.token_ids)[:, None]
    )[:, 0]
    return (
        ((chosen - torch.tensor(episode.logprobs))[torch.tensor(episode.sampled)])
        .abs()
        .max()
        .item()
    )


def stop_reason(policy: Policy, text: str, token: int) -> str | None:
    """What the whole text of a turn says after ``token``: ``eos``, ``call``, ``answer`` or None. No
    line is skipped."""
    if token in policy.eos_ids:
        return "eos"
    if find_call(text):
        return "call"
    return (
        "answer" if any(find_answer(line) is not None for line in text.split("\n")[:-1]) else None
    )


def reference_episode(
    policy: Policy, task: Task, execute, sampling: Sampling, script: Iterator[int]
) -> tuple:
    """Read the whole text again after every token; the policy writes ``script``."""
    ids, sampled, forced, turns, start = [], [], [], [], 0
    while True:
        if forced:
            ids.append(forced.pop(0))
            sampled.append(False)
        else:
            ids.append(next(script))
            sampled.append(True)
            text = policy.tokenizer.decode([i for i in ids[start:] if i not in policy.eos_ids])
            reason = stop_reason(policy, text, ids[-1])
            if reason == "call":
                call = find_call(text)
                turns.append(str(call))
                if len(turns) == sampling.max_turns:
                    return ids, sampled, "turns", turns
                forced = encode_text(policy.tokenizer, format_result(execute(task, call)))
                start = len(ids) + len(forced)
            elif reason:
                return ids, sampled, reason, [*turns, None]
        if len(ids) >= sampling.max_tokens:
            return ids, sampled, "tokens", turns if len(ids) <= start else [*turns, None]


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_sampled_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature(
    babbling, temperature
):
    sampling = Sampling(temperature=temperature, max_tokens=48, slots=6)
    episodes = rollout(babbling, mixed_requests(24), ENV.execute, sampling)
    assert sum(episode.tool_calls for episode in episodes) > 3
    assert max(logprob_gap(babbling, episode, temperature) for episode in episodes) < 1e-4


def test_sampled_logprobs_of_the_embedded_policy_are_those_of_a_full_forward(embedded):
    episodes = rollout(embedded, mixed_requests(40), ENV.execute, Sampling(slots=16))
    assert max(logprob_gap(embedded, episode) for episode in episodes) < 1e-4
    assert {"success"} < {score(episode).outcome for episode in episodes}


def test_in_bfloat16_every_greedy_token_is_best_up_to_rounding_and_its_logprob_right(tokenizer):
    policy = babbler(tokenizer, "llama", torch.bfloat16)
    episodes = rollout(
        policy, mixed_requests(12), ENV.execute, Sampling(temperature=0.0, max_tokens=32, slots=5)
    )
    assert sum(episode.tool_calls for episode in episodes) > 5
    for episode in episodes:
        sampled = torch.tensor(episode.sampled)
        logprobs = full_logprobs(policy, episode)[sampled]
        chosen = logprobs.gather(1, torch.tensor(episode.token_ids)[sampled][:, None])[:, 0]
        assert (logprobs.max(-1).values - chosen).max() < 0.15
        assert (chosen - torch.tensor(episode.logprobs)[sampled]).abs().max() < 0.15


GROUPED = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
        ("Gemma2", GROUPED | {"final_logit_softcapping": 5.0}),
    ],
)
def test_other_architectures_also_those_that_scale_or_cap_their_logits_record_right_logprobs(
    tokenizer, family, settings
):
    import transformers

    end = tokenizer.eos_token_id
    settings |= {"bos_token_id": None, "eos_token_id": end, "pad_token_id": tokenizer.pad_token_id}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer), initializer_range=0.2, **settings
    )
    torch.manual_seed(0)
    model = getattr(
        transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    )(config)
    policy = Policy(model.eval(), tokenizer, family, (end,))
    episodes = rollout(policy, mixed_requests(6), ENV.execute, Sampling(max_tokens=12, slots=4))
    assert max(logprob_gap(policy, episode) for episode in episodes) < 1e-4


@pytest.mark.parametrize(("architecture", "slots"), [("qwen2", 64), ("llama", 4)])
def test_an_episode_does_not_depend_on_what_it_was_batched_with(tokenizer, architecture, slots):
    policy = babbler(tokenizer, architecture, torch.float64)
    requests = mixed_requests(40)
    together = rollout(policy, requests, ENV.execute, Sampling(max_tokens=40, slots=slots))
    for index in (0, 1, 2, 17, 23, 39):
        (alone,) = rollout(policy, [requests[index]], ENV.execute, Sampling(max_tokens=40, slots=1))
        assert tokens_of([alone]) == tokens_of([together[index]])
        assert alone.logprobs == pytest.approx(together[index].logprobs, abs=1e-5)


def test_episodes_come_back_in_the_order_of_their_requests_with_their_task_seed_and_group(babbling):
    requests = mixed_requests(30)
    episodes = rollout(babbling, requests, ENV.execute, Sampling(max_tokens=32, slots=4), version=7)
    assert [(e.task, e.seed, e.group) for e in episodes] == [
        (r.task, r.seed, r.group) for r in requests
    ]
    assert all(e.first_version == e.last_version == 7 for e in episodes)
    assert all(turn.version == 7 for e in episodes for turn in e.turns)
    assert rollout(babbling, [], ENV.execute) == []


def test_requests_submitted_in_mid_run_get_the_episodes_they_would_get_alone(tokenizer):
    policy = babbler(tokenizer, dtype=torch.float64)
    requests, sampling = mixed_requests(12), Sampling(max_tokens=32, slots=3)
    engine = RolloutEngine(policy, ENV.execute, sampling)
    tickets, episodes, steps = engine.submit(requests[:2]), {}, 0
    while not engine.idle or len(tickets) < len(requests):
        if steps % 5 == 4 and len(tickets) < len(requests):
            tickets += engine.submit(requests[len(tickets) : len(tickets) + 2])
        episodes.update(engine.step())
        steps += 1
    assert sorted(episodes) == sorted(tickets)
    assert tokens_of([episodes[t] for t in tickets]) == tokens_of(
        rollout(policy, requests, ENV.execute, sampling)
    )


def test_a_seed_gives_the_same_episode_again_and_another_seed_another_one_except_at_temperature_0(
    babbling,
):
    task, sampling = ENV.task(0), Sampling(max_tokens=32, slots=8)
    requests = [RolloutRequest(task, seed) for seed in range(20)]
    once, again = (rollout(babbling, requests, ENV.execute, sampling) for _ in range(2))
    assert tokens_of(once) == tokens_of(again)
    assert len({tuple(episode.token_ids) for episode in once}) > 10
    twins = rollout(babbling, [RolloutRequest(task, 3)] * 4, ENV.execute, sampling)
    greedy = rollout(babbling, requests, ENV.execute, replace(sampling, temperature=0.0))
    for same in (twins, greedy):
        assert len({tuple(episode.token_ids) for episode in same}) == 1


def test_injected_tokens_are_the_tools_result_masked_and_without_logprob(babbling):
    episodes = rollout(babbling, mixed_requests(40), ENV.execute, Sampling(max_tokens=64, slots=8))
    checked = 0
    for episode in episodes:
        assert len(episode.token_ids) == len(episode.sampled) == len(episode.logprobs)
        assert [logprob < 0.0 for logprob in episode.logprobs] == episode.sampled
        covered = [index for turn in episode.turns for index in range(turn.start, turn.end)]
        assert covered == [index for index, sampled in enumerate(episode.sampled) if sampled]
        for turn, following in zip(episode.turns, [*episode.turns[1:], None], strict=True):
            own = episode.token_ids[turn.start : turn.end]
            assert babbling.tokenizer.decode(own).removesuffix("<|im_end|>") == turn.text
            if following is not None:
                assert episode.token_ids[turn.end : following.start] == encode_text(
                    babbling.tokenizer, turn.result
                )
                assert turn.result == format_result(ENV.execute(episode.task, find_call(turn.call)))
                checked += 1
    assert checked > 10


def test_every_finish_is_reached_and_is_what_the_tokens_say(babbling):
    sampling = Sampling(max_tokens=40, max_turns=4, slots=16)
    episodes = rollout(babbling, mixed_requests(160), ENV.execute, sampling)
    assert {episode.finish for episode in episodes} == {"eos", "answer", "turns", "tokens"}
    for episode in episodes:
        assert len(episode.token_ids) <= sampling.max_tokens
        assert episode.tool_calls <= sampling.max_turns
        if episode.finish == "eos":
            assert episode.token_ids[-1] in babbling.eos_ids
        elif episode.finish == "answer":
            assert "\n" in episode.turns[-1].text
            assert final_answer(episode.sampled_text) is not None
        elif episode.finish == "turns":
            assert episode.tool_calls == sampling.max_turns
            assert episode.turns[-1].result is None
        else:
            assert len(episode.token_ids) == sampling.max_tokens


@pytest.fixture(scope="module")
def byte_tokenizer(tokenizer):
    """Bytes, and a few tokens that hold a bracket or a line break and more, as Qwen2.5's vocabulary
    has."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    merges = [
        ("]", "Ċ"),
        ("]", "["),
        ("Ċ", "Ċ"),
        (".", "Ċ"),
        ("L", "O"),
        ("[", "A"),
        ("]", ","),
        ("4", "2"),
    ]
    entries = [*sorted(ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    built = Qwen2Tokenizer(
        vocab={entry: index for index, entry in enumerate(entries)},
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
    )
    built.chat_template = tokenizer.chat_template
    return built


SMALL_TASK = Task("simple", "?", 4, 1, "", ("blip",))
FRAGMENTS = (
    "LOOKUP[", "LOOKUP[blip]", "GETKEY[é]", "FETCH[", "]", "]\n", "][", "],", "[", "\n", "\n\n", " ",
    "[ANSWER]", "[ANSWER] 4", " 42", "-", ".5", ".\n", "é", "x",
)  # fmt: skip


def play(tokenizer, ids: list[int], sampling: Sampling) -> tuple[tuple, tuple]:
    """(expected, got): what the whole-text reference and the tool loop make of a policy that writes
    ``ids``."""
    policy = Policy(None, tokenizer, "reader", (tokenizer.eos_token_id,))
    script = iter([*ids, *[tokenizer.eos_token_id] * sampling.max_tokens])
    expected = reference_episode(policy, SMALL_TASK, ENV.execute, sampling, script)
    loop = ToolLoop(policy, ENV.execute, sampling)
    row = PartialEpisode(
        0, Episode(SMALL_TASK, [], [], [], [], [], "tokens"), random.Random(0), 0.0
    )
    for token in [*ids, *[tokenizer.eos_token_id] * sampling.max_tokens]:
        loop.extend(row, token, -1.0)
        if loop.has_ended(row):
            break
    return expected, tokens_of([loop.end(row)])[0]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_reading_only_the_current_line_finds_the_calls_and_answers_of_the_whole_text(
    byte_tokenizer, text
):
    ids = byte_tokenizer(text, add_special_tokens=False)["input_ids"]
    expected, got = play(byte_tokenizer, ids, Sampling(max_tokens=80, max_turns=3, slots=1))
    assert got == expected


def chi_square_p(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """P-value of ``counts`` under ``probabilities``; rare outcomes are pooled."""
    expected = probabilities.double() * counts.sum()
    often = expected >= 5
    observed = torch.cat([counts[often].double(), counts[~often].sum()[None].double()])
    expected = torch.cat([expected[often], expected[~often].sum()[None]]).clamp(min=1e-9)
    statistic = ((observed - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(
        torch.tensor((len(expected) - 1) / 2.0), statistic.float() / 2
    ).item()


def test_sampling_frequencies_follow_the_softmax_at_the_temperature(tokenizer):
    policy, temperature = babbler(tokenizer), 2.0
    task, count = ENV.task(0), 4000
    requests = [RolloutRequest(task, seed) for seed in range(count)]
    episodes = rollout(
        policy, requests, ENV.execute, Sampling(temperature, max_tokens=2, slots=500)
    )
    size = len(tokenizer)
    first = torch.bincount(torch.tensor([e.token_ids[0] for e in episodes]), minlength=size)
    assert chi_square_p(first, full_logprobs(policy, episodes[0], temperature)[0].exp()) > 1e-3
    commonest = int(first.argmax())
    follow = [e for e in episodes if len(e.token_ids) == 2 and e.token_ids[0] == commonest]
    second = torch.bincount(torch.tensor([e.token_ids[1] for e in follow]), minlength=size)
    assert chi_square_p(second, full_logprobs(policy, follow[0], temperature)[1].exp()) > 1e-3
    assert len(set(first.nonzero())) > 5
    assert len(follow) > 500


def test_an_evaluation_gives_the_greedy_and_the_sampled_episode_of_each_task(tokenizer):
    policy, tasks = babbler(tokenizer), [ENV.task(index) for index in range(5)]
    sampling = Sampling(temperature=2.0, max_tokens=12)
    requests = held_out_requests(tasks)
    assert [request.task for request in requests[::2]] == tasks
    assert len({request.seed for request in requests[1::2]}) == len(tasks)
    both = rollout(policy, requests, ENV.execute, sampling)
    greedy = rollout(policy, requests[::2], ENV.execute, replace(sampling, temperature=0.0))
    sampled = rollout(policy, requests[1::2], ENV.execute, sampling)
    assert tokens_of(both[::2]) == tokens_of(greedy)
    assert tokens_of(both[1::2]) == tokens_of(sampled)
    assert tokens_of(greedy) != tokens_of(sampled)


def test_a_draw_that_rounds_up_to_one_still_samples_a_token_that_has_probability():
    uniform = 1 - 2**-30
    assert torch.tensor(uniform, dtype=torch.float32) == 1.0
    logits = torch.tensor([[0.0, 60.0, 0.0], [60.0, 0.0, -math.inf]])
    assert [
        [token for token, _ in row] for row in draw(logits, 1.0, [[uniform, 0.5], [uniform]])
    ] == [[1, 1], [0]]


class ToolDesk:
    """A tool that hands out futures and puts (task, call, future) on a queue for the test to
    resolve."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Task, str, Future[str]]] = queue.Queue()

    def __call__(self, task: Task, call) -> Future[str]:
        future: Future[str] = Future()
        self.calls.put((task, ENV.execute(task, call), future))
        return future


def requests_that_call(policy: Policy, count: int) -> list[RolloutRequest]:
    """The first ``count`` requests whose episodes call a tool."""
    requests = mixed_requests(50)
    episodes = rollout(policy, requests, ENV.execute, Sampling(max_tokens=48))
    calling = [r for r, episode in zip(requests, episodes, strict=True) if episode.tool_calls]
    assert len(calling) >= count
    return calling[:count]


def run_in_thread(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_slow_tools_that_answer_in_any_order_change_no_episode(tokenizer):
    policy = babbler(tokenizer, dtype=torch.float64)
    requests = requests_that_call(policy, 12)
    desk, rng, together = ToolDesk(), random.Random(0), []

    def resolve() -> None:
        # As many calls are outstanding at once as there are episodes, far more than there are
        # slots.
        first = [desk.calls.get(timeout=PATIENCE) for _ in requests]
        together.append(len(first))
        rng.shuffle(first)
        for _, result, future in first:
            future.set_result(result)
        while (call := desk.calls.get(timeout=PATIENCE)) is not None:
            call[2].set_result(call[1])

    resolver = run_in_thread(resolve)
    slow = rollout(policy, requests, desk, Sampling(max_tokens=48, slots=3))
    desk.calls.put(None)
    resolver.join(PATIENCE)
    assert together == [12]
    assert tokens_of(slow) == tokens_of(
        rollout(policy, requests, ENV.execute, Sampling(max_tokens=48, slots=3))
    )


@pytest.mark.parametrize("slots", [3, 16])
def test_in_rounds_the_log_probs_are_bit_for_bit_the_same_however_fast_tools_answer(
    tokenizer, slots
):
    policy = babbler(tokenizer)
    requests, sampling = (
        requests_that_call(policy, 12),
        Sampling(max_tokens=48, slots=slots, in_rounds=True),
    )

    def episodes(seed: int) -> list[Episode]:
        rng = random.Random(seed)

        def execute(task: Task, call) -> Future[str]:
            seconds = rng.choice([0.0, 0.0, 0.002, 0.01])
            return pool.submit(lambda: (time.sleep(seconds), ENV.execute(task, call))[1])

        with ThreadPoolExecutor(12) as pool:
            return rollout(policy, requests, execute, sampling)

    first, *others = (episodes(seed) for seed in range(4))
    assert sum(turn.result is not None for e in first for turn in e.turns) >= 12
    for other in others:
        assert tokens_of(other) == tokens_of(first)
        assert [e.logprobs for e in other] == [e.logprobs for e in first]


@pytest.mark.parametrize("slots", [4, 24])
def test_the_samples_of_a_group_share_one_prefill_and_each_beginning_that_they_write_together(
    tokenizer, slots
):
    policy, runs = babbler(tokenizer), []
    policy.model.model.register_forward_pre_hook(
        lambda module, args: runs.append((args[0].numel(), isinstance(args[2], TreeAttention)))
    )
    tasks = ENV.tasks(("simple",), 3)
    requests = [
        RolloutRequest(task, seed, group) for group, task in enumerate(tasks) for seed in range(8)
    ]
    episodes = rollout(policy, requests, ENV.execute, Sampling(max_tokens=40, slots=slots))
    prompts = {tuple(episode.prompt_ids) for episode in episodes}
    beginnings = {prompt[:length] for prompt in prompts for length in range(1, len(prompt) + 1)}
    assert sum(tokens for tokens, is_prefill in runs if is_prefill) in range(
        len(beginnings), sum(map(len, prompts)) + 1
    )
    assert any(episode.tool_calls for episode in episodes)
    last_sampled = [
        len(episode.sampled) - 1 - episode.sampled[::-1].index(True) for episode in episodes
    ]
    written = {
        (e.group, *e.token_ids[:n])
        for e, last in zip(episodes, last_sampled, strict=True)
        for n in range(1, last + 1)
    }
    run = sum(tokens for tokens, is_prefill in runs if not is_prefill)
    # All start together in 24 slots. In 4, a group's last samples come when its first have ended.
    assert run == len(written) if slots == 24 else len(written) < run < sum(last_sampled)


@pytest.mark.parametrize("switch", [1, 9])
def test_a_version_is_that_of_the_weights_which_made_the_logits_not_of_those_there_when_a_token_is_drawn(
    tokenizer, switch
):
    policy = copy.copy(babbler(tokenizer))
    policy.model = copy.deepcopy(policy.model)
    engine = RolloutEngine(policy, ENV.execute, Sampling(max_tokens=30, slots=64))
    engine.submit(mixed_requests(40))
    episodes = []
    for _ in range(switch):
        episodes += engine.step()
    with torch.no_grad():
        # From now on every token is as likely as any other, which shows in its log-probability.
        policy.model.get_output_embeddings().weight.zero_()
    engine.version = 1
    while not engine.idle:
        episodes += engine.step()
    uniform = -math.log(policy.model.get_output_embeddings().weight.shape[0])
    versions_seen = set()
    for _, episode in episodes:
        made = [abs(logprob - uniform) < 1e-5 for logprob in episode.logprobs]
        assert [turn.version for turn in episode.turns] == [
            made[turn.end - 1] for turn in episode.turns
        ]
        assert (
            episode.last_version
            == made[max(i for i, sampled in enumerate(episode.sampled) if sampled)]
        )
        assert episode.first_version == made[0]
        versions_seen.add((episode.first_version, episode.last_version))
    assert (0, 1) in versions_seen


def test_an_episode_that_starts_after_new_weights_came_is_sampled_from_them_alone(tokenizer):
    policy, newer = copy.copy(babbler(tokenizer, seed=0)), babbler(tokenizer, seed=1)
    engine = RolloutEngine(policy, ENV.execute, Sampling(max_tokens=24, slots=1))
    engine.submit([RolloutRequest(ENV.task(0), seed) for seed in range(2)])
    episodes = engine.step()
    policy.model.load_state_dict(newer.model.state_dict())
    engine.version = 1
    while not engine.idle:
        episodes += engine.step()
    (_, before), (_, after) = episodes
    assert (before.first_version, after.first_version) == (0, 1)
    assert logprob_gap(policy, after) < 1e-4


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("qwen2", torch.float32), ("llama", torch.float32), ("qwen2", torch.bfloat16)],
)
def test_a_step_computes_what_transformers_own_forward_does(tokenizer, architecture, dtype):
    found, lengths = [], [3, 40, 17, 0, 25]
    for foreign in (False, True):
        model = babbler(tokenizer, architecture, dtype, foreign=foreign).model
        torch.manual_seed(0)
        cache = SlotCache(model, 6, 64)
        cache.kv.normal_()
        with torch.inference_mode():
            step = cache.begin_step(lengths, [[5], [6], [7], [8], [9]])
            found.append((Decoder(model)(step, cache).float(), cache.kv))
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for pair in zip(*found, strict=True):
        torch.testing.assert_close(*pair, atol=tolerance, rtol=tolerance)


def test_an_answer_that_goes_beyond_what_the_model_can_read_is_refused(embedded):
    request = RolloutRequest(ENV.task(0))
    room = 1024 - len(encode_prompt(embedded.tokenizer, request.task))
    assert rollout(embedded, [request], ENV.execute, Sampling(max_tokens=room))
    with pytest.raises(ConfigError, match="reads at most 1024"):
        rollout(embedded, [request], ENV.execute, Sampling(max_tokens=room + 1))


@pytest.mark.parametrize(("temperature", "value"), [(0.0, float("nan")), (1.0, float("inf"))])
def test_weights_that_are_not_finite_are_said_to_be_so_and_sample_nothing(
    embedded, temperature, value
):
    policy = replace(embedded, model=copy.deepcopy(embedded.model))
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(value)
    requests = [RolloutRequest(task) for task in Zorplex(0).tasks(("simple",), 3)]
    with pytest.raises(TrainingDiverged, match="version 7"):
        rollout(policy, requests, Zorplex(0).execute, Sampling(temperature), version=7)


@pytest.mark.parametrize("foreign", [False, True])
def test_the_cache_of_an_engine_is_freed_with_it(tokenizer, foreign):
    """Every evaluation has a cache of its own: until Python's collector came by, several would be
    there at once."""
    policy = babbler(tokenizer, foreign=foreign)
    engine = RolloutEngine(policy, ENV.execute, Sampling(max_tokens=8))
    engine.run(mixed_requests(2))
    memory = weakref.ref(engine._cache.kv)
    gc.disable()
    try:
        del engine
        assert memory() is None
    finally:
        gc.enable()
