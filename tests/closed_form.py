"""Settings to simulate, drawn at random, and the wall time of a run in closed form, where latencies
do not vary: what the simulator and the lower bounds are checked against.

Without variation, and if the generators divide a step's groups, the recursion of ``course/bounds.py`` is
exact. Its longest path, over N steps, is

    b = P/G · generation, t = training, s = weight sync

    sync     N (s + ⌈P/G⌉ · generation + t)
    async    s + b + t + max( (N − 1) max(b, t),  max_m  m (s + b + t) + (N − 1 − m (L + 1)) max(b, t, s) ),   1 ≤ m ≤ (N − 1) / (L + 1)

Such a path goes m times around the loop (sync, sampling, training). Each round advances L + 1
steps; the other steps follow one resource.
"""

from hypothesis import strategies as st

from zorplex_rl.course.bounds import Mode
from zorplex_rl.simulation.setting import Setting

A_HAIR = 1 + 1e-9
"""Sums of many floats in two orders differ by less."""

seconds = st.integers(0, 4000).map(lambda milliseconds: milliseconds / 1000)
any_setting = st.builds(
    Setting,
    generators=st.integers(1, 10),
    groups_per_step=st.integers(1, 10),
    steps=st.integers(1, 12),
    max_lag=st.integers(0, 5),
    generation_seconds=seconds,
    variation=st.sampled_from([0, 0.2, 0.5, 1, 2, 3]),
    training_seconds=seconds,
    sync_seconds=seconds,
    straggler=st.sampled_from([1, 1, 8]),
    seed=st.integers(0, 10**6),
)
# Quarters of a second are sums of powers of two: their arithmetic is exact, and so is every
# comparison.
quarters = st.integers(0, 16).map(lambda n: n / 4)
even_setting = st.builds(
    lambda rounds, generators, **rest: Setting(
        groups_per_step=rounds * generators, generators=generators, **rest
    ),
    rounds=st.integers(1, 4),
    generators=st.sampled_from([1, 2, 3, 4, 8]),
    steps=st.integers(1, 20),
    max_lag=st.integers(0, 6),
    generation_seconds=quarters,
    variation=st.just(0),
    training_seconds=quarters,
    sync_seconds=quarters,
)


def exact_seconds(setting: Setting, mode: Mode) -> float:
    """Return the wall time in seconds."""
    assert not setting.variation and setting.straggler == 1
    rounds = -(-setting.groups_per_step // setting.generators)
    batch, train, transfer = (
        rounds * setting.generation_seconds,
        setting.training_seconds,
        setting.sync_seconds,
    )
    once, steps, lag = transfer + batch + train, setting.steps, setting.max_lag
    if mode == "sync" or lag == 0:
        return steps * once
    assert setting.groups_per_step % setting.generators == 0, (
        "in async mode generators share a step evenly"
    )
    row = max(batch, train, transfer)
    paths = [(steps - 1) * max(batch, train)]
    paths += [
        m * once + (steps - 1 - m * (lag + 1)) * row for m in range(1, (steps - 1) // (lag + 1) + 1)
    ]
    return once + max(paths)
