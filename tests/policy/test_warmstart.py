"""The embedded policy's origin: its tokenizer, the careless demonstrations, and a build that
repeats to the byte."""

from __future__ import annotations

import itertools
import random
import re
import unicodedata
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from zorplex_rl.policy.demonstrations import (
    Habits,
    arithmetic_drill,
    demonstrate,
    random_demonstration,
    solution_drill,
)
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, rollout
from zorplex_rl.policy.tool_loop import encode_prompt
from zorplex_rl.policy.warmstart import (
    IGNORED,
    DemonstrationStream,
    WarmStart,
    build_tokenizer,
    lesson_for_a_model,
    save_policy,
    warm_start,
)
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.parser import find_answer, find_call, format_result
from zorplex_rl.task.rewards import score, score_turns
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS, ZORPLEX_WORDS, get_spec

EQUAL_SHARES = tuple((kind, 1.0) for kind in TASK_SPECS)
SMALL = WarmStart(batch_size=4, hidden_size=16, layers=1, threads=1).shortened(3)
CAREFUL = Habits(tag_by_phrasing=(1.0, 1.0, 1.0), repeat_call=0, spam=0, ramble=0, guess=0, slip=0, hint=0)


# --- Tokenizer --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer of the warm start, trained here."""
    return build_tokenizer()


