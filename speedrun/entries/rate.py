"""The learning rate is 5e-4 and falls to a tenth in 40 steps: at 2e-4 the steps are too small for so few of them."""

from zorplex_rl.learning.entry import Entry


class Rate(Entry):
    learning_rate, warmup_steps, decay_steps, most_steps, enough = 5e-4, 3, 40, 40, 2.0
