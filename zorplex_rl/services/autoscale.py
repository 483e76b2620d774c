"""Follow the load: choose a service's number of replicas from what waits and what is being served.

    up      more requests wait than are being served, or more are served than one caller's slots hold: twice as many replicas
    down    nothing waits, and one replica fewer would be at most half busy, for ``CALM_SECONDS`` without a break: one replica fewer

The gap between the two rules is the hysteresis: a load that has just called for another replica
does not remove it again. Scaling up is quick, because requests wait. Scaling down is slow, because
starting a replica costs seconds. The replicas count what they serve, so callers in other processes
count too; those report the lengths of their queues with their probes (``registry.py``).

>>> wanted(replicas=2, waiting=500, served=128, slots=64)
4
>>> wanted(replicas=4, waiting=10, served=200, slots=64)
4
>>> wanted(replicas=4, waiting=0, served=90, slots=64)
3
>>> wanted(replicas=4, waiting=0, served=120, slots=64)
4
"""

import asyncio
import logging
import time
from collections.abc import Callable

from zorplex_rl.services.endpoint_error import reason_of
from zorplex_rl.services.replica_set import ReplicaSet

log = logging.getLogger(__name__)
CHECK_SECONDS = 0.1
CALM_SECONDS = 3.0


def wanted(replicas: int, waiting: int, served: int, slots: int) -> int:
    """Return the number of replicas that this load calls for. ``slots`` are for one replica."""
    if waiting > max(served, replicas) or served > replicas * slots:
        return 2 * replicas
    if waiting == 0 and served <= (replicas - 1) * slots / 2:
        return replicas - 1
    return replicas


async def follow_the_load(replica_set: ReplicaSet, waiting_here: Callable[[], int]) -> None:
    """Scale ``replica_set`` between its bounds until cancelled."""
    options, calm_since = replica_set.options, time.monotonic()
    least, most = options.bounds

    def target() -> int:
        there = replica_set.replicas.values()
        waiting = waiting_here() + sum(replica.traffic.waiting_elsewhere for replica in there)
        served = sum(replica.load for replica in there)
        return min(max(wanted(len(there), waiting, served, options.max_in_flight), least), most)

    while True:
        await asyncio.sleep(CHECK_SECONDS)
        number, there = target(), len(replica_set.replicas)
        if number >= there:
            calm_since = time.monotonic()
        if number > there:
            try:
                await replica_set.scale_to(number)
            except Exception as error:
                log.warning("%r could not be scaled to %d replicas: %s", replica_set.name, number, reason_of(error))
                await asyncio.sleep(options.max_back_off)
        elif time.monotonic() - calm_since > CALM_SECONDS:
            calm_since = time.monotonic()
            # Those that leave drain on the side: a load that comes before that keeps them.
            replica_set.spawn(replica_set.shrink(target))
