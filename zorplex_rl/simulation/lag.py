"""Compute the mean lag of an asynchronous run in closed form: how old its data are, in versions.

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

and the mean of the R rounds is the mean lag: about (t + s) / b. The bound does not matter. If
latencies vary, some groups of step v begin while step v − 1 still waits for its slowest group, so
their lag is larger.

That is for generators that take their next groups when they begin them. With ``--on-update wait`` a
real one takes them *ahead*: all that the bound allows, of steps up to n + L with version n, and
pulls when the last is done. At T = b that is c = ⌈(t + s) / b⌉ steps after the version that is then
the newest, so the lags of the steps in between are c, c + 1, … L, and their mean is (c + L) / 2.

>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=1.0, sync=0.5)
1.0
>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=3.0, sync=0.5)
4.0
>>> mean_lag(generators=4, groups_per_step=8, max_lag=4, generation=1.0, training=1.0, sync=0.5, ahead=True)
2.5
"""

from math import ceil
from statistics import fmean


def mean_lag(
    generators: int,
    groups_per_step: int,
    max_lag: int,
    generation: float,
    training: float,
    sync: float,
    ahead: bool = False,
) -> float:
    """Return the mean lag, in versions, of the groups of a long run whose latencies (seconds) do
    not vary: ``generation`` of a group, ``training`` of a step, ``sync`` of the weights' way.
    ``ahead``: generators take all groups that they may at once, as with ``--on-update wait``.

    Exact where ``generators`` divides ``groups_per_step``; else rounds are taken for even shares.
    """
    rounds = max(round(groups_per_step / generators), 1)
    batch = groups_per_step / generators * generation
    if max_lag == 0 or batch < max(training, sync, (sync + batch + training) / (max_lag + 1)):
        return float(max_lag)
    if batch == 0:
        return 0.0
    if ahead:
        return (ceil((training + sync) / batch - 1e-9) + max_lag) / 2
    begun = [number / rounds for number in range(rounds)]
    # A hair less, because a version that arrives in that moment is there.
    return fmean(max(ceil((training + sync) / batch - share - 1e-9), 0) for share in begun)
