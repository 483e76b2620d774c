"""As baseline.py, and the learning rate is 5e-4 and falls to a tenth in 40 steps: at 2e-4 so few steps are too small."""

from functools import partial

from baseline import train as baseline

train = partial(baseline, steps=40, learning_rate=5e-4, warmup_steps=3)
