"""Measure what a trainer or a generator really takes, and how much memory there is.

    measure([("trainer", work), …], folder) ──► a process for each: the real parts, without Monarch ──► Measured

Memory is the process's resident set at its highest, minus that before the policy was loaded, when
libraries had run another; seconds are those on its processors. Linux only. With a GPU memory is what
torch has allocated there, and seconds are wall time.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zorplex_rl.config import LearnerConfig
from zorplex_rl.sizing.memory import RING_SLOTS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zorplex_rl.policy.load import Policy
    from zorplex_rl.task.episode import Task

WARM_UP = Workload(prompt=1, response=16, prompts=2, group_size=2, slots=4, tasks=2)


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of a process at its highest, and seconds of the trainer's second step or of all sampling.
    ``work`` has the prompts as they were."""

    work: Workload
    peak: int
    seconds: float
    decode_steps: int


def measure(cases: Sequence[tuple[str, Workload]], folder: str | Path, device: str = "cpu") -> list[Measured]:
    """Return what the policy in ``folder`` takes in each of ``cases``: a "trainer" that takes steps on
    ``prompts`` groups, or a "generator" that samples ``tasks`` groups. All answers have full length."""
    # One thread, as for an actor: processor time is then the time on a quiet machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    asked = json.dumps([(role, asdict(work), str(folder), device) for role, work in cases])
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__, asked], stdout=subprocess.PIPE, env=environment, check=True
    )
    return [Measured(Workload(**work), *numbers) for work, *numbers in json.loads(done.stdout)]


def _prompts(policy: Policy, work: Workload, count: int) -> tuple[Workload, list[tuple[Task, list[int]]]]:
    """Return ``count`` tasks with their prompts, of about as many tokens as ``work`` says, and
    ``work`` with these prompts' lengths."""
    from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
    from zorplex_rl.task.environment import Zorplex

    tasks = Zorplex(0).tasks(("compositional:easy",), count, "train")
    longest = max(len(encode_prompt(policy.tokenizer, task)) for task in tasks)
    word = len(encode_text(policy.tokenizer, " 7" * 100)) / 100
    padding = " 7" * max(0, round((work.prompt - longest) / word))
    padded = [replace(task, system=task.system + padding) for task in tasks]
    prompts = [encode_prompt(policy.tokenizer, task) for task in padded]
    shared = next((i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1), 0)
    work = replace(work, prompt=max(map(len, prompts)), shared_prompt=shared)
    return work, list(zip(padded, prompts, strict=True))


def _train(policy: Policy, work: Workload, clock: Callable[[], float]) -> tuple[Workload, float, int]:
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.task.episode import Episode
    from zorplex_rl.weights.ring import WeightRing

    learner = Learner(policy, LearnerConfig(token_budget=work.token_budget))
    ring = WeightRing(policy.model, RING_SLOTS)
    for version in range(RING_SLOTS):
        ring.publish(policy.model, version)
    work, prompts = _prompts(policy, work, work.prompts)
    count = work.response
    # Responses of a group differ from their first token on.
    texts = [[(sample + i) % 500 for i in range(count)] for sample in range(work.group_size)]
    episodes = [
        Episode(task, prompt, text, [True] * count, [-6.0] * count, [], "tokens", sample, group)
        for group, (task, prompt) in enumerate(prompts)
        for sample, text in enumerate(texts)
    ]
    advantages = [1.0 if episode.seed % 2 else -1.0 for episode in episodes]
    learner.step(episodes, advantages)
    # The second step meets the optimizer's state, and what the first has freed.
    began = clock()
    learner.step(episodes, advantages)
    seconds = clock() - began
    ring.publish(policy.model, RING_SLOTS)
    return work, seconds, 0


def _sample(policy: Policy, work: Workload, clock: Callable[[], float]) -> tuple[Workload, float, int]:
    from zorplex_rl.policy.requests import Sampling
    from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest
    from zorplex_rl.task.specs import run_tool

    work, prompts = _prompts(policy, work, work.tasks)
    requests = [RolloutRequest(task, 7 * i, i) for i, (task, _) in enumerate(prompts) for _ in range(work.group_size)]
    began = clock()
    engine = RolloutEngine(policy, run_tool, Sampling(1.0, work.response, 6, work.slots))
    engine.submit(requests)
    steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
    return work, clock() - began, steps


def _measure_here(case: tuple[str, dict[str, Any], str, str]) -> tuple[dict[str, Any], int, float, int]:
    """Measure ``case`` in this process, once the embedded policy has done the same."""
    import torch

    from zorplex_rl.policy.load import load_policy

    role, settings, folder, device = case
    work = Workload(**settings)
    run = {"trainer": _train, "generator": _sample}[role]

    def clock() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.monotonic()

    run(load_policy(dtype=work.dtype, of_transformers=True), WARM_UP, clock)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _memory("VmRSS")
    policy = load_policy(folder, device, work.dtype)
    # From here on: while a policy is loaded the kernel maps its files, which it can drop.
    Path("/proc/self/clear_refs").write_text("5")
    work, seconds, steps = run(policy, work, clock)
    peak = _memory("VmHWM") - before if device == "cpu" else torch.cuda.max_memory_allocated()
    return asdict(work), peak, seconds, steps


def _memory(name: str) -> int:
    """Return an entry of this process's status in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


if __name__ == "__main__":
    import zorplex_rl.learning.learner
    import zorplex_rl.policy.rollout  # noqa: F401

    # A process for each case, forked after the imports, which take seconds.
    with get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        print(json.dumps(processes.map(_measure_here, json.loads(sys.argv[1]), chunksize=1)))
