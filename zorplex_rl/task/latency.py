"""Draw how long something takes whose time varies: a tool that answers, a group that is sampled."""

import math
import random


def lognormal(rng: random.Random, mean: float, variation: float) -> float:
    """Draw log-normally with mean and variation: σ² = ln(1 + variation²), μ = ln(mean) − σ²/2."""
    sigma = math.sqrt(math.log1p(variation**2))
    return mean * math.exp(sigma * rng.gauss(0, 1) - sigma**2 / 2)
