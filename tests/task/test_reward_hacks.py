"""What a policy earns that would rather not do the task. A perfect solver earns 1.2 an episode;
each hack here says what it gets instead."""

from collections import Counter
from statistics import fmean

import pytest

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import find_call
from zorplex_rl.task.rewards import score_turns
from zorplex_rl.task.specs import TASK_SPECS, VALUES, get_spec

SPLITS = ("train", "held_out")


def tasks_of(kind: str, split: str = "held_out", seed: int = 0, count: int = 200) -> list[Task]:
    spec = get_spec(kind, seed)
    return [spec.task(index, split) for index in range(count)]


def reward(task: Task, *turns: str, finish: str = "eos") -> float:
    """What the text earns, where each turn but the last ends in a call."""
    return score_turns(
        task, list(turns), sum(find_call(turn) is not None for turn in turns), finish
    ).reward


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASK_SPECS)
def test_the_best_constant_of_the_training_answers_earns_a_quarter_of_a_point_at_most(kind):
    for seed in range(20):
        training = Counter(task.answer for task in tasks_of(kind, "train", seed))
        constant = training.most_common(1)[0][0]
        for split in SPLITS:
            tasks = tasks_of(kind, split, seed)
            earned = [reward(task, f"[ANSWER] {constant}") for task in tasks]
            assert sum(value > 1 for value in earned) / len(earned) <= 0.06
            # 0.2 for the format, and 1.0 for one in forty.
            assert fmean(earned) <= 0.2 + 0.06


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_an_answer_before_any_call_earns_no_more_than_a_guess_whatever_the_calls_say_later(kind):
    for task in tasks_of(kind):
        guess = task.answer + 1
        calls = get_spec(kind).calls_needed(task)
        assert reward(task, f"[ANSWER] {guess}\n", finish="answer") == pytest.approx(0.2)
        assert reward(task, f"[ANSWER] {guess} {calls[0]}", *calls[1:], "") == pytest.approx(0.2)


def test_repeated_tags_earn_what_the_last_one_earns():
    (task,) = tasks_of("simple", count=1)
    every_value = " ".join(f"[ANSWER] {value}" for value in VALUES)
    assert reward(task, every_value) == pytest.approx(1.2 if task.answer == VALUES[-1] else 0.2)
    assert reward(task, f"[ANSWER] {task.answer} [ANSWER] {task.answer + 1}") == pytest.approx(0.2)
    hits = [reward(task, every_value) > 1 for task in tasks_of("simple")]
    assert sum(hits) / len(hits) == 1 / len(VALUES)


@pytest.mark.parametrize("form", ["LOOKUP[{}]", "[ANSWER] LOOKUP[{}]", "GETKEY[{}]"])
def test_a_call_with_the_answer_inside_earns_nothing_and_calls_beyond_the_needed_cost(form):
    for task in tasks_of("simple", count=20):
        call = form.format(task.answer)
        assert reward(task, call, "") == 0.0
        assert reward(task, *[call] * 5, "", finish="turns") == pytest.approx(-0.4)
