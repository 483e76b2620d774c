"""The tasks: pure functions of what names them, split without overlap, solvable by tools alone in
the stated calls."""

import itertools
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

from zorplex_rl.task.parser import TOOL_NAMES
from zorplex_rl.task.specs import (
    DIFFICULTIES,
    HELD_OUT_WORDS,
    LONGEST_CHAIN,
    TASK_SPECS,
    TRAINING_WORDS,
    VALUES,
    ZORPLEX_WORDS,
    chain_of,
    get_spec,
    make_keys,
    make_redirects,
    make_zorplex_table,
)

SPLITS = ("train", "held_out")
EVERY_SPEC = [(kind, difficulty) for kind in TASK_SPECS for difficulty in DIFFICULTIES]


def solve(question: str, tools: tuple[str, ...], run) -> tuple[int, int]:
    """A perfect solver: from the question and the tools alone to (answer, number of calls)."""
    calls = 0

    def ask(name: str, argument: str) -> str:
        nonlocal calls
        calls += 1
        return run(f"{name}[{argument}]")

    def value_of(word: str) -> int:
        if "GETKEY" in tools:
            return int(ask("FETCH", ask("GETKEY", word)))
        while (result := ask("LOOKUP", word)).startswith("SEE: "):
            word = result.removeprefix("SEE: ")
        return int(result)

    total, sign = 0, 1
    for part in re.findall(r"[a-z]+|[+-]", re.sub(r"What|is|Tell|the|value|of", " ", question)):
        if part in "+-":
            sign = 1 if part == "+" else -1
        else:
            total += sign * value_of(part)
    return total, calls


def test_a_perfect_solver_gets_every_answer_in_exactly_the_stated_number_of_calls():
    for (kind, difficulty), seed, split in itertools.product(EVERY_SPEC, range(6), SPLITS):
        spec = get_spec(kind, seed, difficulty)
        for index in range(12):
            task = spec.task(index, split)
            assert solve(task.question, spec.tools, partial(spec.run, task)) == (
                task.answer,
                task.min_tool_calls,
            ), task
            results = [spec.run(task, call) for call in spec.calls_needed(task)]
            assert len(results) == task.min_tool_calls and results[-1].isdigit()
            assert not any(result.startswith("ERROR") for result in results)


def test_a_task_is_a_pure_function_of_seed_kind_difficulty_split_and_index():
    for kind, difficulty in EVERY_SPEC:
        spec = get_spec(kind, 7, difficulty)
        forwards = [spec.task(index, split) for index in range(10) for split in SPLITS]
        again = get_spec(kind, 7, difficulty)
        backwards = [
            again.task(index, split) for index in reversed(range(10)) for split in reversed(SPLITS)
        ]
        assert forwards == backwards[::-1]
        assert len({task.question for task in forwards}) > 5
        assert all((t.kind, t.difficulty) == (kind, difficulty) for t in forwards)


@pytest.mark.slow
def test_another_process_with_another_hash_seed_draws_the_same_tasks():
    drawn = "[(t := get_spec(k, 5).task(i, s), t.table, t.keys, t.redirects) for k in TASK_SPECS for i in range(5) for s in SPLITS]"
    program = f"from zorplex_rl.task.specs import *; SPLITS = {SPLITS}; print({drawn})"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == str(eval(drawn))


@pytest.mark.parametrize(("kind", "difficulty"), EVERY_SPEC)
def test_what_is_held_out_shares_no_word_with_training_in_question_table_keys_or_redirects(
    kind, difficulty
):
    spec = get_spec(kind, 0, difficulty)
    for split, own, other in (
        ("train", TRAINING_WORDS, HELD_OUT_WORDS),
        ("held_out", HELD_OUT_WORDS, TRAINING_WORDS),
    ):
        for task in (spec.task(index, split) for index in range(200)):
            assert set(task.words) <= set(own) == set(task.table)
            assert not set(re.findall(r"[a-z]+", task.question)) & set(other)
            assert {*task.keys, *task.redirects, *task.redirects.values()} <= set(own)


def test_every_value_is_asked_for_once_in_each_block_of_indices():
    for kind, split in itertools.product(("simple", "multi_step", "recursive"), SPLITS):
        spec = get_spec(kind, 4)
        for start in (0, len(VALUES), 5 * len(VALUES)):
            assert sorted(
                spec.task(start + offset, split).answer for offset in range(len(VALUES))
            ) == list(VALUES)


