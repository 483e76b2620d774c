"""The learning rate of each step."""


def schedule(version: int, warmup_steps: int, decay_steps: int) -> float:
    """Return the learning rate's share at ``version``: linear warm-up, linear fall to a tenth.

    >>> [schedule(version, warmup_steps=2, decay_steps=12) for version in (0, 1, 2, 7, 12, 20)]
    [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """
    if version < warmup_steps:
        return (version + 1) / warmup_steps
    if not decay_steps:
        return 1.0
    return max(0.1, 1 - 0.9 * (version - warmup_steps) / max(1, decay_steps - warmup_steps))
