"""Measure what a trainer or a generator really takes, and how much memory there is.

    measure([("trainer", work), …], folder) ──► a process for each: the real parts, without Monarch ──► Measured

Memory is the highest resident set of the process, minus that before the policy was loaded. By then the
libraries have run another policy. Seconds are those on the process's processors. Linux only. With a GPU
memory is what torch has allocated there, and seconds are wall time.
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

WARM_UP = Workload(
    prompt=1,
    response=16,
    prompts=2,
    group_size=2,
    slots=4,
    tasks=2,
)
Run = tuple[Workload, float, int]
"""The workload as it was, seconds, and steps of decoding."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process has taken."""

    work: Workload
    """Its workload, with the lengths of the prompts that it had."""
    peak: int
    """Bytes at its highest."""
    seconds: float
    """Of the trainer's second step, or of all sampling."""
    decode_steps: int


def measure(
    cases: Sequence[tuple[str, Workload]],
    folder: str | Path,
    device: str = "cpu",
) -> list[Measured]:
    """Return what the policy in ``folder`` takes in each of ``cases``: a "trainer" that takes steps on
    ``prompts`` groups, or a "generator" that samples ``tasks`` groups. Answers have full length in
    training; sampled ones may end earlier."""
    arguments = [(role, asdict(work), str(folder), device) for role, work in cases]
    output = subprocess.check_output(
        [sys.executable, "-P", "-m", __name__, json.dumps(arguments)],
        # One thread, as for an actor: processor time is then the time on a quiet machine.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    results = []
    for work, peak, seconds, decode_steps in json.loads(output):
        results.append(Measured(Workload(**work), peak, seconds, decode_steps))
    return results


def _prompts(
    policy: Policy,
    work: Workload,
    count: int,
) -> tuple[Workload, list[tuple[Task, list[int]]]]:
    """Return ``count`` tasks with their prompts, of about as many tokens as ``work`` says, and
    ``work`` with these prompts' lengths."""
    from zorplex_rl.policy.tokenizer import encode_prompt, encode_text, shared_length
    from zorplex_rl.task.environment import Zorplex

    tokenizer = policy.tokenizer
    tasks = Zorplex(0).tasks(("compositional:easy",), count, "train")
    longest = max(len(encode_prompt(tokenizer, task)) for task in tasks)
    # Tokens of a word that is repeated to make a prompt longer.
    word = len(encode_text(tokenizer, " 7" * 100)) / 100
    padding = " 7" * max(0, round((work.prompt - longest) / word))
    padded = [replace(task, system=task.system + padding) for task in tasks]
    prompts = [encode_prompt(tokenizer, task) for task in padded]
    longest = max(map(len, prompts))
    work = replace(work, prompt=longest, shared_prompt=shared_length(prompts))
    return work, list(zip(padded, prompts, strict=True))


def _train(
    policy: Policy,
    work: Workload,
    clock: Callable[[], float],
) -> Run:
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.task.episode import Episode
    from zorplex_rl.weights.ring import WeightRing

    learner = Learner(policy, LearnerConfig(token_budget=work.token_budget))
    ring = WeightRing(policy.model, RING_SLOTS)
    for version in range(RING_SLOTS):
        ring.publish(policy.model, version)
    work, prompts = _prompts(policy, work, work.prompts)
    count = work.response
    episodes = []
    for group, (task, prompt) in enumerate(prompts):
        for sample in range(work.group_size):
            episode = Episode(
                task,
                prompt_ids=prompt,
                # Responses of a group differ from their first token on.
                token_ids=[(sample + index) % 500 for index in range(count)],
                sampled=[True] * count,
                logprobs=[-6.0] * count,
                turns=[],
                finish="tokens",
                seed=sample,
                group=group,
            )
            episodes.append(episode)
    advantages = [1.0 if episode.seed % 2 else -1.0 for episode in episodes]
    learner.step(episodes, advantages)
    # The second step meets the optimizer's state, and what the first has freed.
    began = clock()
    learner.step(episodes, advantages)
    seconds = clock() - began
    ring.publish(policy.model, RING_SLOTS)
    return work, seconds, 0


def _sample(
    policy: Policy,
    work: Workload,
    clock: Callable[[], float],
) -> Run:
    from zorplex_rl.policy.lora import merge_to_sample
    from zorplex_rl.policy.requests import Sampling, group_requests
    from zorplex_rl.policy.rollout import RolloutEngine
    from zorplex_rl.task.specs import run_tool

    work, prompts = _prompts(policy, work, work.tasks)
    tasks = [task for task, _ in prompts]
    merge_to_sample(policy.model)
    began = clock()
    sampling = Sampling(1.0, work.response, 6, work.slots)
    engine = RolloutEngine(policy, run_tool, sampling)
    engine.submit(group_requests(enumerate(tasks), work.group_size, 0))
    steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
    return work, clock() - began, steps


def _measure_here(case: tuple[str, dict[str, Any], str, str]) -> tuple[Any, ...]:
    """Return the fields of what ``case`` takes in this process, after the embedded policy has done the
    same."""
    import torch

    from zorplex_rl.policy.load import load_policy

    role, settings, folder, device = case
    work = Workload(**settings)
    run = _sample
    if role == "trainer":
        run = _train

    def clock() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.monotonic()

    run(load_policy(dtype=work.dtype, of_transformers=True), WARM_UP, clock)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _memory("VmRSS")
    policy = load_policy(folder, device, work.dtype, lora_rank=work.lora_rank)
    # Count the peak from here on: the files that the kernel maps while it loads a policy can be dropped.
    Path("/proc/self/clear_refs").write_text("5")
    work, seconds, steps = run(policy, work, clock)
    peak = _memory("VmHWM") - before
    if device != "cpu":
        peak = torch.cuda.max_memory_allocated()
    return asdict(work), peak, seconds, steps


def _memory(name: str) -> int:
    """Return an entry of this process's status in bytes."""
    status = Path("/proc/self/status").read_text()
    _, _, kilobytes = status.partition(f"{name}:")
    return 1024 * int(kilobytes.split()[0])


if __name__ == "__main__":
    import zorplex_rl.learning.learner
    import zorplex_rl.policy.rollout  # noqa: F401

    # A process for each case, forked after the imports, which take seconds.
    with get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        print(json.dumps(processes.map(_measure_here, json.loads(sys.argv[1]), chunksize=1)))
