"""Measure what a trainer or generator really takes: peak memory and processor time, afresh.

    make_model(shape, folder) ──► measure({"role": "trainer", …}) ──► a new process: the real parts, without Monarch ──► Measured

Memory is the resident set of that process at its highest (``VmHWM``), minus the resident set before
the model was loaded. By then the process has imported everything and run a tiny model through the
same code, so that the libraries' own buffers are not counted. The kernel's high-water mark is reset
between phases (``/proc/self/clear_refs``), so each phase has a peak of its own. Time is that of the
process on its processors, so that neighbours on the machine change it little. Linux only. With
``device="cuda"`` memory is what torch has allocated on the GPU, and time is wall time.

    trainer      load the policy, make optimizer and ring, publish, train on one batch of episodes (twice), publish, save a checkpoint
    generator    load the policy, map the ring of another process, pull, sample all slots, pull
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from zorplex_rl.config import Config, Dtype, LearnerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zorplex_rl.policy.load import Policy
    from zorplex_rl.sizing.model_shape import ModelShape
    from zorplex_rl.sizing.workload import Workload
    from zorplex_rl.task.episode import Episode, Task

Role = Literal["trainer", "generator"]


@dataclass(frozen=True, slots=True)
class Case:
    """``prompts`` groups of ``group_size`` episodes: ``prompt_tokens``, then ``max_tokens``.
    ``slots`` concern the generator, ``token_budget`` and ``updates_per_batch`` the trainer."""

    role: Role
    folder: str
    dtype: Dtype = "float32"
    prompts: int = 8
    group_size: int = 8
    prompt_tokens: int = 100
    max_tokens: int = Config.max_tokens
    token_budget: int = LearnerConfig.token_budget
    updates_per_batch: int = 1
    slots: int = Config.slots
    checkpoint: bool = True
    steps: int = 2
    device: str = "cpu"
    calibrate: bool = True
    """Also measure the machine, right after in the same process: neighbours disturb both alike."""


@dataclass(slots=True)
class Measured:
    """What a process took: bytes above ``baseline`` at each phase's highest, and processor seconds.
    ``prompt_tokens``: the longest prompt as it was; ``decode_steps``: those of the generator."""

    baseline: int
    peaks: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int = 0
    shared_tokens: int = 0
    decode_steps: int = 0
    machine: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Bytes at the highest of all phases."""
        return max(self.peaks.values())


def make_model(shape: ModelShape, folder: Path, seed: int = 0) -> None:
    """Write a Qwen2 of ``shape``, random float32, and the embedded tokenizer to ``folder``."""
    import shutil

    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    from zorplex_rl.policy.load import EMBEDDED_PATH

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    Qwen2ForCausalLM(Qwen2Config(**shape.as_config())).save_pretrained(folder)
    for file in EMBEDDED_PATH.iterdir():
        if file.name.startswith(("tokenizer", "chat", "generation")):
            shutil.copy(file, folder)


def measure(case: Case, timeout: float = 300.0) -> Measured:
    """Return what ``case`` takes in its own process. Raises RuntimeError with its last words."""
    return next(measure_all([case], timeout))


