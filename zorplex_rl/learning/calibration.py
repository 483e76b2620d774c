"""Time this machine: how long does one small step of the simplest trainer take on one thread?

    load the policy ──► a step to warm up ──► steps until the time is over ──► the median of their seconds

A notebook samples and trains in most of its long cells, so the ratio of two machines' figures tells
how much longer its cells take on one of them. Waiting for a probe or a slow tool takes the same
time everywhere: on a slower machine the ratio promises too much time rather than too little.
"""

import statistics
import time

import torch

from zorplex_rl.learning.train_simple import train
from zorplex_rl.policy.load import load_policy
from zorplex_rl.task.environment import Zorplex, kinds_of

PROMPTS = GROUP_SIZE = 4
MOST_STEPS = 12


def seconds_per_step(limit: float = 10.0) -> float:
    """Return the median seconds of a step with 4 × 4 episodes, begun within ``limit`` seconds."""
    began, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds: list[float] = []
        for step in train(load_policy(), Zorplex(), kinds_of("compositional"), 1 + MOST_STEPS, PROMPTS, GROUP_SIZE):
            seconds.append(step.seconds)
            if time.monotonic() - began + max(seconds) > limit:
                break
        # The first step also pays for what torch sets up once.
        return statistics.median(seconds[1:] or seconds)
    finally:
        torch.set_num_threads(threads)
