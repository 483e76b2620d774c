"""A run that cannot learn says so, once, and why."""

from __future__ import annotations

import pytest

from zorplex_rl.learning.learning_signal import STEPS, LearningSignal
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.rewards import score


def episode(text: str, call: str | None = None, finish: Finish = "eos") -> Episode:
    task = Task("doubling", "Double 4?", 8, 1, "")
    made = Episode(task, [1], [2], [True], [-1.0], [Turn(text, 0, 1, call)], finish)
    made.score = score(made)
    return made


ALL_WRONG = [episode("[ANSWER] 9", "DOUBLE[4]")] * 8
ALL_RIGHT = [episode("[ANSWER] 8", "DOUBLE[4]")] * 8
NO_CALL = [episode("blip")] * 8
CUT_OFF = [episode("blip blip", "DOUBLE[4]", finish="tokens")] * 8


def told_at(signal: LearningSignal, steps: int) -> list[int]:
    """The steps, of so many without an advantage, at which it says something."""
    return [step for step in range(1, steps + 1) if signal.note(ALL_WRONG, [0.0] * 8)]


def test_nothing_is_said_before_every_advantage_has_been_0_for_some_steps_in_a_row():
    signal = LearningSignal()
    for _ in range(3):
        assert told_at(signal, STEPS - 1) == []
        assert signal.note(ALL_WRONG, [0.0] * 7 + [0.5]) is None


def test_it_is_said_once_and_again_only_after_advantages_have_been_other_than_0():
    signal = LearningSignal()
    assert told_at(signal, 3 * STEPS) == [STEPS]
    assert signal.note(ALL_WRONG, [-0.5, 0.5]) is None
    assert told_at(signal, 3 * STEPS) == [STEPS]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (ALL_WRONG, "100% of the answers are wrong"),
        (ALL_RIGHT, "100% of the answers are right"),
        (NO_CALL, "none of 40 episodes called a tool"),
        (NO_CALL, "100% of the episodes ended without an answer in the task's format"),
        (CUT_OFF, "100% of the episodes were cut off; raise --max-tokens"),
        ([*ALL_WRONG[:4], *ALL_RIGHT[:4]], "the outcomes were wrong_answer 50%, success 50%"),
    ],
)
def test_the_likeliest_reasons_are_computed_from_the_episodes_of_these_steps(step, reason):
    signal = LearningSignal()
    *_, said = [signal.note(step, [0.0] * 8) for _ in range(STEPS)]
    assert said is not None and "for 5 steps" in said and reason in said
