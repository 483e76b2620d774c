"""Every check refuses the wrong answers that learners give, with a sentence that says for which
input, and accepts the unusual right ones.

``answers/answers_NN.py`` holds them for notebook NN: ``WRONG`` and ``RIGHT``, each a list of
functions by the name of the exercise.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from zorplex_rl.course.lesson import exercise

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NOTEBOOKS = {
    path.stem.split("_")[0]: path
    for path in sorted((HERE.parents[1] / "notebooks").glob("[0-9]*.py"))
}
WRITTEN = sorted(
    path.stem.removeprefix("answers_") for path in (HERE / "answers").glob("answers_*.py")
)
AT_LEAST = 5
"""Planted wrong answers for each exercise."""


@cache
def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def answers(number: str) -> ModuleType:
    return module(HERE / "answers" / f"answers_{number}.py")


def refusals(number: str, name: str, attempts: list) -> dict[str, str | None]:
    """Return what the check of the exercise says of each attempt."""
    check = getattr(module(NOTEBOOKS[number]).Solutions, f"check_{name}")
    found = {}
    for attempt in attempts:
        called = attempt.__name__
        attempt.__name__ = name
        found[called] = exercise.complaint(check, attempt)
        attempt.__name__ = called
    return found


@pytest.mark.parametrize("number", WRITTEN)
def test_every_exercise_has_wrong_answers(number):
    names = [name for name, *_ in exercise.exercises(module(NOTEBOOKS[number]))]
    assert names and {
        name: len(answers(number).WRONG.get(name, [])) >= AT_LEAST for name in names
    } == dict.fromkeys(names, True)
    assert set(answers(number).WRONG) | set(answers(number).RIGHT) == set(names)


@pytest.mark.parametrize("number", WRITTEN)
def test_every_wrong_answer_is_refused_with_a_sentence_that_names_the_input(number):
    for name, attempts in answers(number).WRONG.items():
        for attempt, said in refusals(number, name, attempts).items():
            assert said, f"{name}: {attempt} passes"
            assert "`" in said, f"{name}: {attempt}: {said}"
            assert "still to be written" not in said, f"{name}: {attempt}: {said}"


@pytest.mark.parametrize("number", WRITTEN)
def test_every_right_answer_passes(number):
    for name, attempts in answers(number).RIGHT.items():
        assert refusals(number, name, attempts) == dict.fromkeys(
            (attempt.__name__ for attempt in attempts), None
        )


def test_a_wrong_number_of_the_policy_gradient_is_told_with_the_mistake_that_makes_it():
    attempts = [
        wrong for wrong in answers("05b").WRONG["policy_gradient"] if wrong.__name__ in MISTAKES
    ]
    said = refusals("05b", "policy_gradient", attempts)
    assert {name: sentence.partition(". ")[0] for name, sentence in said.items()} == MISTAKES


def test_a_gather_with_too_few_dimensions_is_not_told_to_be_one_of_lengths():
    (said,) = refusals(
        "05b", "policy_gradient", [answers("05b").gathers_with_a_flat_index]
    ).values()
    assert said.startswith("the index of `gather` needs as many dimensions as the log-probs")


def test_times_in_order_of_arrival_are_told_to_be_that():
    said = refusals("01", "answer_times", [answers("01").in_order_of_arrival])[
        "in_order_of_arrival"
    ]
    assert said == (
        "you sorted the times, and place *i* is that of message *i*. "
        "`answer_times([3.0, 1.0], True)` gives `[1.0, 3.0]`, and should give `[3.0, 1.0]`: the order is another one"
    )


def test_a_wrong_step_of_many_ranks_is_told_by_its_mistake_and_its_smallest_case():
    said = refusals("02", "ddp_step", answers("02").WRONG["ddp_step"])
    assert said["keeps_old_gradients"].startswith(
        "the first step was right, and its gradients are probably still there: with `[2]` examples"
    )
    assert "have not been added up: with `[1, 1]`" in said["its_own_part_only"]


def test_of_a_wrong_schedule_the_smallest_is_told():
    (said,) = refusals("05", "schedule", answers("05").WRONG["schedule"][:1]).values()
    assert said.endswith("gives `[(0, 0.0), (0, 2.0)]`, and should give `[(0, 0.0), (1, 0.0)]`"), (
        "the smallest case"
    )


MISTAKES = {
    "pushes_the_tools_tokens_too": "it also counts tokens that were not sampled",
    "divides_by_the_tools_tokens_too": "it divides by all tokens, not by the sampled ones",
    "forgets_the_minus": "the sign is the other one",
    "sums_and_does_not_divide": "the sum is not divided",
    "takes_the_logits_of_the_token_itself": "it takes the logits at a token's own position, which predict the next one",
    "divides_by_the_episodes": "it divides by the number of episodes, not of sampled tokens",
}


def test_a_wrong_kl_is_told_by_its_mistake():
    said = refusals("05c", "kl", answers("05c").WRONG["kl"])
    assert said["adds_up"].startswith("that is the sum; KL is a mean")
    assert said["forgets_the_minus_one"].startswith("the −1 of `exp(-d) - 1` is missing")
    assert said["counts_the_tools_tokens"].startswith("the tool's tokens count too")


def test_where_a_response_parts_from_the_right_one_says_what_was_misunderstood():
    attempts = [
        wrong for wrong in answers("05b").WRONG["sample_episode"] if wrong.__name__ in PARTED
    ]
    said = refusals("05b", "sample_episode", attempts)
    assert {
        name: sentence.partition(":")[0].partition(". ")[0] for name, sentence in said.items()
    } == PARTED


PARTED = {
    "takes_the_likeliest": "another token was drawn, although the text before is the same",
    "never_moves_the_start_of_the_turn": "the same call was run again",
    "reads_an_answer_that_is_not_finished": "it stops too early",
    "never_stops_at_the_end_of_the_text": "it goes on where the episode is over",
    "marks_the_result_as_drawn": "the tokens of a result are marked as drawn, or the other way round",
    "runs_no_tool": "a call is complete, and no result is injected",
    "draws_one_token_more": "it is longer than `max_tokens`",
}


def test_a_wrong_narrow_path_is_told_what_it_leaves_out():
    shapes = (
        "two shapes do not fit: `W`, `A` and `B` all have their outputs first, so transpose each of "
        "them, `B`, too; `x` has its inputs last"
    )
    said = refusals("05d", "adapted", answers("05d").WRONG["adapted"])
    assert {name: sentence.partition(". ")[0] for name, sentence in said.items()} == {
        "the_path_alone": "the layer's own product is missing",
        "without_the_path": "the path is missing",
        "without_the_scale": "the path is not multiplied by `scale`",
        "scales_the_layer_too": "`scale` belongs to the path alone",
        "forgets_to_transpose": shapes,
        "forgets_to_transpose_b": shapes,
        "turns_x_round": shapes,
    }
