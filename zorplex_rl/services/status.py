"""Describe a service at one moment, as plain rows: for a terminal, a page, a row of metrics."""

import io
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from zorplex_rl.services.replica import Replica, State
from zorplex_rl.services.replica_set import ReplicaSet
from zorplex_rl.services.router import Router


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Describe a replica: all processes' requests, its sessions' queued ones, seconds ``up``."""

    place: int
    replica: str
    state: str
    pid: int
    in_flight: int
    queued: int
    requests: int
    up: float


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Describe a service at one moment; ``p50`` to ``p99`` are latencies in milliseconds."""

    name: str
    replicas: tuple[ReplicaStatus, ...]
    requests: int
    answered: int
    application_errors: int
    errors: int
    retries: int
    restarts: int
    queue_depth: int
    in_flight: int
    p50: float
    p95: float
    p99: float

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        counts = (
            f"{self.requests} requests: {self.answered} answered, {self.application_errors} raised, {self.errors} failed, "
            f"{self.queue_depth} waiting, {self.in_flight} in flight; {self.retries} retries, {self.restarts} restarts; "
            f"latency {self.p50:.1f} ms median, {self.p95:.1f} ms p95, {self.p99:.1f} ms p99"
        )
        table = Table(title=f"service {self.name}", caption=counts, caption_justify="left", title_justify="left")
        for column in ("replica", "state", "pid", "in flight", "queued", "requests", "up"):
            table.add_column(column, justify="left" if column in ("replica", "state") else "right")
        for row in self.replicas:
            cells = (row.replica, row.state, row.pid or "", row.in_flight, row.queued, row.requests, f"{row.up:.0f} s")
            table.add_row(*map(str, cells))
        text = io.StringIO()
        Console(file=text, width=100).print(table)
        return text.getvalue().rstrip()


def status_of(replica_set: ReplicaSet, router: Router) -> ServiceStatus:
    """Return the current status of a service. A draining replica is listed until it has stopped."""
    now, bound = time.monotonic(), Counter(request.session.replica for request in router.queue if request.session)

    def row_of(replica: Replica) -> ReplicaStatus:
        up = 0.0 if replica.state is State.STARTING else now - replica.since
        counts = replica.load, bound[replica], replica.traffic.sent
        return ReplicaStatus(replica.place, replica.name, str(replica.state), replica.pid, *counts, up)

    there = sorted([*replica_set.replicas.values(), *replica_set.draining], key=lambda replica: replica.place)
    metrics = router.metrics
    latencies = np.quantile(metrics.latencies or [0.0], (0.5, 0.95, 0.99), method="higher")
    counts = metrics.requests, metrics.answered, metrics.application_errors, metrics.errors, metrics.retries
    now_there = replica_set.restarts, len(router.queue), router.in_flight
    return ServiceStatus(router.name, tuple(map(row_of, there)), *counts, *now_there, *(1000 * latencies).tolist())
