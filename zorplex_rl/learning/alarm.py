"""Ring when the diagnostics of a run look like those of runs that collapsed soon afterwards.

    a step's diagnostics ──► smooth each ──► beyond its bound? ──► None, or a sentence: what is wrong, what to change

Bounds and diagnostics are the choice of ``benchmarks/alarms.py`` among recorded runs, which says how
often they were right on other ones. The sentence comes once; again only if all have been within
their bounds meanwhile. A resumed run begins to smooth anew.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["level", "fall", "rise"]
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


LIMITS = (Limit(("episode_sample_size",), "level", 0.219, above=False),)
"""The alarm of a run, at 36 episodes a step. On 129 recorded trials that it was not chosen on it
rang in 1 of 64 healthy ones and before 11 of 45 collapses, in the median 7 steps ahead; of the 16
collapses after step 20 before 8, 8.5 steps ahead. So silence promises little, and what it says is
worth hearing. No diagnostic that is quiet in healthy trials announced more than 3 of the 45 ten
steps ahead (``benchmarks/LOG.md``)."""


def value_of(names: Sequence[str], metrics: Mapping[str, float]) -> float | None:
    """Return the sum of the diagnostics in ``names`` that ``metrics`` has, or None if it has none.

    >>> value_of(("clip_fraction_low", "clip_fraction_high"), {"clip_fraction_high": 0.25, "entropy": 0.5})
    0.25
    """
    found = [metrics[name] for name in names if name in metrics]
    return sum(found) if found else None


class Alarm:
    """Watches the diagnostics of a run's training steps."""

    def __init__(self, limits: Sequence[Limit] = LIMITS) -> None:
        self._watched = [(limit, Smoothed()) for limit in limits]
        self._is_ringing = False

    def note(self, metrics: Mapping[str, float]) -> str | None:
        """Note a step's ``metrics``. Returns a sentence when a limit is crossed, after none was."""
        crossed = []
        for limit, smoothed in self._watched:
            if (value := value_of(limit.names, metrics)) is not None:
                smoothed.note(value)
                if limit.is_crossed(reading := smoothed.read(limit.form)):
                    crossed.append((limit, reading))
        rang, self._is_ringing = self._is_ringing, bool(crossed)
        return None if rang or not crossed else said(*crossed[0])


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
        "lower --learning-rate or --max-lag, or take --loss grpo or dppo"
    )
