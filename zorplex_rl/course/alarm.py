"""Ring when a run looks like those that collapsed afterwards.

    settings ──► the lag, as one at 4e-4 ──► beyond what its loss bears? ──┐
    a step's diagnostics ──► smooth each ──► beyond its bound? ────────────┴─► None, or a sentence

The first is a *forecast*, and rings with the first stale batch, while nothing is lost: in the first
steps the diagnostics of runs that will collapse and of those that will not are the same, and only
their settings differ. The second sees what a forecast cannot. ``benchmarks/LOG.md`` says how often
both were right on recorded runs that did not choose their bounds. Each says its sentence once, and
again only if all was within its bounds meanwhile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zorplex_rl.config import Config, LearnerConfig

Form = Literal["level", "fall", "rise"]
CURE = "lower --learning-rate or --max-lag, or take --loss grpo or dppo"
WEIGHT = 1 / 3
"""Of the newest step in the smoothed value."""


class Smoothed:
    """A diagnostic, smoothed over its last steps, with the extremes of the smoothed value so far."""

    def __init__(self) -> None:
        self._value, self._highest, self._lowest = math.nan, -math.inf, math.inf

    def note(self, value: float) -> None:
        """Take the next step's ``value``."""
        self._value = value if math.isnan(self._value) else (1 - WEIGHT) * self._value + WEIGHT * value
        self._highest, self._lowest = max(self._highest, self._value), min(self._lowest, self._value)

    def read(self, form: Form) -> float:
        """Return the smoothed value: as it is (level), as a share of its highest so far (fall), or
        as a multiple of its lowest so far (rise). NaN where it would be divided by 0 or less.

        >>> found = Smoothed()
        >>> for value in (4.0, 4.0, 1.0): found.note(value)
        >>> [round(found.read(form), 2) for form in ("level", "fall", "rise")]
        [3.0, 0.75, 1.0]
        """
        if form == "level":
            return self._value
        base = self._highest if form == "fall" else self._lowest
        return self._value / base if base > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one form of a smoothed diagnostic: the sum of those in ``names`` that a step
    has."""

    names: tuple[str, ...]
    form: Form
    bound: float
    above: bool
    """Whether values above the bound are beyond it, or those below."""

    def is_crossed(self, value: float) -> bool:
        """Return whether ``value`` is beyond the bound; NaN never is."""
        return value > self.bound if self.above else value < self.bound


LIMITS = (Limit(("episode_sample_size",), "level", 0.17, above=False),)
"""The diagnostic, at 36 episodes a step. On 162 recorded trials that chose nothing of it, forecast
and diagnostic rang 10 steps ahead or more in 23 of 25 collapses, and in 4 of 115 healthy trials
(``benchmarks/LOG.md``)."""


def value_of(names: Sequence[str], metrics: Mapping[str, float]) -> float | None:
    """Return the sum of the diagnostics in ``names`` that ``metrics`` has, or None if it has none.

    >>> value_of(("clip_fraction_low", "clip_fraction_high"), {"clip_fraction_high": 0.25, "entropy": 0.5})
    0.25
    """
    found = [metrics[name] for name in names if name in metrics]
    return sum(found) if found else None


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

    def __init__(
        self,
        config: LearnerConfig = Config.learner,
        max_lag: int = Config.max_lag,
        limits: Sequence[Limit] = LIMITS,
    ) -> None:
        self._watched = [(limit, Smoothed()) for limit in limits]
        self._loss, self._lag, self._alike = config.loss, max_lag, alike(max_lag, config.learning_rate)
        self._is_stale, self._ringing = False, set[str]()

    def note(self, metrics: Mapping[str, float]) -> str | None:
        """Note the ``metrics`` of the next step. Returns a sentence when a bound is crossed, after
        none of that part was."""
        self._is_stale |= metrics.get("lag_max", 0) > 0
        crossed: dict[str, str] = {}
        if self._is_stale and self._alike > BEARABLE.get(self._loss, math.inf):
            crossed["forecast"] = foretold(self._loss, self._lag, self._alike)
        for limit, smoothed in self._watched:
            if (value := value_of(limit.names, metrics)) is not None:
                smoothed.note(value)
                if limit.is_crossed(reading := smoothed.read(limit.form)):
                    crossed.setdefault("diagnostic", said(limit, reading))
        new = [sentence for part, sentence in crossed.items() if part not in self._ringing]
        self._ringing = set(crossed)
        return new[0] if new else None


def foretold(loss: str, lag: int, alike: float) -> str:
    """Return the sentence about a ``lag`` that is like one of ``alike`` versions at ``RATE``, which
    is more than ``loss`` bears."""
    return (
        f"this run may collapse: the lag that --max-lag allows, {lag}, is like one of {alike:.2g} at a learning rate of {RATE:g}, "
        f"and in recorded runs of the embedded policy --loss {loss} fell from {BEARABLE[loss]:g} on; {CURE}"
    )


def said(limit: Limit, reading: float) -> str:
    """Return the sentence about a crossed ``limit``: what was read, and what to change."""
    what = " + ".join(limit.names).replace("_", " ")
    read = {
        "level": "is",
        "fall": "is, as a share of its highest value,",
        "rise": "is, as a multiple of its lowest value,",
    }
    return (
        f"this run may be about to collapse: {what} {read[limit.form]} {reading:.2g}, {'above' if limit.above else 'below'} {limit.bound:.2g}; "
        f"{CURE}"
    )
