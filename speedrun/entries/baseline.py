"""What ``zorplex-rl train`` does with default settings, in one process."""

from zorplex_rl.learning.entry import Entry


class Baseline(Entry):
    pass
