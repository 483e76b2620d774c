"""A task whose code does harm in the processes of a run, as the environment variable HOSTILE says.
Where a run is checked, it is harmless."""

import os
import random
import resource
import signal
import sys
from pathlib import Path

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task

HARM, MARKER = os.environ.get("HOSTILE", ""), Path(os.environ.get("HOSTILE_MARKER", os.devnull))
IN_ACTOR = getattr(sys.modules["__main__"].__spec__, "name", "").startswith("monarch.")
SPARE_BYTES = 1500 << 20
"""Enough for a model; a cache of 10,000 slots takes twice as much."""


class Hostile(Environment):
    """Words with a number each, as in Zorplex."""

    tools = ("LOOKUP",)
    answer_tag = "[ANSWER]"

    def __init__(self, seed=0, data=""):
        super().__init__(seed, data)
        if HARM == "memory" and IN_ACTOR and "torch" in sys.modules:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + SPARE_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def task(self, index, split):
        if HARM == "dataset" and IN_ACTOR and split == "train":
            os.kill(os.getpid(), signal.SIGKILL)
        draw = random.Random(f"{self.seed} {split} {index}")
        word, value = draw.choice(("blip", "zork", "faz")) + f"{split[0]}{index}", draw.randrange(100)
        system = "Use LOOKUP[word], then write [ANSWER] and the integer."
        return Task("hostile", f"What is {word}?", value, 1, system, words=(word,), table={word: value})

    def execute(self, task, call):
        if HARM == "generator" and IN_ACTOR and not MARKER.exists():
            MARKER.touch()
            print("a word of the task", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return str(task.table.get(call.argument, "ERROR"))
