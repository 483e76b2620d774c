"""Run a study of staleness on several processes: each runs one trial (``learning/staleness.py``) at a time, in a thread.

trials ──► study_0 ──► results, in the order in which they are ready
     └───► study_1 ──┘
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import torch

from zorplex_rl.learning.staleness import Conditions, Trial, TrialResult, train_with_lag
from zorplex_rl.services.replica import Replica, spawn
from zorplex_rl.services.runtime import Actor, concurrent_endpoint, run_together


class StudyActor(Actor):
    """Run trials."""

    @concurrent_endpoint
    async def run(self, trial: Trial, conditions: Conditions) -> TrialResult:
        return await asyncio.to_thread(_run, trial, conditions)


async def run_trials(
    trials: Iterable[Trial],
    conditions: Conditions,
    processes: int = 2,
    on_outcome: Callable[[TrialResult], None] = lambda outcome: None,
) -> list[TrialResult]:
    """Run ``trials``. Returns their results; calls ``on_outcome`` with each as soon as it is ready. Stops all processes at the end."""
    waiting, outcomes = deque(trials), []
    replicas: list[Replica] = []

    async def work(replica: Replica) -> None:
        while waiting:
            outcomes.append(await replica.actor.run.call_one(waiting.popleft(), conditions))
            on_outcome(outcomes[-1])

    try:
        for number in range(processes):
            replicas.append(await spawn(f"study_{number}", StudyActor))
        await run_together(*map(work, replicas))
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))
    return outcomes


def _run(trial: Trial, conditions: Conditions) -> TrialResult:
    if conditions.device == "cpu":
        torch.set_num_threads(1)
    return train_with_lag(trial, conditions)
