"""Compute the mean lag of an asynchronous run from its mean seconds: how old its data are, in versions.

    b = P/G · g    seconds in which G generators sample the P groups of a step, in R = P/G rounds of g
    t, s           seconds of a training step, and of the way of its weights to the generators
    L              the bound on the lag

A step takes T = max(b, t, s, (s + b + t) / (L + 1)) in the long run (``bounds.py``).

Where T > b, generators wait: step v is sampled when version v − L arrives, the earliest that the
bound allows, and within the b seconds no newer one does. So every group has lag L. A larger bound
then makes data older and nothing else, unless it makes the run faster.

Where T = b, generators never wait. Round j of step v begins b − j g before its batch is complete,
with the newest version that has arrived: version n does so t + s after batch n − 1 was complete.
That is n ≤ v − (t + s − j g) / b, so

    lag of round j = ⌈(t + s − j g) / b⌉,  at least 0

and the mean of the R rounds is the mean lag: about (t + s) / b. The bound does not matter.

That is for generators that take their next groups when they begin them. With ``--on-update wait`` a
real one takes them *ahead*: all that the bound allows, of steps up to n + L with version n, and
pulls when the last is done. At T = b that is c = ⌈(t + s) / b⌉ steps after the version that is then
the newest, so the lags of the steps in between are c, c + 1, … L, and their mean is (c + L) / 2.

**Seconds that vary.** At a tie of b and t, or b and s, these formulas jump to L, and a real run lies
between. Its batches wait W seconds for the trainer. From step to step, W changes by the seconds of
training less those of sampling: d = max(t, s) − b on average, with the standard deviation σ. W cannot
fall below 0, and at M = (L + 1) max(b, t, s) − (b + t + s) generators wait. Such a random walk is
nearly a Brownian motion between two reflecting barriers, whose density in the long run is

    ∝ exp(2 d w / σ²)        Harrison 1985, *Brownian Motion and Stochastic Flow Systems*, ch. 5

The walk makes steps of about σ. To correct for that, move each barrier out by 0.5826 σ, and count
what lies beyond 0 or M as 0 or M (Siegmund 1979, *Corrected Diffusion Approximations in Certain
Random Walk Problems*). Then

    lag of round j = sum of P(t + s + W + noise > j g + k b) over 0 ≤ k < L,    noise: of deviation σ

As σ → 0, W becomes 0 where d < 0 and M where d > 0, and the sum is one of the formulas above.

Several generators do not stay in step if their seconds vary: each begins a group when another one is
done. So group i of a step begins i − (G − 1) groups after the batch before was complete, which is
(i − G + 1) b / P seconds in the place of j g. If they take groups *ahead*, the one that is done takes
m whole steps. K = L + 1 − c are then under way, and the others have half of theirs left on average:
m (1 + (G − 1) / 2) = K. The lags are L − m + 1, … L, and their mean is L + 1/2 − K / (G + 1).

>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=1.0, sync=0.5)
1.0
>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=3.0, sync=0.5)
4.0
>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=1.0, sync=0.5, ahead=True)
2.5
>>> [round(mean_lag(1, 1, 4, 1.0, training, 0.0, deviation=0.2), 2) for training in (0.5, 0.99, 1.01, 1.5)]
[1.01, 2.57, 3.35, 4.0]
"""

from math import ceil, expm1, log1p, sqrt
from statistics import NormalDist, fmean

BARRIER_SHIFT = 0.5826
"""Mean overshoot of a random walk over a far barrier, in deviations of a step: −ζ(1/2) / √(2π)."""
QUANTILES = [(number + 0.5) / 64 for number in range(64)]
"""Where the distribution of the wait is evaluated."""


def mean_lag(
    generators: int,
    groups_per_step: int,
    max_lag: int,
    generation: float,
    training: float,
    sync: float,
    ahead: bool = False,
    deviation: float = 0.0,
) -> float:
    """Return the mean lag, in versions, of the groups of a long run with these mean seconds:
    ``generation`` of a group, ``training`` of a step, ``sync`` of the weights' way.
    ``ahead``: generators take all groups that they may at once, as with ``--on-update wait``.
    ``deviation``: standard deviation, in seconds, of a step's training less its sampling.

    Exact where nothing varies and ``generators`` divides ``groups_per_step``; else rounds are taken
    for even shares.
    """
    batch = groups_per_step / generators * generation
    if deviation and batch:
        return _varied_lag(generators, groups_per_step, max_lag, batch, training, sync, ahead, deviation)
    rounds = max(round(groups_per_step / generators), 1)
    if max_lag == 0 or batch < max(training, sync, (sync + batch + training) / (max_lag + 1)):
        return float(max_lag)
    if batch == 0:
        return 0.0
    if ahead:
        return (ceil((training + sync) / batch - 1e-9) + max_lag) / 2
    begun = [number / rounds for number in range(rounds)]
    # A hair less, because a version that arrives in that moment is there.
    return fmean(max(ceil((training + sync) / batch - share - 1e-9), 0) for share in begun)


def _varied_lag(
    generators: int,
    groups: int,
    max_lag: int,
    batch: float,
    training: float,
    sync: float,
    ahead: bool,
    deviation: float,
) -> float:
    """Return the mean lag where seconds vary, from the seconds in which a ``batch`` is sampled."""
    longest = max(batch, training, sync)
    room = (max_lag + 1) * longest - (batch + training + sync)
    waits = stationary_waits(max(training, sync) - batch, deviation, max(room, 0.0))

    def is_late(steps: float, wait: float) -> float:
        """Return the probability that a version arrives more than ``steps`` steps after its batch
        was complete. The seconds of no more than one step are counted as noise: ``wait`` varies
        with those before."""
        noise = deviation * sqrt(min(max(steps, 0), 1))
        late = training + sync + wait - steps * batch
        return NormalDist().cdf(late / noise) if noise else float(late > 0)

    def lag(begun: float) -> float:
        """Return the mean lag of what begins ``begun`` steps after the batch before was complete."""
        return fmean(sum(is_late(begun + steps, wait) for steps in range(max_lag)) for wait in waits)

    if ahead:
        return min(max_lag + 0.5 - (max_lag + 1 - lag(1 / generators - 1)) / (generators + 1), float(max_lag))
    return fmean(lag((group - generators + 1) / groups) for group in range(groups))


def stationary_waits(drift: float, deviation: float, room: float) -> list[float]:
    """Return 64 quantiles of a batch's wait for the trainer, in seconds, in the long run: a random
    walk of ``drift`` and ``deviation`` a step between 0 and ``room``."""
    low, width = -BARRIER_SHIFT * deviation, room + 2 * BARRIER_SHIFT * deviation
    tilt = abs(drift / deviation * width / deviation) * 2
    # How far each quantile is from the barrier that the drift points to, as a part of the width.
    parts = [-log1p(share * expm1(-tilt)) / tilt if tilt > 1e-6 else share for share in QUANTILES]
    walk = [low + width * (1 - part if drift > 0 else part) for part in parts]
    return [min(max(wait, 0.0), room) for wait in walk]
