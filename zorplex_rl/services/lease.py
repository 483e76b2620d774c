"""A lease: until when a host may work. It keeps two machines from doing the same work; see
``host.py``.

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
    """Until when a host may work: ``seconds`` from the newest token that has come back. A token is
    a time of the host's own clock."""

    seconds: float
    now: float

    def renew(self, token: float) -> None:
        self.now = max(self.now, token)

    @property
    def runs_out(self) -> float:
        return self.now + self.seconds


def clock() -> float:
    """Return this machine's time in seconds. It also runs while the machine is suspended, where the
    system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
