"""Notice that a run learns nothing: for some steps no reward varies within a group.

    a step's episodes and advantages ──► LearningSignal.note ──► None, or a sentence: what is wrong, and the likeliest reasons

The sentence comes once. It comes again only if advantages have been other than 0 meanwhile.
"""

from collections import Counter
from collections.abc import Sequence

from zorplex_rl.task.episode import Episode

STEPS = 5
"""Steps in a row without an advantage other than 0 after which the run says so."""
MOST = 0.9
"""Share of the episodes from which on an outcome is given as the reason."""
ROUNDING = 1e-9


class LearningSignal:
    """Watches the advantages of a run's training steps."""

    def __init__(self) -> None:
        self._episodes: list[Episode] = []
        self._steps = 0

    def note(self, episodes: Sequence[Episode], advantages: Sequence[float]) -> str | None:
        """Note a step's ``episodes``. Returns a sentence after ``STEPS`` steps of advantage 0."""
        if any(abs(advantage) > ROUNDING for advantage in advantages):
            self._episodes, self._steps = [], 0
            return None
        self._steps += 1
        if self._steps < STEPS:
            self._episodes += episodes
        if self._steps != STEPS:
            return None
        seen, self._episodes = [*self._episodes, *episodes], []
        reasons = why_no_reward_varies(seen)
        return f"no reward has varied within a group for {STEPS} steps, so nothing is learned from them: {reasons}"


def why_no_reward_varies(episodes: Sequence[Episode]) -> str:
    """Return the likeliest reasons why the rewards of scored ``episodes`` are all alike."""
    count = len(episodes)
    share = {outcome: found / count for outcome, found in Counter(e.scored.outcome for e in episodes).items()}
    rewards = {episode.scored.reward for episode in episodes}
    reasons = []
    if not any(episode.tool_calls for episode in episodes) and any(e.task.min_tool_calls for e in episodes):
        reasons.append(
            f"none of {count} episodes called a tool; perhaps the policy cannot write the names of this task's tools"
        )
    if share.get("success", 0) >= MOST:
        reasons.append(f"{share['success']:.0%} of the answers are right; take harder tasks")
    if share.get("truncated", 0) >= MOST:
        reasons.append(f"{share['truncated']:.0%} of the episodes were cut off; raise --max-tokens or --max-turns")
    if share.get("wrong_format", 0) >= MOST:
        reasons.append(
            f"{share['wrong_format']:.0%} of the episodes ended without an answer in the task's format; show it in the system prompt"
        )
    if share.get("wrong_answer", 0) >= MOST:
        reasons.append(f"{share['wrong_answer']:.0%} of the answers are wrong; take easier tasks or a better policy")
    if not reasons:
        found = ", ".join(f"{outcome} {part:.0%}" for outcome, part in sorted(share.items(), key=lambda item: -item[1]))
        reasons.append(f"the outcomes were {found}")
    range_ = f"{min(rewards):.2f}" if len(rewards) == 1 else f"{min(rewards):.2f} to {max(rewards):.2f}"
    return f"{'; '.join(reasons)} (rewards: {range_})"
