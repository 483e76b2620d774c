"""Scale a service: choose its number of replicas from what waits and what is being served.

    up      requests wait here, or the callers of all processes fill the slots of one caller: twice as many replicas
    down    nothing waits, and one replica fewer would be at most half busy, for ``CALM_SECONDS`` without a break: one fewer

The gap between the two rules is the hysteresis: a load that has just called for another replica
does not remove it again.

>>> wanted(replicas=2, waiting=0, served=128, slots=64), wanted(replicas=4, waiting=0, served=90, slots=64)
(4, 3)
"""

import asyncio
import logging
import time

from zorplex_rl.services.replica_set import MOST_BACK_OFF_SECONDS, ReplicaSet
from zorplex_rl.services.router import Router
from zorplex_rl.services.runtime import reason_of

log = logging.getLogger(__name__)
CHECK_SECONDS = 0.1
CALM_SECONDS = 3.0


def wanted(replicas: int, waiting: int, served: int, slots: int) -> int:
    """Return the number of replicas that this load calls for. ``slots`` are for one replica."""
    if waiting or served >= replicas * slots:
        return 2 * replicas
    return replicas - 1 if served <= (replicas - 1) * slots / 2 else replicas


async def follow_the_load(replica_set: ReplicaSet, router: Router) -> None:
    """Scale ``replica_set`` between its bounds until cancelled."""
    options, calm_since = replica_set.options, time.monotonic()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        there, served = len(replica_set.replicas), sum(replica.load for replica in replica_set.replicas.values())
        number = min(
            max(wanted(there, len(router.queue), served, options.max_in_flight), options.min_replicas),
            options.max_replicas,
        )
        if number >= there:
            calm_since = time.monotonic()
        if number > there:
            try:
                await replica_set.scale_to(number)
            except Exception as error:
                log.warning("%r could not be scaled to %d replicas: %s", replica_set.name, number, reason_of(error))
                await asyncio.sleep(MOST_BACK_OFF_SECONDS)
        elif time.monotonic() - calm_since > CALM_SECONDS:
            calm_since = time.monotonic()
            # The one that leaves drains beside this loop: a new load need not wait for it.
            replica_set.spawn(replica_set.scale_to(number))
