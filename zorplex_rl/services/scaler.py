"""Scale a service: choose its number of replicas from the requests that wait and those in flight.

    up      requests wait here, or all processes together have as many in flight as one may: twice as many replicas
    down    nothing waits, and one replica fewer would be at most half busy, for ``CALM_SECONDS``: one fewer

The gap between the two rules is the hysteresis: a load that has just added a replica does not
remove it again.

>>> wanted(replicas=2, waiting=0, served=128, slots=64), wanted(replicas=4, waiting=0, served=90, slots=64)
(4, 3)
"""

CHECK_SECONDS = 0.1
CALM_SECONDS = 3.0


def wanted(replicas: int, waiting: int, served: int, slots: int) -> int:
    """Return the number of replicas for this load. ``slots`` is the number of one replica."""
    if waiting or served >= replicas * slots:
        return 2 * replicas
    return replicas - 1 if served <= (replicas - 1) * slots / 2 else replicas
