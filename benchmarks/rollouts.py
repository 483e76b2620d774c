"""How many episodes per second does the rollout engine sample, against ``model.generate``?

    engine                 ``zorplex_rl.policy.rollout``
    generate, one by one   a loop over episodes and turns with ``model.generate`` (``turnwise.py``)
    generate, batched      the same code with all episodes in one batch, as a careful user of TRL writes it

All sample the same tasks of the compositional kind in one process. Each repetition runs all of them
one after another, in a rotating order, on its own tasks and seeds; ratios are taken within a
repetition, and their median is reported. ``generate`` draws other tokens than the engine, so look at
``tokens per episode`` before you read a ratio closely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean, median

import torch
import tyro
from table import describe_machine, print_table
from turnwise import generate_turnwise

from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.specs import get_spec, run_tool

ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    policy: str = "embedded"
    """``embedded``, a folder or a hub id."""
    repeats: int = 7
    """Repetitions of every contender, for each layout."""
    batch: int = 64
    """Episodes at once. Three layouts: groups of 8, different prompts, a stream of eight batches in groups of 8."""


def run_engine(policy: Policy, tasks: list[Task], seed: int, slots: int) -> list[Episode]:
    requests = [RolloutRequest(task, seed + index) for index, task in enumerate(tasks)]
    return rollout(policy, requests, run_tool, Sampling(slots=slots))


def run_generate(policy: Policy, tasks: list[Task], at_once: int) -> list[Episode]:
    parts = [tasks[start : start + at_once] for start in range(0, len(tasks), at_once)]
    return [episode for part in parts for episode in generate_turnwise(policy, part, run_tool)]


def measure(options: Options, ours: Policy, theirs: Policy, prompts: int, count: int) -> None:
    """Run all contenders on ``count`` episodes of ``prompts`` different tasks, and print the table.

    The loop over single episodes has no use for more, and gets the first ``options.batch`` alone.
    """
    spec = get_spec("compositional")
    seconds: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    for repeat in range(-1, options.repeats):
        tasks = [
            spec.task((repeat + 1) * prompts + index * prompts // count) for index in range(count)
        ]
        contenders: dict[str, Callable[[], list[Episode]]] = {
            ENGINE: partial(run_engine, ours, tasks, 1000 * repeat, options.batch),
            "generate, batched": partial(run_generate, theirs, tasks, options.batch),
            "generate, one by one": partial(
                run_generate, theirs, tasks[:: count // options.batch], 1
            ),
        }
        order = list(contenders)
        shift = repeat % len(order)
        torch.manual_seed(repeat + 1)
        for name in order[shift:] + order[:shift]:
            began = time.perf_counter()
            episodes = contenders[name]()
            taken = time.perf_counter() - began
            # The first round warms up.
            if repeat >= 0:
                seconds.setdefault(name, []).append(taken / len(episodes))
                tokens.setdefault(name, []).extend(len(episode.token_ids) for episode in episodes)
    rows = []
    for name, times in seconds.items():
        ratios = [own / other for own, other in zip(times, seconds[ENGINE], strict=True)]
        spread = f"{min(ratios):.2f} – {max(ratios):.2f}"
        rows.append(
            [
                name,
                f"{1 / median(times):.1f}",
                f"{median(ratios):.2f}",
                spread,
                f"{mean(tokens[name]):.1f}",
            ]
        )
    title = (
        f"{count} episodes, {options.batch} at once: {prompts} prompts × {count // prompts} samples"
    )
    print_table(
        title,
        ["contender", "episodes/s", "its time ÷ engine's", "range", "tokens per episode"],
        rows,
    )


def main(options: Options) -> None:
    print(describe_machine())
    torch.set_num_threads(1)
    ours = load_policy(options.policy)
    theirs = load_policy(options.policy, of_transformers=True)
    batch = options.batch
    for prompts, count in ((batch // 8, batch), (batch, batch), (batch, 8 * batch)):
        measure(options, ours, theirs, prompts, count)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
