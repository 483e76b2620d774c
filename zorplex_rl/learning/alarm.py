"""Ring when a run looks like those that collapsed afterwards.

    settings, first steps' drift ──► the lag, as one at 4e-4 ──► beyond what its loss bears? ──┐
    a step's diagnostics ──────────► smooth each ─────────────► beyond its bound? ────────────┴─► None, or a sentence

The first is a forecast, and rings at step 2 or 3, while nothing is lost: in the first steps the
diagnostics of runs that will collapse and of those that will not are the same, and only their
settings differ. The second sees what a forecast cannot. ``benchmarks/alarms.py`` says how often both
were right on recorded runs that did not choose their bounds. Each says its sentence once, and again
only if all was within its bounds meanwhile. A resumed run begins anew.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.learning.schedule import schedule

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


LIMITS = (Limit(("episode_sample_size",), "level", 0.219, above=False),)
"""The diagnostic, at 36 episodes a step. By itself it rang, in 129 recorded trials that did not
choose it, in 1 of 64 healthy ones and before 11 of 45 collapses, in the median 7 steps ahead. No
diagnostic that is quiet in healthy trials announced more than 3 of the 45 ten steps ahead. The
forecast rang, in 162 trials that did not choose it, 10 steps ahead or more in 23 of 31 collapses,
two of which fell too soon for that, and in 1 of 114 healthy trials; both together in 24 and in 6
(``benchmarks/LOG.md``)."""


def value_of(names: Sequence[str], metrics: Mapping[str, float]) -> float | None:
    """Return the sum of the diagnostics in ``names`` that ``metrics`` has, or None if it has none.

    >>> value_of(("clip_fraction_low", "clip_fraction_high"), {"clip_fraction_high": 0.25, "entropy": 0.5})
    0.25
    """
    found = [metrics[name] for name in names if name in metrics]
    return sum(found) if found else None


IN_A_LINE = 8
"""Versions. So far a policy moves in a line at first."""
TYPICAL, RATE = 1.4e5, 4e-4
"""(log r)² of a step, divided by the square of its learning rate, of the embedded policy, and the
rate that others are compared with. Recorded trials have 1.9e5 after two stale batches, in the median,
and less later. The bounds were chosen with these values: others would scale them."""
BEARABLE = (
    {"reinforce": 2.5} | dict.fromkeys(("tis", "cispo", "icepop"), 10) | dict.fromkeys(("decoupled_ppo", "m2po"), 25)
)
"""The lag at ``RATE`` from which on a loss did not hold: 2.5 if it does nothing about stale data, 10
if it weights or leaves out each token by itself, 25 if it also limits a step (``decoupled_ppo``) or
the batch's second moment (``m2po``). No bound was found for those that stop a token or an episode
from moving further: ``grpo``, ``dapo``, ``gspo``, ``maxrl``, ``dppo`` and the two rejections."""


class Forecast:
    """Foretells what lag ``max_lag`` will be like: as the lag at ``RATE`` that does as much harm.

    In recorded trials the rate does more harm than the lag: at 2e-4 plain REINFORCE bears a lag of 8,
    at 4e-4 none of 2. lag · (rate / RATE)³ was the simplest measure that puts them in order; it is
    found, not derived. How fast this policy moves is measured: at first log r grows in proportion to
    the learning rates between the two versions, so its second moment to the square of their sum,
    d²: of the quotients at steps 3 to 8, 89 % are within a factor of 2.5 of the trial's at step 6.
    Between trials of one setting they differ as much, and say little of what comes. So the measure is
    multiplied by √(measured / typical) only: measured, Σ moments / Σ d²; typical, that of recorded
    trials at this rate. The moment at lag 0, which is of the numerics alone, is subtracted. That the
    rate falls is left out: for a run of less than some 40 steps it foretells too much.
    """

    def __init__(self, config: LearnerConfig, max_lag: int) -> None:
        self._config = config
        self._typical = TYPICAL * config.learning_rate**2
        self._alike = max_lag * (config.learning_rate / RATE) ** 3
        self._numerics = self._moments = self._squares = 0.0

    def note(self, metrics: Mapping[str, float], step: int) -> float:
        """Note the ``metrics`` of ``step``, from 1. Returns the forecast, in versions; NaN before
        there is a stale batch."""
        moment, lag, most = (metrics[name] for name in ("second_moment", "lag_mean", "lag_max"))
        if not most:
            self._numerics = moment
        elif most <= IN_A_LINE:
            versions = range(step - 1 - int(most), step - 1)
            # As if each episode were fresh or as old as the oldest: if all are alike, this is exact.
            self._squares += lag / most * sum(schedule(v, self._config.warmup_steps, 0) for v in versions) ** 2
            self._moments += max(0.0, moment - self._numerics)
        if not self._squares:
            return math.nan
        return self._alike * math.sqrt(self._moments / self._squares / self._typical)


class Alarm:
    """Watches the diagnostics of a run's training steps. ``config`` and ``max_lag`` are the run's:
    the forecast depends on them."""

    def __init__(
        self,
        config: LearnerConfig = Config.learner,
        max_lag: int = Config.max_lag,
        limits: Sequence[Limit] = LIMITS,
    ) -> None:
        self._watched = [(limit, Smoothed()) for limit in limits]
        self._loss, self._lag, self._forecast = config.loss, max_lag, Forecast(config, max_lag)
        self._ringing: set[str] = set()

    def note(self, metrics: Mapping[str, float], step: int) -> str | None:
        """Note the ``metrics`` of ``step``, counted from 1. Returns a sentence when a bound is
        crossed, after none of that part was."""
        crossed: dict[str, str] = {}
        if self._loss in BEARABLE and (alike := self._forecast.note(metrics, step)) > BEARABLE[self._loss]:
            crossed["forecast"] = foretold(self._loss, self._lag, alike)
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
        f"this run may collapse: as fast as the policy moves now, the lag that --max-lag allows, {lag}, is like one of {alike:.2g} "
        f"at a learning rate of {RATE:g}, and --loss {loss} bears {BEARABLE[loss]:g}; {CURE}"
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
