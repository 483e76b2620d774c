"""How many replicas a service has, by what waits for them.

    up      more requests are queued than the replicas have in flight: twice as many replicas, up to the maximum
    down    nothing is queued, and one replica fewer would be at most half busy, for ``CALM_SECONDS`` without a break: one replica fewer

The gap between the two rules is the hysteresis: a load that has just called for another replica does not send it away again. Up is quick
because requests wait; down is slow because starting a replica costs seconds, and a replica that goes first answers what it was given.

>>> wanted(replicas=2, queued=500, in_flight=128, max_in_flight=64)
4
>>> wanted(replicas=4, queued=10, in_flight=200, max_in_flight=64)
4
>>> wanted(replicas=4, queued=0, in_flight=90, max_in_flight=64)
3
>>> wanted(replicas=4, queued=0, in_flight=120, max_in_flight=64)
4
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zorplex_rl.system.service import Service

CHECK_SECONDS = 0.1
CALM_SECONDS = 3.0


def wanted(replicas: int, queued: int, in_flight: int, max_in_flight: int) -> int:
    """How many replicas this load calls for, without bounds."""
    if queued > max(in_flight, replicas):
        return 2 * replicas
    if queued == 0 and in_flight <= (replicas - 1) * max_in_flight / 2:
        return replicas - 1
    return replicas


async def follow_the_queue(service: Service, least: int, most: int) -> None:
    """Scale ``service`` between ``least`` and ``most`` replicas until cancelled."""
    pool, calm_since = service.pool, time.monotonic()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        replicas = len(service.places)
        target = wanted(replicas, pool.queue_depth, pool.in_flight, service.options.limits.max_in_flight)
        target = min(max(target, least), most)
        if target >= replicas:
            calm_since = time.monotonic()
        if target > replicas or time.monotonic() - calm_since > CALM_SECONDS:
            if target != replicas:
                await service.scale_to(target)
            calm_since = time.monotonic()