def measure_all(cases: Sequence[Case], timeout: float = 3000.0) -> Iterator[Measured]:
    """Yield what each of ``cases`` takes, in a process forked after the imports alone."""
    # One thread, as for an actor: processor time is then the time on a quiet machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", __name__, json.dumps([asdict(case) for case in cases])]
    with subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE) as process:
        deadline = threading.Timer(timeout, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            found = 0
            for line in process.stdout:
                if line.startswith("{"):
                    found += 1
                    yield Measured(**json.loads(line))
        finally:
            deadline.cancel()
            process.kill()
    if found < len(cases):
        raise RuntimeError(f"the measurement of {cases[found]} failed; its process says above why")


class _Meter:
    """Reads this process's memory and time, phase by phase: on the GPU if ``device`` is one."""

    def __init__(self, device: str = "cpu") -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._on_gpu = device != "cpu"
        self.measured = Measured(0 if self._on_gpu else _memory("VmRSS"))

    def phase(self, name: str, work: Callable[[], Any]) -> Any:
        """Run ``work`` and note what it took under ``name``. Returns what it returned."""
        from torch import cuda

        if self._on_gpu:
            cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")
        began = self._clock()
        result = work()
        self.measured.seconds[name] = self._clock() - began
        peak = cuda.max_memory_allocated() if self._on_gpu else _memory("VmHWM")
        self.measured.peaks[name] = peak - self.measured.baseline
        return result

    def _clock(self) -> float:
        if not self._on_gpu:
            return time.process_time()
        from torch import cuda

        cuda.synchronize()
        return time.monotonic()


def _memory(name: str) -> int:
    """Return an entry of this process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def _tasks(policy: Policy, case: Case) -> list[Task]:
    """Return ``case.prompts`` tasks whose prompts have about ``case.prompt_tokens`` tokens."""
    from dataclasses import replace

    from zorplex_rl.policy.tool_loop import encode_prompt, encode_text
    from zorplex_rl.task.environment import Zorplex

    tasks = Zorplex(0).tasks(("compositional:easy",), case.prompts, "train")
    base = max(len(encode_prompt(policy.tokenizer, task)) for task in tasks)
    word = len(encode_text(policy.tokenizer, " 7" * 100)) / 100
    padding = " 7" * max(0, round((case.prompt_tokens - base) / word))
    return [replace(task, system=task.system + padding) for task in tasks]


def _episodes(policy: Policy, case: Case, measured: Measured) -> list[Episode]:
    from zorplex_rl.policy.tool_loop import encode_prompt
    from zorplex_rl.task.episode import Episode

    tasks = _tasks(policy, case)
    prompts = [encode_prompt(policy.tokenizer, task) for task in tasks]
    measured.prompt_tokens = max(map(len, prompts))
    episodes = []
    # Prompts in turns: lengths are mixed as in a run, so a micro-batch has all groups.
    for sample in range(case.group_size):
        for group, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
            ids = [(7 * group + 11 * sample + i) % 500 for i in range(case.max_tokens)]
            sampled = [True] * case.max_tokens
            episodes.append(Episode(task, prompt, ids, sampled, [-6.0] * len(ids), [], "tokens", sample, group))
    return episodes


def _train(case: Case, meter: _Meter) -> None:
    from zorplex_rl.learning.checkpoint import save_learner
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.weights.ring import WeightRing

    config = LearnerConfig(token_budget=case.token_budget, updates_per_batch=case.updates_per_batch)
    policy = meter.phase("load", lambda: load_policy(case.folder, case.device, case.dtype))
    learner = meter.phase("optimizer", lambda: Learner(policy, config))

    ring = meter.phase("ring", lambda: WeightRing(policy.model))
    for version in range(4):
        meter.phase("publish", partial(ring.publish, policy.model, version))
    episodes = _episodes(policy, case, meter.measured)
    advantages = [1.0 if e.seed % 2 else -1.0 for e in episodes]
    for number in range(case.steps):
        meter.phase(f"step {number + 1}", lambda: learner.step(episodes, advantages))
        meter.phase("publish", partial(ring.publish, policy.model, 4 + number))
    if case.checkpoint:
        with tempfile.TemporaryDirectory() as folder:
            meter.phase("checkpoint", lambda: save_learner(learner, Path(folder) / "learner"))


def _sample(case: Case, meter: _Meter) -> None:
    import torch

    from zorplex_rl.policy.decoder import _shared_length
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest
    from zorplex_rl.policy.tool_loop import Sampling, encode_prompt
    from zorplex_rl.task.specs import run_tool
    from zorplex_rl.weights.layout import Layout

    policy = meter.phase("load", lambda: load_policy(case.folder, case.device, case.dtype))
    layout = Layout.of(policy.model)
    staging = meter.phase("staging", lambda: torch.zeros(layout.size, dtype=torch.uint8))

    def pull() -> None:
        layout.pack(policy.model, staging)
        layout.unpack(staging, policy.model)

    meter.phase("pull", pull)
    tasks = _tasks(policy, case)
    lengths = [encode_prompt(policy.tokenizer, task) for task in tasks]
    meter.measured.prompt_tokens = max(map(len, lengths))
    meter.measured.shared_tokens = _shared_length(lengths)
    requests = [RolloutRequest(task, 7 * i, i) for i, task in enumerate(tasks) for _ in range(case.group_size)]
    sampling = Sampling(1.0, case.max_tokens, 6, case.slots)
    engine = RolloutEngine(policy, run_tool, sampling)
    engine.submit(requests)
    meter.phase("first step", engine.step)

    def decode() -> None:
        while not engine.idle:
            engine.step()
            meter.measured.decode_steps += 1

    meter.phase("sample", decode)
    meter.phase("pull again", pull)


ROLES: dict[Role, Callable[[Case, _Meter], None]] = {"trainer": _train, "generator": _sample}


def _warm_up(roles: Sequence[Role], dtypes: Sequence[Dtype]) -> None:
    """Run a tiny model through all that will be measured, so that libraries have loaded."""
    import torch

    from zorplex_rl.sizing.model_shape import ModelShape

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiny = ModelShape(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=64, vocabulary=600)
    with tempfile.TemporaryDirectory() as folder:
        make_model(tiny, Path(folder))
        for dtype in dtypes:
            for role in roles:
                case = Case(role, folder, dtype, prompts=2, group_size=2, max_tokens=16, prompt_tokens=8, slots=4)
                ROLES[role](case, _Meter())


def _measure_here(case: Case) -> Measured:
    # Again, for a forked process: the pages of its libraries count from when it touches them.
    _warm_up([case.role], [case.dtype])
    meter = _Meter(case.device)
    ROLES[case.role](case, meter)
    if case.calibrate:
        from zorplex_rl.sizing.step_time import calibrate

        shape, work = workload_of(case, meter.measured)
        meter.measured.machine = asdict(calibrate(shape, work, device=case.device))
    return meter.measured


def workload_of(case: Case, measured: Measured) -> tuple[ModelShape, Workload]:
    """Return what ``memory.py`` needs to compute what was measured."""
    from zorplex_rl.sizing.model_shape import ModelShape
    from zorplex_rl.sizing.workload import Workload

    shape = ModelShape.of(json.loads((Path(case.folder) / "config.json").read_text()))
    return shape, Workload(
        measured.prompt_tokens, case.max_tokens, case.prompts, case.group_size, case.token_budget, case.slots,
        measured.shared_tokens, case.prompts, 0, case.dtype, case.dtype,
    )  # fmt: skip


def _in_child(case: Case) -> int:
    """Measure ``case`` in a forked process, which prints the result. Returns its exit code."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    try:
        # In a thread, as in an actor: it has another of the allocator's arenas.
        with ThreadPoolExecutor(1) as pool:
            print(json.dumps(asdict(pool.submit(_measure_here, case).result())), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    from torch.backends import cuda

    if not cuda.is_built():
        # With CUDA, torch's autograd refuses to work in a fork of a process in which it has worked.
        _warm_up(list(ROLES), get_args(Dtype))
    codes = [_in_child(Case(**case)) for case in json.loads(sys.argv[1])]
    sys.exit(max(codes) and 1)
