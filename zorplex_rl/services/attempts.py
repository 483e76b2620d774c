"""Start replicas one after the other until one is up, or until that has failed too often.

    start ──► it fails ──► back off ──► start ──► …    after ``max_failures`` in a row: GiveUp

What a set-up raises is no accident of its process: the first replica of a place has one more attempt
after it, and none if it is a ConfigError.
"""

import asyncio
import logging
import random
from collections.abc import Iterator

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import Replica, ReplicaStart, bring_up, reason_of
from zorplex_rl.services.runtime import ActorError
from zorplex_rl.services.service_errors import GivenUp

log = logging.getLogger(__name__)


class GiveUp(Exception):
    """Say, also from within a start, that further attempts are pointless.

    Callers that wait for the replica get ``error``.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Streak:
    """Count the failures in a row of one place of service ``name``: of starts, and of replicas that finished nothing."""

    def __init__(self, name: str, options: ServiceOptions) -> None:
        self.name, self.options, self.count = name, options, 0

    async def add(self, last: str) -> None:
        """Count a failure, and wait, the longer the more there were. Raises GiveUp after too many."""
        self.count += 1
        if self.count > self.options.max_failures:
            times = f"has failed {self.count} times in a row without finishing anything"
            look = f"; look at {self.options.runs}" if self.options.runs else ""
            raise GiveUp(GivenUp(f"{self.name} {times}; the last time, {last}{look}"))
        await asyncio.sleep(back_off(self.count, self.options.back_off, self.options.max_back_off))


async def until_one_is_up(names: Iterator[str], start: ReplicaStart, streak: Streak, first: bool = False) -> Replica:
    """Start a replica under the next of ``names``, again and again until one is up.

    ``first`` says that it is the first of its place. Raises GiveUp, or what its set-up raised.
    """
    raised = 0
    while True:
        name = next(names)
        try:
            return await bring_up(name, start, streak.options.start_timeout)
        except GiveUp:
            raise
        except Exception as error:
            cause = error.exception if isinstance(error, ActorError) else error
            raised += isinstance(error, ActorError)
            if isinstance(cause, ConfigError):
                raise GiveUp(cause) from error
            if first and raised > 1:
                raise
            reason = reason_of(error) or type(error).__name__
            log.warning("a replica of %r could not be started: %s", streak.name, reason)
            await streak.add(f"{name} could not be started: {reason}")


def back_off(failures: int, base: float, most: float) -> float:
    """Return how many seconds to wait before the next start, after so many early failures in a row.

    Nothing after the first, ``base`` after the second, then doubled up to ``most``; less up to half by
    chance, so that replicas that failed together do not all start together. The exponent is bounded: a
    float is not, and a place may fail for days.
    """
    if failures < 2:
        return 0.0
    return min(base * 2 ** min(failures - 2, 30), most) * random.uniform(0.5, 1.0)
