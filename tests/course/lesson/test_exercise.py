"""Whatever a learner's code does, its exercise says so in one sentence and keeps hints and solution
at hand."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import marimo as mo
import numpy as np
import pytest
import torch

from zorplex_rl.course.lesson import checks, exercise, lesson


def double(x):
    raise NotImplementedError


def check_double(double):
    exercise.expect(double, 3, result=6)


class Solutions:
    check_double = check_double

    def double(x):
        return 2 * x


def said_of(attempt, check=check_double, seconds: float = 2.0) -> str | None:
    before = threading.active_count()
    said = exercise.complaint(check, attempt, seconds)
    assert threading.active_count() <= before, "a stopped check leaves no thread"
    return said


def named(function):
    function.__name__ = "double"
    return function


@named
def loops(x):
    while True:
        x += 1


@named
async def waits_for_ever(x):
    while True:
        await asyncio.sleep(0.01)


@named
def leaves(x):
    sys.exit(3)


@named
def recurses(x):
    return recurses(x)


@named
def divides(x):
    return x / 0


@named
def misspells(x):
    return 2 * y  # noqa: F821


@named
def takes_nothing():
    return 6


@named
def adds(x):
    return x + 1


@pytest.mark.parametrize(
    "attempt", [double, adds, loops, leaves, divides, misspells, takes_nothing]
)
def test_one_sentence_names_the_failing_call(attempt):
    said = said_of(attempt)
    assert "`double" in said and "\n" not in said


def test_a_recursion_without_end_is_said():
    assert said_of(recurses, seconds=5).startswith("`double(3)` raises `RecursionError")


def test_an_attempt_that_waits_for_ever_is_stopped_too():
    assert (
        said_of(waits_for_ever, lambda f: asyncio.run(f(3)), seconds=0.3)
        == "`double(3)` has not returned within 0.3 s"
    )


@pytest.mark.slow
def test_what_cannot_be_stopped_does_not_hold_the_notebook():
    freed = threading.Event()

    def waits_outside_python(x):
        while not freed.wait(30):
            pass

    started = time.monotonic()
    said = exercise.complaint(check_double, waits_outside_python, 0.2)
    assert time.monotonic() - started < 10
    assert "0.2 s" in said
    freed.set()


def test_the_first_argument_is_shown_as_it_was_before_the_call():
    def empties(values):
        values.clear()
        raise ValueError("now what?")

    assert (
        said_of(empties, lambda f: f([1, 2]))
        == '`empties([1, 2])` raises `ValueError: now what?` in line 3, `raise ValueError("now what?")`'
    )


def stub_of(attempt):
    """What a page passes, ``lambda: double``, where ``double`` is the attempt."""
    return eval("lambda: double", {"double": attempt})


def feedback(attempt, **options) -> str:
    return exercise.feedback(stub_of(attempt), Solutions, seconds=0.3, **options).text


@pytest.mark.parametrize(
    "attempt", [double, loops, leaves, divides], ids=lambda attempt: attempt.__code__.co_name
)
def test_hints_and_solution_stay_at_hand_whatever_the_attempt_does(attempt):
    shown = feedback(attempt, level="core", minutes=6, hints=("Think of `x`.", "Multiply."))
    assert 'data-state="open"' in shown and "core · 6 minutes" in shown
    assert shown.count("<details>") == 3
    first, second, solution = (
        shown.index(text) for text in ("Think of", "Multiply.", "A solution")
    )
    assert first < second < solution
    assert shown.index("</details>") > second, "the second hint is inside the first"
    assert "<code>double" in shown


def test_a_solved_exercise_says_so():
    assert "Solved: <code>double</code> passes its check." in feedback(Solutions.double)


def test_a_stub_whose_cell_has_a_syntax_error_keeps_hints_and_solution():
    shown = exercise.feedback(
        eval("lambda: double", {}), Solutions, level="core", hints=("Think.", "Multiply.")
    ).text
    assert (
        "Not yet: <code>double</code> does not exist, because its cell has an error; marimo shows it there."
        in shown
    )
    assert "Multiply." in shown and "A solution" in shown and "double" in shown


def test_what_a_learner_wrote_is_text_on_the_page():
    def breaks(x):
        raise ValueError("`</code><script>f()</script>")

    assert "<script>" not in feedback(breaks)


def average(values, weights):
    """Return the weighted mean; ``average([1.0, 3.0], [1, 1])`` is 2.0."""
    ...


def average_solution(values, weights):
    return (values * weights).sum() / weights.sum()


def draw(random):
    values, weights = ([random.uniform(-2, 2) for _ in range(4)] for _ in range(2))
    return torch.tensor(values, requires_grad=True), torch.tensor(weights).abs() + 0.1


def check_average(average):
    exercise.agree(average, average_solution, draw, gradients=True)


def as_an_array(values, weights):
    return np.float64((values * weights).sum().item() / weights.sum().item())


def detached(values, weights):
    return average_solution(values.detach(), weights)


def ignores_the_weights(values, weights):
    return values.mean()


def pushes_twice(values, weights):
    right = average_solution(values, weights)
    return 2 * right - right.detach()


async def waits(values): ...


class Actor:
    def answer(self): ...


class Endpoint:
    def __init__(self, method):
        self._method = method


@pytest.mark.parametrize("stub", [average, waits, Actor], ids=lambda stub: stub.__name__)
def test_a_body_of_dots_is_still_to_be_written(stub):
    assert exercise.complaint(check_average, stub) == f"`{stub.__name__}` is still to be written"


def test_a_body_that_returns_none_is_an_answer():
    def none_at_all(values, weights):
        if len(values):
            return

    assert "gives `None`, and should give" in exercise.complaint(check_average, none_at_all)


@pytest.mark.parametrize(
    ("attempt", "part"),
    [
        (ignores_the_weights, "`ignores_the_weights([-"),
        (detached, "no gradient flows back to `values`: is it detached?"),
        (as_an_array, "no gradient flows back to `values`"),
        (pushes_twice, "its gradient with respect to `values` is"),
    ],
)
def test_an_answer_is_compared_on_drawn_arguments_and_by_its_gradient(attempt, part):
    assert part in exercise.complaint(check_average, attempt)
    assert exercise.complaint(check_average, average_solution) is None


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        (Fraction(1, 2), 0.5, True),
        (torch.tensor(0.5), 0.5, True),
        (np.array([1, 2]), [1, 2], True),
        (torch.tensor([[1.0], [2.0]]), [[1.0], [2.0]], True),
        (2.0, 2, True),
        (range(3), (0, 1, 2), True),
        (Decimal("0.25"), 0.25, True),
        ({"a": np.float32(0.5)}, {"a": 0.5}, True),
        (10_000_001, 10_000_000, False),
        ([2.0], 2.0, False),
        ([1.0, 2.0], [1.0], False),
        (None, 0, False),
        ("1", 1, False),
        (math.nan, 0.0, False),
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
    ],
)
def test_numbers_of_any_kind_are_compared_by_value(found, expected, equal):
    assert exercise.same(found, expected) is equal


@pytest.mark.parametrize(
    ("found", "expected", "sentence"),
    [
        (16.0, 16, "gives `16.0 (float)`, and should give `16 (int)`"),
        ("a  b", "a b", "gives `'a  b'`, and should give `'a b'`"),
        ([0] * 29 + [1], [0] * 30, "gives `1` at position 29, and should give `0` there"),
        (
            [0] * 29,
            [0] * 30,
            "gives 29 elements, `[0, 0, 0, ...]`, and should give 30 elements, `[0, 0, 0, ...]`",
        ),
        (0.3333333333, 0.3334, "gives `0.3333`, and should give `0.3334`"),
        (1.00000002, 1.00005, "gives `1.0`, and should give `1.00005`"),
        (True, 1, "gives `True`, and should give `1`"),
    ],
)
def test_two_results_that_differ_never_look_alike(found, expected, sentence):
    def check(attempt):
        exercise.agree(
            attempt, lambda x: expected, lambda draw: (1,), whole=isinstance(expected, int)
        )

    assert said_of(named(lambda x: found), check, seconds=5).endswith(sentence)


def test_what_is_raised_is_said_with_the_case_that_the_check_names():
    def check(attempt):
        exercise.case("the second row")
        attempt(object())

    assert said_of(divides, check).startswith(
        "the second row raises `TypeError: unsupported operand"
    )
    assert said_of(divides, check).endswith(" in line 3, `return x / 0`")


def test_the_page_runs_on_the_learners_function_once_it_passes():
    by_the_course = (Solutions.double, "the course's `double`")
    assert exercise.running(stub_of(double), Solutions) == by_the_course
    assert exercise.running(eval("lambda: double", {}), Solutions) == by_the_course, (
        "its cell has an error"
    )
    mine = named(lambda x: x + x)
    assert exercise.running(stub_of(mine), Solutions) == (mine, "your `double`")


def test_a_cell_that_runs_no_longer_says_that_it_waits(monkeypatch):
    cleared = []
    monkeypatch.setattr(mo.output, "clear", lambda: cleared.append(True))
    with pytest.raises(mo.MarimoStopError):
        lesson.wait_for(SimpleNamespace(value=False))
    assert cleared == []
    lesson.wait_for(SimpleNamespace(value=True))
    assert cleared == [True]


def mean_loss(episodes):
    """Return the mean of all losses; of each episode there is a list."""
    ...


def mean_loss_solution(episodes):
    return sum(map(sum, episodes)) / sum(map(len, episodes))


def average_of_averages(episodes):
    return sum(sum(losses) / len(losses) for losses in episodes) / len(episodes)


def draw_episodes(random):
    return (
        [
            [random.uniform(0, 9) for _ in range(random.randint(1, 6))]
            for _ in range(random.randint(1, 5))
        ],
    )


def judged(attempt, **options):
    def check(mean_loss):
        exercise.agree(mean_loss, mean_loss_solution, draw_episodes, **options)

    attempt.__name__ = "mean_loss"
    return exercise.complaint(check, attempt)


def each_by_itself(episodes):
    return average_of_averages(episodes)


def test_of_the_cases_that_fail_the_smallest_is_told(monkeypatch):
    monkeypatch.setattr(checks, "SEARCH_S", 60.0)  # however busy the machine is
    said = judged(each_by_itself)
    shown = said[: said.index(" gives ")]
    assert shown.count("[") == 3 and shown.count(",") == 2, "two episodes, of one and of two losses"
    assert all(len(number) <= 5 for number in re.findall(r"[\d.]+", said)), "four digits"


def test_an_example_written_by_hand_is_told_rather_than_a_drawn_case():
    said = judged(each_by_itself, examples=[([[1.0], [1.0, 1.0]],), ([[1.0], [3.0, 5.0]],)])
    assert said == "`mean_loss([[1.0], [3.0, 5.0]])` gives `2.5`, and should give `3.0`"


MISTAKES = {
    "you took the smallest of all losses": lambda episodes: min(map(min, episodes)),
    "you averaged each episode by itself": average_of_averages,
}


def test_a_mistake_that_is_known_is_said_first():
    said = judged(each_by_itself, examples=[([[1.0], [3.0, 5.0]],)], mistakes=MISTAKES)
    assert (
        said
        == "you averaged each episode by itself. `mean_loss([[1.0], [3.0, 5.0]])` gives `2.5`, and should give `3.0`"
    )
    assert judged(mean_loss_solution, mistakes=MISTAKES) is None


def test_the_other_sign_is_always_known():
    assert judged(lambda episodes: -mean_loss_solution(episodes)).startswith(
        "the sign is the other one. `mean_loss([["
    )
    said = judged(lambda episodes: -1.0, examples=[([[1.0]],)])
    assert said == "`mean_loss([[1.0]])` gives `-1.0`, and should give `1.0`", "in one case only"


def test_what_only_looks_like_a_known_mistake_in_one_case_is_not_called_one():
    def right_up_to_two(episodes):
        return average_of_averages(episodes) if len(episodes) > 2 else 0.0

    assert judged(right_up_to_two, mistakes=MISTAKES).startswith("`mean_loss(")


def test_a_mistake_may_be_one_that_raises_or_has_another_gradient():
    def empty(episodes):
        return [][len(episodes)]

    def out_of_range(episodes):
        return episodes[99]

    said = judged(empty, mistakes={"you looked behind the last episode": out_of_range})
    assert re.fullmatch(
        r"you looked behind the last episode. `mean_loss\(.*\)` raises `IndexError`", said
    )

    def detaches(values, weights):
        return detached(values, weights)

    def check(average):
        known = {"you cut the gradient off": detached}
        exercise.agree(average, average_solution, draw, gradients=True, mistakes=known)

    assert exercise.complaint(check, detaches).startswith(
        "you cut the gradient off. The result of `detaches("
    )


def test_a_wrong_result_of_one_call_may_be_known_too():
    def check(double):
        exercise.expect(double, 3, result=6, mistakes={"you squared it": 9})

    assert (
        said_of(named(lambda x: x * x), check)
        == "you squared it. `double(3)` gives `9`, and should give `6`"
    )
    assert said_of(named(lambda x: x + 1), check) == "`double(3)` gives `4`, and should give `6`"


async def forgets_to_wait(x):
    return 2 * x


@pytest.mark.parametrize(
    ("attempt", "end"),
    [
        (lambda x: [].append(x), "gives `None`, and should give `6`: is a `return` missing?"),
        (forgets_to_wait, "gives `<coroutine>`, not its result: is an `await` missing?"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_usual_mistakes_need_no_name(attempt, end):
    assert said_of(named(attempt)).endswith(end)


def test_of_lists_in_another_order_only_that_is_told():
    def check(attempt):
        exercise.expect(attempt, 3, result=(1.0, 2.0, 3.0))

    assert said_of(named(lambda x: [3.0, 1.0, 2.0]), check).endswith(": the order is another one")
    assert "order" not in said_of(named(lambda x: [3.0, 1.0, 1.0]), check)


@pytest.mark.parametrize(
    "found",
    [(1, 2), np.array([1, 2]), torch.tensor([1.0, 2.0]), map(int, "12"), {"1": 0, "2": 0}.keys()],
)
def test_whatever_a_loop_goes_through_may_stand_for_a_list(found):
    wanted = ["1", "2"] if isinstance(found, type({}.keys())) else [1, 2]
    assert said_of(named(lambda x: found), lambda f: exercise.expect(f, 1, result=wanted)) is None


def test_a_sentence_shows_no_batch_and_no_insides():
    class Ship:
        pass

    def check(attempt):
        exercise.expect(attempt, torch.rand(40, 40), [Ship()] * 30, result=[1.0] * 300)

    said = said_of(named(lambda x, ships: [1.0] * 299 + [2.0]), check)
    assert said.endswith("gives `2.0` at position 299, and should give `1.0` there")
    assert "0x" not in said and "Ship" in said and len(said) < 300


def test_what_python_says_of_an_object_is_its_class():
    class Reply:
        def __repr__(self):
            return "<Reply pending name='Task-1' coro=<Mailbox._answer() running at nb01.py:85>>"

    def gives_it_away(x):
        raise TypeError(f"a coroutine was expected, got {Reply()!r}")

    assert "got <Reply>`" in said_of(named(gives_it_away))


def test_of_a_check_that_is_repeated_the_shortest_complaint_is_told():
    def check_one(draw):
        length = draw.randint(1, 9)
        assert length % 2, f"`{'x' * length}` is even"

    with pytest.raises(AssertionError, match="^`xx` is even"):
        exercise.shortest(check_one, times=60)
    exercise.shortest(lambda draw: None)
