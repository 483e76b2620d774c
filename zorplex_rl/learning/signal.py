"""Notice that a run learns nothing, and say why: no reward varies within a group."""

from collections import Counter
from collections.abc import Sequence

from zorplex_rl.learning.advantages import NOISE
from zorplex_rl.task.episode import Episode

STEPS_WITHOUT_SIGNAL = 5
REASONS = {
    "success": "answers are right; take harder tasks",
    "truncated": "episodes were cut off; raise --max-tokens or --max-turns",
    "wrong_format": "episodes ended without an answer in the task's format; "
    "show it in the system prompt",
    "wrong_answer": "answers are wrong; take easier tasks or a better policy",
}
"""What it says of the task if nearly all episodes have this outcome."""


class LearningSignal:
    """Notices that a run learns nothing: for some steps no reward has varied within a group."""

    def __init__(self) -> None:
        self._steps = 0

    def note(self, episodes: Sequence[Episode], advantages: Sequence[float]) -> str | None:
        """Note a step. Returns what is wrong, once, after ``STEPS_WITHOUT_SIGNAL`` such steps."""
        varies = any(abs(advantage) > NOISE for advantage in advantages)
        self._steps = 0 if varies else self._steps + 1
        if self._steps != STEPS_WITHOUT_SIGNAL:
            return None
        return (
            f"no reward has varied within a group for {self._steps} steps, "
            f"so nothing is learned: {why_no_reward_varies(episodes)}"
        )


def why_no_reward_varies(episodes: Sequence[Episode]) -> str:
    """Return the likeliest reasons why the rewards of scored ``episodes`` are all alike."""
    outcomes = Counter(episode.scored.outcome for episode in episodes)
    ((outcome, count),) = outcomes.most_common(1)
    share = count / len(episodes)
    reasons = []
    if share >= 0.9 and outcome in REASONS:
        reasons.append(f"{share:.0%} of the {REASONS[outcome]}")
    if not any(e.tool_calls for e in episodes) and any(e.task.min_tool_calls for e in episodes):
        reasons.append(
            f"none of {len(episodes)} episodes called a tool; "
            "perhaps the policy cannot write the names of this task's tools"
        )
    return "; ".join(reasons) or f"the commonest outcome was {outcome}, of {share:.0%}"
