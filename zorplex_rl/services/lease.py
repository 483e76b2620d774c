"""A lease: until when a host may work. It keeps two machines from the same work; see ``host.py``.

>>> lease = Lease(seconds=10.0, now=100.0)
>>> lease.renew(token=101.0), lease.runs_out
(None, 111.0)
>>> lease.renew(token=100.5), lease.runs_out  # A message that was late changes nothing.
(None, 111.0)
"""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """Hold for ``seconds`` from the newest token that has come back: a time of its clock."""

    seconds: float
    now: float

    def renew(self, token: float) -> None:
        self.now = max(self.now, token)

    @property
    def runs_out(self) -> float:
        return self.now + self.seconds


def clock() -> float:
    """Return this machine's seconds, on a clock that runs in suspension, if it has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
