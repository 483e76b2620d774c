"""What do adapters save? Runs the SmolLM2 preset with ``--lora-rank`` 0, 1, 4, 16 and 64, a few steps each.

    python benchmarks/adapters.py
    python benchmarks/adapters.py --random --ranks 16 --steps 2      random weights in the shape of Qwen2.5-0.5B

A version is what the trainer publishes after a step, a checkpoint what it writes to resume from. Memory is
that of the trainer's and the generator's process at its highest (``VmHWM``). Seconds of sampling, training,
publishing and pulling are those of a step, from the run's ``timeline.json``; the first step, which compiles
kernels, is left out. Seconds are for a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import tyro
from table import describe_machine, print_table

from zorplex_rl.cli.presets import preset_config
from zorplex_rl.cli.size import gigabytes, workload_of
from zorplex_rl.course.nb10 import make_model
from zorplex_rl.policy.auto import resolved
from zorplex_rl.policy.load import policy_folder
from zorplex_rl.sizing.memory import version_bytes
from zorplex_rl.sizing.model_shape import ModelShape, shape_of
from zorplex_rl.task.own_task import EnvironmentSource

HALF_BILLION = ModelShape(24, 896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151_936)
ROLES = ("trainer", "generator_0")
PARTS = ("generate", "train", "publish", "pull")


@dataclass(frozen=True, slots=True)
class Options:
    """Which runs to make."""

    ranks: tuple[int, ...] = (0, 1, 4, 16, 64)
    steps: int = 4
    policy: str = "smollm2"
    random: bool = False
    """Take a model of random weights, with the shape of Qwen2.5-0.5B."""


def watch_memory(run: Path, peaks: dict[str, int], is_over: threading.Event) -> None:
    """Keep the highest memory of the run's processes in ``peaks``, by role, until it is over."""
    while not is_over.wait(0.5):
        metrics = run / "metrics.jsonl"
        if not metrics.exists():
            continue
        started = json.loads(metrics.read_text().partition("\n")[0] or "{}")
        for role in ROLES:
            status = Path(f"/proc/{started.get('processes', {}).get(role)}/status")
            if status.exists():
                _, _, kilobytes = status.read_text().partition("VmHWM:")
                if kilobytes:  # a process that is ending has none
                    peaks[role] = 1024 * int(kilobytes.split()[0])


def seconds_of_parts(run: Path, steps: int) -> dict[str, float]:
    """Return the seconds of each part of a step: the median over all steps but the first."""
    events = json.loads((run / "timeline.json").read_text())["traceEvents"]
    seconds: dict[str, dict[int, float]] = {part: defaultdict(float) for part in PARTS}
    for event in events:
        if event["name"] in PARTS:
            arguments = event["args"]
            step = arguments["step"] if event["name"] == "train" else arguments["version"]
            seconds[event["name"]][step] += event["dur"] / 1e6
    return {
        part: median(taken for step, taken in by_step.items() if 0 < step < steps)
        for part, by_step in seconds.items()
    }


def row_of(rank: int, options: Options) -> list[str]:
    """Train with adapters of ``rank``. Returns a row of the table."""
    config = resolved(preset_config("smollm2").changed(policy=options.policy, lora_rank=rank))
    model = policy_folder(options.policy)
    shape = shape_of(model)
    work = workload_of(config, model, shape, EnvironmentSource.of(config).make())
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = {"--policy": options.policy, "--lora-rank": rank, "--steps": options.steps}
        flags |= {"--eval-tasks": 1, "--out": run, "--checkpoint-every": options.steps}
        command = [sys.executable, "-m", "zorplex_rl", "train", "--preset", "smollm2"]
        for name, value in flags.items():
            command += [name, str(value)]
        peaks: dict[str, int] = {}
        is_over = threading.Event()
        watch = threading.Thread(target=watch_memory, args=(run, peaks, is_over))
        watch.start()
        began = time.monotonic()
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        finally:
            is_over.set()
            watch.join()
        print(f"rank {rank}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        written = [path.stat().st_size for path in (run / "checkpoints").rglob("*.*")]
        parts = seconds_of_parts(run, options.steps)
    return [
        str(rank),
        f"{shape.trained(rank) / 1e6:.2f}",
        gigabytes(version_bytes(shape, work)),
        gigabytes(sum(written)),
        *(f"{peaks[role] / 1e9:.2f}" for role in ROLES),
        *(f"{parts[part]:.3f}" for part in PARTS),
    ]


def main(options: Options) -> None:
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        if options.random:
            make_model(HALF_BILLION, Path(folder))
            options = replace(options, policy=folder)
        rows = [row_of(rank, options) for rank in options.ranks]
    columns = [
        "rank",
        "million trained",
        "a version",
        "a checkpoint",
        "trainer, GB",
        "generator, GB",
    ]
    columns += ["sample, s", "train, s", "publish, s", "pull, s"]
    model = "half a billion random weights" if options.random else options.policy
    print_table(f"Adapters on {model}, {options.steps} steps", columns, rows)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