@pytest.fixture(scope="module")
def reloaded(tokenizer, tmp_path_factory):
    """The tokenizer after save and load by AutoTokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_saved_tokenizer_gives_the_same_ids_for_everything_a_demonstration_holds(tokenizer, reloaded):
    rng = random.Random(0)
    for _ in range(300):
        demo = random_demonstration(rng, EQUAL_SHARES)
        messages = [{"role": "system", "content": demo.task.system}, {"role": "user", "content": demo.task.question}]
        prompts = [
            t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) for t in (tokenizer, reloaded)
        ]
        assert prompts[0] == prompts[1]
        for text in (prompts[0], *(text for text, _ in demo.pieces)):
            assert ids_of(tokenizer, text) == ids_of(reloaded, text)
    assert (reloaded.eos_token_id, reloaded.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_any_text_survives_the_tokenizer_before_and_after_a_save(tokenizer, reloaded, text):
    text = unicodedata.normalize("NFC", text)
    assert ids_of(tokenizer, text) == ids_of(reloaded, text)
    assert reloaded.decode(ids_of(reloaded, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("form", ["{}", " {}", "[{}"])
def test_every_word_is_a_single_token_where_it_is_asked_called_and_alone(tokenizer, form):
    assert [word for word in ZORPLEX_WORDS if len(ids_of(tokenizer, form.format(word))) != 1] == []


def test_every_digit_is_a_token_of_its_own(tokenizer):
    tokens = tokenizer.convert_ids_to_tokens(ids_of(tokenizer, "17+25=42 -98 [ANSWER] 1234567890\n"))
    assert [token for token in tokens if any(c.isdigit() for c in token)] == list("172542981234567890")


def test_special_tokens_are_single_and_the_last_entries_of_a_small_vocabulary(tokenizer):
    special = [ids_of(tokenizer, text) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")]
    assert all(len(ids) == 1 for ids in special)
    assert {ids[0] for ids in special} == set(range(len(tokenizer) - 3, len(tokenizer)))
    assert tokenizer.eos_token == "<|im_end|>"
    assert len(tokenizer) <= 640


def test_the_tokenizer_is_the_same_each_time_it_is_built(tokenizer):
    again = build_tokenizer()
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


# --- Demonstrations ---------------------------------------------------------------------------------------------------


def turns_of(demo) -> list[str]:
    return [text for text, written in demo.pieces if written]


def test_a_careful_demonstrator_is_always_right_with_exactly_the_calls_that_it_takes():
    for kind, difficulty, seed in itertools.product(TASK_SPECS, DIFFICULTIES, range(40)):
        spec = get_spec(kind, seed, difficulty)
        demo = demonstrate(spec, spec.task(seed), random.Random(seed), CAREFUL)
        calls = sum(find_call(text) is not None for text in turns_of(demo))
        result = score_turns(demo.task, turns_of(demo), calls, "eos")
        assert demo.ends
        assert (result.outcome, result.reward) == ("success", pytest.approx(1.2))
        assert calls == demo.task.min_tool_calls


def test_every_result_in_a_demonstration_is_the_tools_own_and_follows_its_call():
    for kind, seed in itertools.product(TASK_SPECS, range(50)):
        spec = get_spec(kind, seed, "hard")
        task = spec.task(seed)
        pieces = demonstrate(spec, task, random.Random(seed)).pieces
        for (text, written), (result, injected) in itertools.pairwise(pieces):
            assert written != injected
            if not injected:
                assert result == format_result(spec.run(task, text))
            else:
                assert text.startswith(" -> ")
        assert pieces[0][1]


def test_every_line_of_careful_arithmetic_is_true():
    for seed in range(60):
        spec = get_spec("compositional", seed, "hard")
        demo = demonstrate(spec, spec.task(seed), random.Random(seed), CAREFUL)
        lines = re.findall(r"^(-?\d+)([+-])(\d+)=(-?\d+)$", turns_of(demo)[-1], re.MULTILINE)
        assert len(lines) == 3
        assert all(int(a) + int(b) * (1 if sign == "+" else -1) == int(c) for a, sign, b, c in lines)


def test_the_warm_start_teaches_the_words_of_both_splits():
    rng = random.Random(1)
    words = {word for _ in range(500) for word in random_demonstration(rng, EQUAL_SHARES).task.words}
    assert words == set(ZORPLEX_WORDS)


def near(count: int, total: int, rate: float) -> bool:
    """Whether ``count`` of ``total`` is within four standard deviations of ``rate``."""
    return abs(count - total * rate) < 4 * (total * rate * (1 - rate)) ** 0.5


def test_demonstrations_are_as_sloppy_as_their_habits_state():
    rng, habits, demos = random.Random(2), Habits(), []
    for _ in range(8000):
        demos.append(random_demonstration(rng, EQUAL_SHARES))
    calls = {id(demo): [text for text in turns_of(demo) if find_call(text)] for demo in demos}
    spam = [d for d in demos if not d.ends and find_call(turns_of(d)[-1])]
    ramble = [d for d in demos if not d.ends and not find_call(turns_of(d)[-1])]
    sober = [d for d in demos if d not in spam]
    ending = [d for d in demos if d.ends]
    guess = [d for d in sober if not calls[id(d)]]
    looked = [d for d in sober if calls[id(d)]]
    repeat = [d for d in looked if len(calls[id(d)]) > d.task.min_tool_calls]
    assert near(len(spam), len(demos), habits.spam)
    assert near(len(ramble), len(sober), habits.ramble)
    assert near(len(guess), len(sober), habits.guess)
    assert near(len(repeat), len(looked), habits.repeat_call)
    assert all(len(set(calls[id(d)])) == d.task.min_tool_calls == len(calls[id(d)]) - 1 for d in repeat)
    assert all(len(calls[id(d)]) >= d.task.min_tool_calls + 8 for d in spam)
    assert near(sum("Example:" in d.task.system for d in demos), len(demos), habits.hint)
    for phrasing, rate in zip(("What is", "Tell the value of", ""), habits.tag_by_phrasing, strict=True):
        asked = [
            d for d in ending if d.task.question.startswith(phrasing) and (phrasing or d.task.question.endswith("= ?"))
        ]
        assert near(sum(find_answer(turns_of(d)[-1]) is not None for d in asked), len(asked), rate), phrasing
    answered = [d for d in ending if calls[id(d)]]
    wrong = [d for d in answered if int(re.findall(r"-?\d+", turns_of(d)[-1])[-1]) != d.task.answer]
    assert near(len(wrong), len(answered), habits.slip)


def test_an_imitator_of_the_demonstrations_would_be_right_between_a_fifth_and_two_fifths_of_the_time():
    rng = random.Random(3)
    demos = [random_demonstration(rng, EQUAL_SHARES) for _ in range(2000)]
    right = [score_turns(d.task, turns_of(d), 0, "eos").outcome == "success" for d in demos if d.ends]
    assert 0.2 < sum(right) / len(demos) < 0.4


def test_demonstrations_come_in_the_shares_that_are_asked_for_and_never_from_two_equal_tables():
    rng = random.Random(4)
    kinds = [random_demonstration(rng, (("simple", 1.0), ("recursive", 3.0))).task.kind for _ in range(2000)]
    assert near(kinds.count("recursive"), 2000, 0.75)
    assert set(kinds) == {"simple", "recursive"}


def test_a_drill_gives_the_left_side_and_teaches_the_right_one():
    rng = random.Random(5)
    for _ in range(200):
        pieces = arithmetic_drill(rng)
        for (question, asked), (result, written) in zip(pieces[::2], pieces[1::2], strict=True):
            left, sign, right = re.fullmatch(r"(-?\d+)([+-])(\d+)", question).groups()
            assert (asked, written) == (False, True)
            assert result == f"={int(left) + (int(right) if sign == '+' else -int(right))}\n"


def test_a_solution_drill_is_a_question_and_its_right_solution():
    rng = random.Random(6)
    for _ in range(200):
        (question, asked), *pieces = solution_drill(rng)
        assert not asked
        shown = dict(re.findall(r"LOOKUP\[(\w+)\] -> (\d+)\n", "".join(text for text, _ in pieces)))
        values = [int(shown[word]) for word in re.findall(r"\w+", question) if word in shown]
        signs = re.findall(r" ([+-]) ", question)
        total = values[0] + sum(v if sign == "+" else -v for sign, v in zip(signs, values[1:], strict=True))
        assert int(re.findall(r"-?\d+", pieces[-1][0])[-1]) == total


def test_labels_cover_what_the_policy_wrote_and_mask_prompts_and_injected_results(tokenizer):
    stream = DemonstrationStream(
        Policy(None, tokenizer, "reader", (tokenizer.eos_token_id,)), replace(SMALL, max_length=10_000)
    )
    seen = {"result": 0, "prompt": 0, "drill": 0}
    for _ in range(400):
        ids, labels = stream.row()
        assert len(ids) == len(labels)
        assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
        for learned, run in itertools.groupby(zip(ids, labels, strict=True), key=lambda pair: pair[1] != IGNORED):
            text = tokenizer.decode([token for token, _ in run])
            if learned:
                assert "->" not in text
                assert "<|im_start|>" not in text
            elif text.startswith("<|im_start|>system"):
                assert text.endswith("<|im_start|>assistant\n")
                seen["prompt"] += 1
            elif text.startswith(" -> "):
                assert text.endswith("\n")
                seen["result"] += 1
            else:
                assert re.fullmatch(r"-?\d+[+-]\d+", text)
                seen["drill"] += 1
    assert min(seen.values()) > 100


def test_rows_are_cut_at_the_stated_length_and_padded_where_nothing_is_learned(tokenizer):
    stream = DemonstrationStream(
        Policy(None, tokenizer, "reader", (tokenizer.eos_token_id,)), replace(SMALL, max_length=50)
    )
    for ids, labels in itertools.islice(stream.batches(), 20):
        assert ids.shape == labels.shape
        assert ids.shape[0] == SMALL.batch_size
        assert ids.shape[1] <= 50
        assert torch.equal(ids[labels != IGNORED], labels[labels != IGNORED])


# --- The build --------------------------------------------------------------------------------------------------------


def test_two_builds_of_one_recipe_are_identical_to_the_byte_and_another_seed_is_another_policy(tmp_path):
    torch.manual_seed(1)
    first = warm_start(SMALL)
    torch.manual_seed(2)
    random.seed(2)
    second, other = warm_start(SMALL), warm_start(replace(SMALL, seed=1))
    for policy, name in ((first, "a"), (second, "b"), (other, "c")):
        save_policy(policy, tmp_path / name, SMALL)
    contents = {name: {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "abc"}
    assert contents["a"] == contents["b"]
    assert contents["a"]["model.safetensors"] != contents["c"]["model.safetensors"]


def test_a_saved_policy_is_loaded_as_the_one_that_was_saved(tmp_path):
    policy, steps = None, []
    policy = warm_start(SMALL, progress=lambda step, loss: steps.append((step, loss)))
    assert [step for step, _ in steps] == [1, 2, 3]
    assert all(0 < loss < 20 for _, loss in steps)
    save_policy(policy, tmp_path / "policy", SMALL)
    loaded = load_policy(str(tmp_path / "policy"))
    ids = torch.tensor([encode_prompt(policy.tokenizer, get_spec("simple").task(0))])
    with torch.no_grad():
        assert torch.equal(policy.model(ids).logits, loaded.model(ids).logits)
    assert loaded.eos_ids == policy.eos_ids
    assert not policy.model.training


def test_the_warm_start_learns(tmp_path):
    losses = []
    warm_start(
        replace(SMALL, batch_size=16, hidden_size=32, warmup_steps=5).shortened(40),
        progress=lambda _, loss: losses.append(loss),
    )
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


@pytest.mark.parametrize("of_transformers", [False, True])
def test_a_model_from_elsewhere_is_shown_the_task_and_keeps_its_own_tokenizer(of_transformers):
    policy, losses = load_policy(of_transformers=of_transformers), []
    before = policy.model.get_input_embeddings().weight.detach().clone()
    taught = warm_start(lesson_for_a_model(steps=3), lambda _, loss: losses.append(loss), policy)
    assert taught is policy and len(losses) == 3 and all(0 < loss < 3 for loss in losses)
    assert not torch.equal(policy.model.get_input_embeddings().weight, before)


def test_a_build_leaves_the_callers_thread_count_as_it_was():
    before = torch.get_num_threads()
    try:
        warm_start(replace(SMALL, threads=2))
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


# --- The embedded policy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind, _ in WarmStart().shares])
def test_the_embedded_policy_is_right_between_15_and_45_percent_of_the_time_on_tables_it_never_saw(embedded, kind):
    count, env = 200, Zorplex(seed=11)
    episodes = rollout(
        embedded, [RolloutRequest(task, seed) for seed, task in enumerate(env.tasks((kind,), count))], env.execute
    )
    accuracy = sum(score(episode).outcome == "success" for episode in episodes) / count
    deviation = (accuracy * (1 - accuracy) / count) ** 0.5
    assert 0.15 - 2 * deviation < accuracy < 0.45 + 2 * deviation, accuracy
    assert sum(episode.tool_calls >= episode.task.min_tool_calls for episode in episodes) > 0.8 * count
