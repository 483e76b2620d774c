"""The tasks: pure functions of what names them, split without overlap, solvable by tools alone in
the stated calls."""

import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import TOOL_NAMES
from zorplex_rl.task.specs import (
    DIFFICULTIES,
    HELD_OUT_WORDS,
    MAX_REDIRECTS,
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
SEEDS = range(1000)


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
            assert solve(task.question, spec.tools, partial(spec.run, task)) == (task.answer, task.min_tool_calls), task


def test_the_stated_calls_of_a_solver_all_succeed_and_the_last_gives_a_value():
    for (kind, difficulty), seed in itertools.product(EVERY_SPEC, range(20)):
        spec = get_spec(kind, seed, difficulty)
        task = spec.task(seed)
        results = [spec.run(task, call) for call in spec.calls_needed(task)]
        assert len(results) == task.min_tool_calls
        assert not any(result.startswith("ERROR") for result in results)
        assert results[-1].isdigit()


def test_a_task_is_a_pure_function_of_seed_kind_difficulty_split_and_index():
    for kind, difficulty in EVERY_SPEC:
        spec = get_spec(kind, 7, difficulty)
        forwards = [spec.task(index, split) for index in range(10) for split in SPLITS]
        again = get_spec(kind, 7, difficulty)
        backwards = [again.task(index, split) for index in reversed(range(10)) for split in reversed(SPLITS)]
        assert forwards == backwards[::-1]
        assert len({task.question for task in forwards}) > 5
        assert all((t.kind, t.difficulty) == (kind, difficulty) for t in forwards)


def test_generate_task_walks_through_the_indices():
    spec = get_spec("compositional", 3)
    assert [spec.generate_task() for _ in range(5)] == [get_spec("compositional", 3).task(index) for index in range(5)]
    assert spec.generate_task("held_out").split == "held_out"


def test_another_process_with_another_hash_seed_draws_the_same_tasks():
    drawn = "(t := get_spec(k, 5).task(i, s), t.table, t.keys, t.redirects)"
    loops = "for k in TASK_SPECS for i in range(5) for s in ('train', 'held_out')"
    code = f"from zorplex_rl.task.specs import *; print([{drawn} {loops}])"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    here = [
        (t := get_spec(kind, 5).task(index, split), t.table, t.keys, t.redirects)
        for kind in TASK_SPECS
        for index in range(5)
        for split in SPLITS
    ]
    assert runs[0].strip() == str(here)


@pytest.mark.parametrize(("kind", "difficulty"), EVERY_SPEC)
def test_what_is_held_out_shares_no_word_with_training_in_question_table_keys_or_redirects(kind, difficulty):
    spec = get_spec(kind, 0, difficulty)
    for split, own, other in (("train", TRAINING_WORDS, HELD_OUT_WORDS), ("held_out", HELD_OUT_WORDS, TRAINING_WORDS)):
        for task in (spec.task(index, split) for index in range(200)):
            assert set(task.words) <= set(own) == set(task.table)
            assert not set(re.findall(r"[a-z]+", task.question)) & set(other)
            assert {*task.keys, *task.redirects, *task.redirects.values()} <= set(own)


def test_the_two_splits_halve_the_words():
    assert sorted(TRAINING_WORDS + HELD_OUT_WORDS) == sorted(ZORPLEX_WORDS)
    assert len(TRAINING_WORDS) == len(HELD_OUT_WORDS)


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_two_hundred_tasks_hold_at_least_190_different_pairs_of_question_and_table(kind):
    for seed, split in itertools.product(range(5), SPLITS):
        tasks = [get_spec(kind, seed).task(index, split) for index in range(200)]
        facts = {(t.question, *map(repr, (t.table, t.keys, t.redirects))) for t in tasks}
        assert len(facts) >= 190
        assert len({repr(task.table) for task in tasks}) >= 190


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_no_constant_answer_is_right_for_more_than_six_percent_even_if_it_is_chosen_afterwards(kind):
    for seed, split in itertools.product(range(20), SPLITS):
        answers = Counter(get_spec(kind, seed).task(index, split).answer for index in range(200))
        assert max(answers.values()) <= 0.06 * 200, (seed, split)


def test_every_value_is_asked_for_once_in_each_block_of_indices():
    for kind, split in itertools.product(("simple", "multi_step", "recursive"), SPLITS):
        spec = get_spec(kind, 4)
        for start in (0, len(VALUES), 5 * len(VALUES)):
            assert sorted(spec.task(start + offset, split).answer for offset in range(len(VALUES))) == list(VALUES)


def test_the_words_that_redirects_end_in_are_spread_over_all_words():
    for split, words in (("train", TRAINING_WORDS), ("held_out", HELD_OUT_WORDS)):
        tasks = [get_spec("recursive", 0).task(index, split) for index in range(800)]
        ends = Counter(chain_of(task.words[0], task.redirects)[-1] for task in tasks)
        assert set(ends) == set(words)
        assert max(ends.values()) < 2 * 800 / len(words)
        assert Counter(len(chain_of(task.words[0], task.redirects)) for task in tasks).keys() == {1, 2, 3, 4}


def test_no_word_of_a_task_is_pointed_to_by_two_others():
    for seed in range(100):
        assert max(Counter(make_redirects(seed).values()).values()) == 1


def test_an_unknown_split_is_refused_instead_of_searched_for_forever():
    def give_up(*_: object) -> None:
        raise TimeoutError("task() searched for a split that does not exist")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(ValueError, match="split is 'test'; expected one of train, held_out"):
            get_spec("simple").task(0, "test")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_every_word_of_a_thousand_seeds_resolves_within_the_redirect_bound():
    deepest = 0
    for seed in SEEDS:
        redirects = make_redirects(seed)
        for word in ZORPLEX_WORDS:
            steps, here = 0, word
            while here in redirects:
                here, steps = redirects[here], steps + 1
                assert steps <= MAX_REDIRECTS, (seed, word)
            deepest = max(deepest, steps)
    assert deepest == MAX_REDIRECTS


def test_some_words_redirect_and_some_have_a_value_in_every_task():
    for index in range(100):
        task = get_spec("recursive").task(index)
        assert {len(chain_of(word, task.redirects)) for word in task.table} == set(range(1, MAX_REDIRECTS + 2))


def test_tables_and_keys_are_distinct_within_a_seed_and_differ_between_seeds():
    for make, allowed in ((make_zorplex_table, set(range(1, 100))), (make_keys, {f"K{n}" for n in range(10, 100)})):
        tables = [make(seed) for seed in range(50)]
        assert all(set(table) == set(ZORPLEX_WORDS) and set(table.values()) <= allowed for table in tables)
        assert all(len(set(table.values())) == len(ZORPLEX_WORDS) for table in tables)
        assert len({tuple(table.items()) for table in tables}) == 50
        assert make(3) == make(3)


def test_every_task_has_a_table_of_distinct_values_of_its_own():
    for (kind, difficulty), split in itertools.product(EVERY_SPEC, SPLITS):
        tasks = [get_spec(kind, 9, difficulty).task(index, split) for index in range(20)]
        assert len({tuple(task.table.items()) for task in tasks}) == 20
        for task in tasks:
            assert len(set(task.table.values())) == len(task.table)
            assert set(task.table.values()) <= set(VALUES)


@pytest.mark.parametrize(
    "other", [(0, "compositional", "medium", "train", 3), (1, "compositional", "easy", "train", 3),
              (0, "simple", "easy", "train", 3), (0, "compositional", "easy", "held_out", 3),
              (0, "compositional", "easy", "train", 4)],
)  # fmt: skip
def test_each_part_of_what_names_a_task_changes_its_table(other):
    def values(seed, kind, difficulty, split, index):
        return list(get_spec(kind, seed, difficulty).task(index, split).table.values())

    assert values(*other) != values(0, "compositional", "easy", "train", 3)


@pytest.mark.parametrize(("kind", "drawn"), [("multi_step", "keys"), ("recursive", "redirects")])
def test_every_task_has_keys_and_redirects_of_its_own(kind, drawn):
    for split in SPLITS:
        tasks = [get_spec(kind, 9).task(index, split) for index in range(20)]
        assert len({tuple(getattr(task, drawn).items()) for task in tasks}) == 20


def test_a_task_can_be_sent_to_another_process_and_stands_for_itself_there():
    spec = get_spec("multi_step", 2)
    task = spec.task(3, "held_out")
    there = pickle.loads(pickle.dumps(task))
    assert there == task
    assert hash(there) == hash(task)
    assert [spec.run(there, call) for call in spec.calls_needed(there)][-1] == str(task.answer)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_compositional_answers_are_negative_as_well_as_positive(difficulty):
    tasks = [get_spec("compositional", 0, difficulty).task(index) for index in range(200)]
    assert min(task.answer for task in tasks) < 0 < max(task.answer for task in tasks)
    assert {len(task.words) for task in tasks} == {DIFFICULTIES[difficulty]}
    assert all(len(set(task.words)) == len(task.words) for task in tasks)


def test_every_phrasing_is_used():
    for kind in TASK_SPECS:
        spec = get_spec(kind)
        questions = [spec.task(index).question for index in range(60)]
        for phrasing in spec.phrasings:
            prefix, suffix = phrasing.split("{}")
            assert any(q.startswith(prefix) and q.endswith(suffix) for q in questions), phrasing


@pytest.mark.parametrize(
    ("kind", "call", "result"),
    [
        ("simple", "LOOKUP[nope]", "ERROR: unknown nope"),
        ("simple", "LOOKUP[]", "ERROR: unknown "),
        ("simple", "LOOKUP[BLIP]", "ERROR: unknown BLIP"),
        ("simple", "GETKEY[blip]", "ERROR: no tool GETKEY"),
        ("recursive", "FETCH[K10]", "ERROR: no tool FETCH"),
        ("recursive", "LOOKUP[nope]", "ERROR: unknown nope"),
        ("multi_step", "LOOKUP[blip]", "ERROR: no tool LOOKUP"),
        ("multi_step", "FETCH[blip]", "ERROR: unknown blip"),
        ("multi_step", "GETKEY[K10]", "ERROR: unknown K10"),
        ("simple", "hello", "ERROR: 'hello' is not a tool call"),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_wrong(kind, call, result):
    spec = get_spec(kind)
    assert spec.run(spec.task(0), call) == result


def test_multi_step_reveals_a_value_only_for_the_words_own_key():
    spec = get_spec("multi_step", 4)
    task = spec.task(0)
    for word, value in task.table.items():
        assert spec.run(task, f"FETCH[{spec.run(task, f'GETKEY[{word}]')}]") == str(value)


def test_the_prompt_names_exactly_the_tools_of_its_kind_and_no_value():
    for kind in TASK_SPECS:
        spec = get_spec(kind)
        prompt = spec.get_system_prompt()
        assert {name for name in TOOL_NAMES if name in prompt} == set(spec.tools)
        assert "[ANSWER]" in prompt
        assert not re.search(r"[0-9]", prompt)
        assert spec.task(0).system == prompt
        hinted = get_spec(kind, hints=True)
        assert hinted.task(0).system.startswith(f"{prompt}\nExample: ")
        assert hinted.get_system_prompt(True).startswith(f"{prompt}\nExample: ")
        assert hinted.task(0).question == spec.task(0).question


def example_lines(task: Task) -> tuple[str, list[tuple[str, str]], int]:
    """(question, [(call, result)], answer) of the worked example in the hint."""
    example = task.system.split("Example: ")[1]
    question, *_ = example.splitlines()
    return (
        question,
        re.findall(r"^(\w+\[\w+\]) -> (.+)$", example, re.MULTILINE),
        int(re.search(r"\[ANSWER\] (-?\d+)$", example)[1]),
    )


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_no_training_prompt_names_a_held_out_word_not_even_in_its_hint(kind):
    spec = get_spec(kind, 0, hints=True)
    for index in range(40):
        task = spec.task(index)
        assert not set(re.findall(r"[a-z]+", f"{task.system} {task.question}")) & set(HELD_OUT_WORDS)


@pytest.mark.parametrize(("kind", "split"), list(itertools.product(TASK_SPECS, SPLITS)))
def test_no_call_in_a_hint_shows_the_result_that_the_task_gives(kind, split):
    spec = get_spec(kind, 0, hints=True)
    for task in (spec.task(index, split) for index in range(500)):
        for call, result in example_lines(task)[1]:
            assert spec.run(task, call) != result, (task, call, result)


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_no_answer_in_a_hint_is_the_true_answer_to_its_question(kind):
    spec = get_spec(kind, 0, hints=True)
    for task in map(spec.task, range(500)):
        question, _, answer = example_lines(task)
        assert answer != solve(question, spec.tools, partial(spec.run, task))[0], task


@pytest.mark.parametrize(("kind", "split"), list(itertools.product(TASK_SPECS, SPLITS)))
def test_the_worked_example_of_a_hint_is_consistent_in_itself(kind, split):
    spec = get_spec(kind, 0, hints=True)
    for task in (spec.task(index, split) for index in range(500)):
        question, lines, answer = example_lines(task)
        value, calls = solve(question, TASK_SPECS[kind].tools, dict(lines).__getitem__)
        assert (value, calls) == (answer, len(lines))
        assert all(int(result) in VALUES for _, result in lines if result.isdigit()), task


@pytest.mark.parametrize("kind", ["nope", "", "Simple", "mix"])
def test_an_unknown_task_is_one_sentence_that_names_the_known_ones(kind, wording):
    with pytest.raises(ValueError, match="task is ") as refused:
        get_spec(kind)
    wording(refused.value, f"task '{kind}'")


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_an_unknown_difficulty_is_one_sentence_that_names_the_known_ones(kind, wording):
    with pytest.raises(ValueError, match="difficulty is ") as refused:
        get_spec(kind, difficulty="nightmare")
    wording(refused.value)
