"""The wall time of a simulated run in closed form, where latencies do not vary: what the simulator
and the lower bounds are checked against.

Without variation, and if the generators divide a step's groups, the recursion of ``bounds.py`` is
exact. Its longest path, over N steps, is

    b = P/G · generation, t = training, s = weight sync

    sync     N (s + ⌈P/G⌉ · generation + t)
    async    s + b + t + max( (N − 1) max(b, t),  max_m  m (s + b + t) + (N − 1 − m (L + 1)) max(b, t, s) ),   1 ≤ m ≤ (N − 1) / (L + 1)

Such a path goes m times around the loop (sync, sampling, training). Each round advances L + 1
steps; the other steps follow one resource.
"""

from zorplex_rl.simulation.bounds import Mode
from zorplex_rl.simulation.setting import Setting


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
