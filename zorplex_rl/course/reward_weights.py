"""Ask what other reward weights would teach: score episodes that are there again, and compare them within their groups.

    reward = correct · [right] + form · [an answer in the form] − extra_call · (calls beyond the needed ones)

No episode is sampled again. So this is the first step with those weights, not what a policy becomes under them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from zorplex_rl.task.episode import OUTCOMES, Episode, Outcome, Score
from zorplex_rl.task.rewards import CORRECT_REWARD, EXTRA_CALL_PENALTY, FORMAT_REWARD


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """What a right answer, an answer in the form, and each extra call are worth. The defaults are those of ``task/rewards.py``."""

    correct: float = CORRECT_REWARD
    form: float = FORMAT_REWARD
    extra_call: float = EXTRA_CALL_PENALTY

    def reward(self, score: Score) -> float:
        """Return the reward of an episode that has this ``score``.

        >>> RewardWeights(correct=1.0, form=0.5, extra_call=0.0).reward(Score("wrong_answer", 7, 0.0, 0.2, -0.1))
        0.5
        """
        return (
            self.correct * (score.outcome == "success")
            + self.form * (score.answer is not None)
            + self.extra_call * score.extra_calls / EXTRA_CALL_PENALTY
        )


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a batch teaches under some weights: the mean advantage of each outcome that it holds, and the groups whose rewards differ."""

    advantages: dict[Outcome, float]
    teaching: int
    groups: int


def lesson_of(
    groups: Sequence[Sequence[Episode]],
    weights: RewardWeights,
    advantages_of: Callable[[list[float]], list[float]],
) -> Lesson:
    """Return what scored ``groups`` of episodes teach under ``weights``; ``advantages_of`` turns the rewards of a group into its advantages."""
    found: dict[Outcome, list[float]] = {outcome: [] for outcome in OUTCOMES}
    teaching = 0
    for group in groups:
        rewards = [weights.reward(episode.scored) for episode in group]
        # Sums of weights differ by rounding where the rewards are alike.
        teaching += pstdev(rewards) > 1e-9
        for episode, advantage in zip(group, advantages_of(rewards), strict=True):
            found[episode.scored.outcome].append(advantage)
    return Lesson({outcome: fmean(values) for outcome, values in found.items() if values}, teaching, len(groups))
