"""Score an episode: its reward and its outcome.

    reward = 1.0 · correct + 0.2 · format − 0.1 · (calls beyond the needed ones)

The outcome is the first of these that holds:

    success        the answer is right
    wrong_answer   there is an answer, and it is wrong
    tool_spam      no answer: still calling tools at the turn limit
    truncated      no answer: cut off at the token limit
    wrong_format   no answer: the policy ended its text without ``[ANSWER] <integer>``
"""

from collections.abc import Callable, Sequence

from zorplex_rl.task.episode import (
    OUTCOMES,
    Episode,
    Finish,
    Outcome,
    Score,
    Task,
)
from zorplex_rl.task.parser import Answer, find_answer

CORRECT_REWARD = 1.0
FORMAT_REWARD = 0.2
EXTRA_CALL_PENALTY = 0.1

FindAnswer = Callable[[str], Answer | None]


def final_answer(turns: list[str], find: FindAnswer = find_answer) -> Answer | None:
    """Return the last answer that the policy wrote, or None. Tools' results are not in ``turns``."""
    answers = [answer for answer in map(find, turns) if answer is not None]
    return answers[-1] if answers else None


def classify(
    answer: Answer | None,
    expected: Answer,
    finish: Finish,
) -> Outcome:
    """Return the outcome by the rules at the top of this file."""
    if answer is not None:
        return "success" if answer == expected else "wrong_answer"
    if finish == "turns":
        return "tool_spam"
    if finish == "tokens":
        return "truncated"
    return "wrong_format"


def score_turns(
    task: Task,
    turns: list[str],
    tool_calls: int,
    finish: Finish,
    find: FindAnswer = find_answer,
) -> Score:
    """Score an episode by its sampled ``turns`` and ``tool_calls``. ``find`` finds a turn's answer."""
    answer = final_answer(turns, find)
    outcome = classify(answer, task.answer, finish)
    extra_calls = max(0, tool_calls - task.min_tool_calls)
    return Score(
        outcome=outcome,
        answer=answer,
        correct=CORRECT_REWARD * (outcome == "success"),
        format=FORMAT_REWARD * (answer is not None),
        extra_calls=-EXTRA_CALL_PENALTY * extra_calls,
    )


def score(episode: Episode) -> Score:
    """Score a finished episode."""
    return score_turns(*episode.attempt)


def outcome_shares(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the share of each outcome among scored ``episodes``."""
    outcomes = [episode.scored.outcome for episode in episodes]
    return {each: outcomes.count(each) / len(outcomes) for each in OUTCOMES}


def accuracy(episodes: Sequence[Episode]) -> float:
    """Return the share of scored ``episodes`` with a right answer."""
    return outcome_shares(episodes)["success"]
