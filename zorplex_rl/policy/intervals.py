"""Confidence intervals for a measured share, also when trials are not independent.

    tasks      blip? ✓   blip? ✓   zork? ✗   zork? ✗       4 trials, but only 2 different words
    clusters   ╰── 2 / 2 ───╯   ╰── 0 / 2 ───╯             counted as 2 independent trials

A policy that is wrong about a word is wrong about it every time. Trials with the same words form a
*cluster*, and the width of the interval must follow from the number of clusters, not of trials.

How alike the trials of a cluster are is not estimated. With few clusters, or a share near 0 or 1,
the trials do not show it: an interval that relies on such an estimate covered as little as 26 % of
the cases that it said it would cover in 95 %.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

Interval = tuple[float, float]


def exact_interval(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Return the interval for *independent* trials, maybe not whole (Clopper, Pearson 1934).

    It covers any true share at least as often as ``confidence`` says, within [0, 1].

    >>> [round(bound, 3) for bound in exact_interval(0, 100)]
    [0.0, 0.036]
    """
    from scipy.special import betaincinv  # It takes a while to load, and most notebooks begin without an interval.

    failures, tail = trials - successes, (1 - confidence) / 2
    low = float(betaincinv(successes, failures + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures > 0 else 1.0
    return low, high


def clustered_interval(outcomes: Sequence[bool], clusters: Sequence[Hashable], confidence: float = 0.95) -> Interval:
    """Return the interval if trials of a cluster are alike: ``clusters[i]`` has ``outcomes[i]``.

    It is the exact interval with the effective number of trials in place of their number (Korn and
    Graubard 1998, Survey Methodology 24, section 3). The effective number is the smallest that
    there can be: that of trials which are all alike within their cluster. For clusters of n_g
    trials it is (Kish 1965, Survey Sampling, section 8.2)

        (Σ_g n_g)² / Σ_g n_g²

    which is the number of clusters if all are of one size, and less if few of them hold most
    trials. If the trials of a cluster are less alike, the interval is wider than it has to be.

    Simulated with 1 to 400 clusters of 1 to 16 trials, equal and unequal, shares of 0.02 to 1 and
    correlations within clusters of 0 to 1, an interval of 95 % covers the true share in 93 % of the
    cases or more (tests/policy/test_intervals.py).

    Raises ValueError without trials, or if the two lists differ in length.

    >>> [round(bound, 2) for bound in clustered_interval([True] * 50 + [False] * 50, [i // 10 for i in range(100)])]
    [0.19, 0.81]
    """
    trials = len(outcomes)
    if not trials or len(clusters) != trials:
        raise ValueError(
            f"{trials} outcomes in {len(clusters)} clusters; give at least one outcome, and the cluster of each"
        )
    effective = trials**2 / sum(size**2 for size in Counter(clusters).values())
    return exact_interval(effective * (sum(outcomes) / trials), effective, confidence)
