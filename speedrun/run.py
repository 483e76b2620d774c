"""Time an entry of the speedrun: how long does it train until 90 % of the hard tasks are answered right?

    python speedrun/run.py speedrun/entries/rate.py              eight secret seeds, then a line for RECORDS.md
    python speedrun/run.py speedrun/entries/rate.py --seeds 1    one seed, to see that it works

    draw a secret seed ──► the entry trains until its next yield ──► sample 400 held-out tasks ──► 90 % right: done
                             the clock runs          ▲                  the clock stands │
                                                     └──────────── fewer ────────────────┘

An entry is a file with a function ``train(policy, tasks, seed)``, which trains the embedded policy in
place on ``tasks`` and yields after each step. Nothing here guards against an entry that cheats: a
person reads it before it counts (RULES.md).
"""

import argparse
import importlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch

from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Task
from zorplex_rl.task.rewards import accuracy

KINDS = ("compositional:hard",)
TARGET = 0.90
SEEDS = 8
TRAINING_TASKS = 1_000
HELD_OUT_TASKS = 400
LOOK_TASKS = 50
MOST_SECONDS = 1_200.0
"""An entry that trains longer on one seed has failed."""

Train = Callable[[Policy, list[Task], int], Iterator[None]]


@dataclass(frozen=True)
class Arrival:
    """The seconds and steps of training until the target was reached."""

    seconds: float
    steps: int


def load_entry(file: Path) -> Train:
    """Return the function ``train`` of an entry. It may import the other entries of its folder."""
    sys.path.insert(0, str(file.resolve().parent))
    return importlib.import_module(file.stem).train


def time_entry(train: Train) -> Arrival | None:
    """Train on a secret seed until ``TARGET`` is reached. Returns None if it is not reached."""
    secret = random.SystemRandom()
    training = Zorplex(secret.getrandbits(60))
    testing = Zorplex(secret.getrandbits(60))
    tasks = training.tasks(KINDS, TRAINING_TASKS)
    held_out = testing.tasks(KINDS, 2 * HELD_OUT_TASKS, "held_out")
    policy = load_policy()

    def share_right(some: list[Task]) -> float:
        episodes = play(policy, Zorplex(), some, seed=secret.getrandbits(30))
        return accuracy(episodes)

    def has_arrived() -> bool:
        # A look at a few tasks spares most of the time.
        if share_right(held_out[:LOOK_TASKS]) < TARGET - 0.1:
            return False
        if share_right(held_out[:HELD_OUT_TASKS]) < TARGET:
            return False
        # Others confirm that it was no luck.
        return share_right(held_out[HELD_OUT_TASKS:]) >= TARGET

    # Before the clock runs, the libraries load what they load late.
    share_right(held_out[:LOOK_TASKS])
    seconds = 0.0
    seed = secret.getrandbits(30)
    with closing(train(policy, tasks, seed)) as steps:
        began = time.perf_counter()
        for number, _ in enumerate(steps, start=1):
            seconds += time.perf_counter() - began
            if has_arrived():
                return Arrival(seconds, number)
            if seconds > MOST_SECONDS:
                return None
            began = time.perf_counter()
    return None


def record_of(name: str, arrivals: list[Arrival]) -> str:
    """Return the line for RECORDS.md.

    >>> record_of("rate", [Arrival(20.0, 31), Arrival(30.0, 40)])[13:]
    '| `rate` | 25.0 | 35.5 | 2 |'
    """
    seconds = median(arrival.seconds for arrival in arrivals)
    steps = median(arrival.steps for arrival in arrivals)
    return f"| {date.today()} | `{name}` | {seconds:.1f} | {steps:g} | {len(arrivals)} |"


def main(file: Path, seeds: int) -> int:
    """Time the entry in ``file`` on ``seeds`` secret seeds. Returns 1 if it fails on one of them."""
    torch.set_num_threads(1)
    train = load_entry(file)
    arrivals = list[Arrival]()
    for number in range(1, seeds + 1):
        arrival = time_entry(train)
        if arrival is None:
            print(f"seed {number}: fewer than {TARGET:.0%} right to its end")
            return 1
        print(f"seed {number}: {arrival.seconds:.1f} s, {arrival.steps} steps", flush=True)
        arrivals.append(arrival)
    print(record_of(file.stem, arrivals))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("entry", type=Path, help="the entry's file")
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        help="eight make a record",
    )
    options = parser.parse_args()
    sys.exit(main(options.entry, options.seeds))