def test_every_word_is_asked_for_once_in_each_block_of_indices_and_in_another_order_each_time():
    for kind, words in itertools.product(
        ("simple", "multi_step"), (TRAINING_WORDS, HELD_OUT_WORDS)
    ):
        split = SPLITS[words == HELD_OUT_WORDS]
        blocks = set()
        for start in (0, len(words), 5 * len(words)):
            tasks = [get_spec(kind, 4).task(start + each, split) for each in range(len(words))]
            asked_for = tuple(word for task in tasks for word in task.words)
            assert sorted(asked_for) == sorted(words)
            blocks.add(asked_for)
        assert len(blocks) == 3


def test_redirects_are_chains_of_every_length_up_to_the_bound_and_tables_and_keys_are_distinct():
    for seed in range(300):
        redirects = make_redirects(seed, ZORPLEX_WORDS)
        assert max(Counter(redirects.values()).values()) == 1
        assert {len(chain_of(word, redirects)) for word in ZORPLEX_WORDS} == set(
            range(1, LONGEST_CHAIN + 1)
        )
        for made, allowed in (
            (make_zorplex_table(seed), VALUES),
            (make_keys(seed, ZORPLEX_WORDS), [f"K{n}" for n in range(10, 100)]),
        ):
            assert set(made) == set(ZORPLEX_WORDS) and set(made.values()) <= set(allowed)
            assert len(set(made.values())) == len(ZORPLEX_WORDS)


def test_a_task_can_be_sent_to_another_process_and_stands_for_itself_there():
    spec = get_spec("multi_step", 2)
    task = spec.task(3, "held_out")
    there = pickle.loads(pickle.dumps(task))
    assert there == task
    assert hash(there) == hash(task)
    assert [spec.run(there, call) for call in spec.calls_needed(there)][-1] == str(task.answer)


@pytest.mark.parametrize(
    ("kind", "call", "result"),
    [
        ("simple", "LOOKUP[nope]", "ERROR: unknown nope"),
        ("simple", "GETKEY[blip]", "ERROR: no tool GETKEY"),
        ("recursive", "FETCH[K10]", "ERROR: no tool FETCH"),
        ("multi_step", "LOOKUP[blip]", "ERROR: no tool LOOKUP"),
        ("multi_step", "FETCH[blip]", "ERROR: unknown blip"),
        ("multi_step", "GETKEY[K10]", "ERROR: unknown K10"),
        ("simple", "hello", "ERROR: 'hello' is not a tool call"),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_wrong(kind, call, result):
    spec = get_spec(kind)
    assert spec.run(spec.task(0), call) == result


def test_the_prompt_names_exactly_the_tools_of_its_kind_and_no_value():
    for kind, spec in TASK_SPECS.items():
        task = get_spec(kind).task(0)
        assert {name for name in TOOL_NAMES if name in task.system} == set(spec.tools)
        assert "[ANSWER]" in task.system and not re.search(r"[0-9]", task.system)


@pytest.mark.parametrize(("kind", "difficulty"), EVERY_SPEC)
def test_the_wordings_of_worked_examples_take_turns_and_the_last_is_what_is(kind, difficulty):
    for seed, count in itertools.product(range(5), range(1, 5)):
        spec = get_spec(kind, seed, difficulty)
        starts = [question.split()[0] for question, _ in spec.examples(count)]
        assert len({*starts[-3:]}) == min(count, 3)
        assert starts[-1] == "What"


def test_four_recursive_tasks_in_a_row_ask_for_chains_of_one_to_four_words():
    spec = get_spec("recursive", 712)
    for split in SPLITS:
        tasks = [spec.task(index, split) for index in range(8)]
        assert [len(spec.calls_needed(task)) for task in tasks] == [1, 2, 3, 4] * 2


def test_the_chains_of_worked_examples_grow_from_one_word_to_the_longest():
    for seed in range(40):
        answers = [answer for _, answer in get_spec("recursive", seed).examples(3)]
        calls = [answer.count("LOOKUP") for answer in answers]
        assert calls == sorted(calls)
        assert calls[0] == 1
        assert calls[-1] >= 3


@pytest.mark.parametrize(("kind", "difficulty"), EVERY_SPEC)
def test_no_word_of_the_worked_examples_has_two_values(kind, difficulty):
    for seed in range(40):
        told: dict[str, set[str]] = {}
        for _, answer in get_spec(kind, seed, difficulty).examples(4):
            for call, result in re.findall(r"(\w+\[\w+\]) -> (.+)", answer):
                told.setdefault(call, set()).add(result)
        assert {call: results for call, results in told.items() if len(results) > 1} == {}


def test_two_worked_examples_ask_for_different_words():
    for seed in range(40):
        (first, _), (second, _) = get_spec("simple", seed).examples(2)
        assert not {*re.findall(r"[a-z]{3,}", first)} & {*re.findall(r"[a-z]{3,}", second)} - {
            "the",
            "value",
        }
