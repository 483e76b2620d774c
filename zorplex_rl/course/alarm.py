"""Ring when a run looks like those that collapsed afterwards.

    settings ──► the lag, as one at 4e-4 ──► beyond what its loss bears? ──┐
    a step's diagnostics ──► smoothed sample size ──► below its bound? ────┴─► None, or which of the two

The first is a *forecast*, and rings with the first stale batch, while nothing is lost: in the first
steps the diagnostics of runs that will collapse and of those that will not are the same, and only
their settings differ. The second sees what a forecast cannot. Notebook 11 counts how often they were
right on recorded runs that did not choose their bounds.
"""

import math
from collections.abc import Mapping

from zorplex_rl.config import LearnerConfig

SMALLEST_SAMPLE_SIZE = 0.17
"""Of the episodes, smoothed, at 36 episodes a step."""
WEIGHT = 1 / 3
"""Of the newest step in the smoothed value."""
RATE = 4e-4
"""The learning rate that others are compared with."""
BEARABLE = (
    {"reinforce": 1.8, "icepop": 3.7}
    | dict.fromkeys(("tis", "cispo"), 6)
    | dict.fromkeys(("decoupled_ppo", "m2po"), 20)
)
"""The lag at ``RATE`` from which on a loss did not hold: lowest if it does nothing about stale data,
higher if it leaves out or weights each token by itself, highest if it also limits a step
(``decoupled_ppo``) or the batch's second moment (``m2po``). No bound was found for those that stop a
token or an episode from moving further: ``grpo``, ``dapo``, ``gspo``, ``maxrl``, ``dppo`` and the
two rejections."""


def alike(lag: int, rate: float) -> float:
    """Return the lag at ``RATE`` that does as much harm as ``lag`` at a learning rate of ``rate``.

    In recorded trials of the embedded policy the rate does more harm than the lag: at 2e-4 plain
    REINFORCE bears a lag of 8, at 4e-4 none of 2. lag · (rate / RATE)³ was the simplest measure that
    puts them in order; it is found, not derived. How fast a trial's policy moves in its first steps
    differs between seeds, but does not tell which of them will collapse: it is left out.

    >>> alike(16, 2e-4)
    2.0
    """
    return lag * (rate / RATE) ** 3


class Alarm:
    """Watches the diagnostics of a run's training steps. ``config`` and ``max_lag`` are the run's:
    the forecast is of them."""

    def __init__(self, config: LearnerConfig, max_lag: int) -> None:
        self._is_foretold = alike(max_lag, config.learning_rate) > BEARABLE.get(
            config.loss, math.inf
        )
        self._is_stale = False
        self._sample_size = math.nan
        self._ringing: list[str] = []

    def note(self, metrics: Mapping[str, float]) -> str | None:
        """Note the ``metrics`` of the next step. Returns ``forecast`` or ``diagnostic`` when that
        part begins to ring, else None."""
        self._is_stale |= metrics.get("lag_max", 0) > 0
        newest = metrics.get("episode_sample_size", 1.0)
        earlier = newest if math.isnan(self._sample_size) else self._sample_size
        self._sample_size = (1 - WEIGHT) * earlier + WEIGHT * newest
        before, self._ringing = self._ringing, []
        if self._is_foretold and self._is_stale:
            self._ringing.append("forecast")
        if self._sample_size < SMALLEST_SAMPLE_SIZE:
            self._ringing.append("diagnostic")
        return next((part for part in self._ringing if part not in before), None)
