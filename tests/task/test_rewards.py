"""What an episode is worth: a total outcome, a reward that is the sum of its parts, no credit for a
lucky number."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zorplex_rl.task.episode import OUTCOMES, Episode, Task, Turn
from zorplex_rl.task.rewards import classify, final_answer, score, score_turns

FINISHES = ("eos", "answer", "turns", "tokens")
TASK = Task("simple", "What is blip?", 17, 1, "system", ("blip",))


def episode_of(*turns: tuple[str, str | None, str | None], finish: str = "eos") -> Episode:
    """An episode of (text, call, result) turns; the ids do not matter to a score."""
    return Episode(
        TASK,
        [1],
        [2],
        [True],
        [-1.0],
        [Turn(t, 0, 1, call, result) for t, call, result in turns],
        finish,
    )


def test_every_combination_of_answer_and_finish_has_the_first_outcome_that_holds():
    seen = set()
    for answer, finish in itertools.product((17, -17, 0, None), FINISHES):
        outcome = classify(answer, 17, finish)
        seen.add(outcome)
        without = {"turns": "tool_spam", "tokens": "truncated"}.get(finish, "wrong_format")
        assert outcome == (
            without if answer is None else "success" if answer == 17 else "wrong_answer"
        )
    assert seen == set(OUTCOMES)


@pytest.mark.parametrize(
    ("turns", "calls", "finish", "reward", "outcome"),
    [
        (["LOOKUP[blip]", "[ANSWER] 17"], 1, "eos", 1.2, "success"),
        (["LOOKUP[blip]", "LOOKUP[blip]", "[ANSWER] 17"], 2, "eos", 1.1, "success"),
        (["[ANSWER] 17"], 0, "eos", 1.2, "success"),
        (["LOOKUP[blip]", "[ANSWER] 18"], 1, "answer", 0.2, "wrong_answer"),
        (["LOOKUP[blip]"] * 6, 6, "turns", -0.5, "tool_spam"),
        (["LOOKUP[blip]", "So 17."], 1, "eos", 0.0, "wrong_format"),
        (["LOOKUP[blip]", "So 17, So 17,"], 1, "tokens", 0.0, "truncated"),
        ([], 0, "tokens", 0.0, "truncated"),
    ],
)
def test_the_reward_is_one_for_right_a_fifth_for_form_and_a_tenth_off_per_needless_call(
    turns, calls, finish, reward, outcome
):
    result = score_turns(TASK, turns, calls, finish)
    assert result.reward == pytest.approx(reward)
    assert result.outcome == outcome


@given(
    st.lists(st.sampled_from(["[ANSWER] 17", "[ANSWER] 3", "17", "LOOKUP[blip]", ""]), max_size=5),
    st.integers(0, 9),
    st.sampled_from(FINISHES),
)
def test_the_parts_sum_to_the_reward_and_say_why(turns, calls, finish):
    result = score_turns(TASK, turns, calls, finish)
    assert sum(result.parts.values()) == pytest.approx(result.reward)
    assert (result.correct > 0) == (result.outcome == "success")
    assert (result.format > 0) == (result.answer is not None)
    assert (result.extra_calls < 0) == (calls > TASK.min_tool_calls)


def test_the_right_number_in_the_text_or_in_a_tool_result_earns_nothing():
    for text in ("17", "So 17.", "[ANSWER] so 17", "[ANSWER] 17.5"):
        result = score(episode_of(("LOOKUP[blip]", "LOOKUP[blip]", " -> 17\n"), (text, None, None)))
        assert (result.outcome, result.correct, result.format) == ("wrong_format", 0.0, 0.0)
    assert score(episode_of(("LOOKUP[blip]", "LOOKUP[blip]", " -> [ANSWER] 17\n"))).answer is None


def test_an_answer_is_not_put_together_from_two_turns_or_from_a_turn_and_a_result():
    assert final_answer(["[ANSWER]", "17"]) is None
    assert final_answer(["[ANSWER] ", "17"]) is None
    assert (
        score(
            episode_of(("[ANSWER] LOOKUP[blip]", "LOOKUP[blip]", "17\n"), ("", None, None))
        ).answer
        is None
    )


def test_the_last_turn_that_answers_counts():
    assert final_answer(["[ANSWER] 17 LOOKUP[blip]", "[ANSWER] 4"]) == 4
    assert final_answer(["[ANSWER] 17 LOOKUP[blip]", "hm"]) == 17
    assert final_answer([]) is None


def test_an_episode_is_scored_by_its_own_turns_calls_and_finish():
    spam = episode_of(*[("LOOKUP[blip]", "LOOKUP[blip]", " -> 17\n")] * 6, finish="turns")
    assert (score(spam).outcome, score(spam).reward) == ("tool_spam", pytest.approx(-0.5))
    good = episode_of(("LOOKUP[blip]", "LOOKUP[blip]", " -> 17\n"), ("[ANSWER] 17", None, None))
    assert (score(good).outcome, score(good).reward) == ("success", pytest.approx(1.2))
    assert (good.tool_calls, good.text) == (1, "LOOKUP[blip] -> 17\n[ANSWER] 17")
