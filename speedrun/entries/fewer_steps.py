"""As two_processes.py, and the rate falls within 32 steps: with a baseline for each prefix it may fall sooner."""

from functools import partial

from two_processes import train as two_processes

train = partial(two_processes, steps=32, sharpen_from=25)
