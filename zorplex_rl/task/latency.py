"""Draw a latency: of a simulated tool call, or of a group in a simulated run."""

import math
import random


def lognormal(
    rng: random.Random,
    mean: float,
    variation: float,
) -> float:
    """Draw from the log-normal distribution with this mean and coefficient of variation. Returns
    exp(μ + σ·z) with σ² = ln(1 + variation²), μ = ln(mean) − σ²/2 and a standard normal z."""
    sigma = math.sqrt(math.log1p(variation**2))
    exponent = sigma * rng.gauss(0, 1) - sigma**2 / 2
    return mean * math.exp(exponent)
