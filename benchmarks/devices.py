"""Sample and train on every device of this machine: the CPU, with one thread and with all, and the first GPU, if there is one.

sampling    episodes per second of the rollout engine, with more and more of them at once
training    seconds of one update on a batch of those episodes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch
import tyro
from log import Report, append_report, print_report

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import EMBEDDED, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.specs import get_spec
from zorplex_rl.training.devices import assign_devices, prepare

ASKED = "How many episodes per second does one generator sample, and how long does one update take, on each device of this machine?"
EXPECTED = (
    "The embedded policy is so small that a decoding step on a GPU is bound by the start of its kernels: slower than a CPU with 64 episodes at once, "
    "faster with 1,024. A model of 100 million parameters is at least 10 times faster on a GPU."
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    policy: str = EMBEDDED
    """``embedded``, a folder or a hub id."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    at_once: tuple[int, ...] = (64, 256, 1024)
    """Episodes at once; as many are sampled."""
    max_tokens: int = 64
    """Longest answer in tokens."""
    repeats: int = 3
    """Repetitions, after one that is not counted."""
    token_budget: int = 8192
    """Tokens of a micro-batch of the update."""
    log: bool = True
    """Append the result to LOG.md."""


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Return how long ``run`` takes until ``device`` has done everything."""
    began = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(options: Options, device: str, threads: int) -> list[list[str]]:
    """Return a row for each number of episodes at once."""
    prepare(device, threads)
    policy, spec = load_policy(options.policy, device, options.dtype), get_spec("compositional", 0)
    learner = Learner(
        load_policy(options.policy, device, options.dtype), LearnerConfig(token_budget=options.token_budget)
    )
    rows = []
    for at_once in options.at_once:
        sampling, sampled, updates = Sampling(max_tokens=options.max_tokens, slots=at_once), [], []
        episodes: list[Episode] = []
        for repeat in range(-1, options.repeats):
            requests = [
                RolloutRequest(spec.task(8 * (repeat + 1) + index % 8), at_once * repeat + index)
                for index in range(at_once)
            ]

            def sample() -> None:
                episodes[:] = rollout(policy, requests, spec.execute, sampling)  # noqa: B023

            sampled.append(seconds_of(sample, device))
            advantages = torch.linspace(-1, 1, at_once)
            updates.append(seconds_of(lambda: learner.step(episodes, advantages), device))  # noqa: B023
        tokens = sum(len(episode.token_ids) for episode in episodes) / at_once
        rate, update = at_once / median(sampled[1:]), median(updates[1:])
        where = torch.cuda.get_device_name(device) if device != "cpu" else f"CPU, {threads} threads"
        rows.append(
            [where, str(at_once), f"{rate:,.0f}", f"{rate * tokens:,.0f}", f"{update:.3f}", f"{at_once / update:,.0f}"]
        )
    return rows


def main(options: Options) -> None:
    gpu = assign_devices("auto", ["generator"])["generator"]
    cases = [("cpu", 1), ("cpu", torch.get_num_threads())] + [(gpu, 1)] * (gpu != "cpu")
    rows = [row for device, threads in dict.fromkeys(cases) for row in measure(options, device, threads)]
    columns = ["device", "at once", "episodes/s", "tokens/s", "s per update", "episodes/s in an update"]
    parameters = load_policy(options.policy).model.num_parameters()
    report = Report(f"{parameters:,} parameters, {options.dtype}", columns, rows)
    print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name not in ("log", "policy")}
        append_report("benchmarks/devices.py", ASKED, EXPECTED, settings, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
