"""Does a run fit, how long are its steps? ``zorplex-rl size``, and the first check of ``train``."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import Config
from zorplex_rl.sizing.fit import Process, available_memory, check_fit, gigabytes, processes, run_bytes, table_of
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.presets import PRESETS, PresetName
from zorplex_rl.sizing.run_time import RunTime
from zorplex_rl.sizing.workload import Workload
from zorplex_rl.task.own_task import EnvironmentSource

TEMPLATE_TOKENS = 16
"""What a chat template adds to the system prompt and the question."""
SHORTEST_ANSWER = 8
"""Tokens of ``[ANSWER] 7`` and the end of the text."""
PROMPTS_TRIED = 8


@dataclass(frozen=True)
class Size(Command):
    """Print a run's memory and step time, part by part. Takes train's settings, starts nothing."""

    config: Config = field(default_factory=Config)
    preset: PresetName | None = None
    """Settings for a policy of this size; explicit flags win. sizing/presets.py has the reasons."""
    time: bool = True
    """Also measure this machine for some seconds, and compute the time of a step."""


def size(command: Size) -> int:
    """Print the tables. Returns the exit code."""
    from rich.table import Table

    config = command.config
    config.check()
    shape, stored, source = _shape(config.policy)
    prompt, shared = _prompts(config, source)
    work = Workload.of(config, prompt, stored, shared)
    found = processes(shape, work, config)
    console = plain_console()
    title = f"{config.policy}: {shape.parameters / 1e6:.1f} million parameters, {config.dtype}"
    table = Table(title=title, title_justify="left")
    for column in ("process", "when", "part"):
        table.add_column(column)
    table.add_column("bytes", justify="right")
    last = ""
    for name, phase, part, bytes_needed in table_of(found):
        if last and name != last:
            table.add_section()
        same = name == last
        table.add_row("" if same else name, "" if same else phase, part, gigabytes(bytes_needed))
        last = name
    console.print(table)
    for difference in shape.unknown:
        console.print(f"not known: {difference}")
    for process in found:
        each = " each" if process.count > 1 else ""
        console.print(f"{process.role}: {gigabytes(process.memory.on_host(cuda=False))}{each}")
    there = available_memory()
    have = f"; {gigabytes(there)} are there" if there is not None else ""
    console.print(
        f"all processes on one machine without a GPU: {gigabytes(run_bytes(shape, work, config))}, "
        f"for prompts of {prompt} and answers of {config.max_tokens} tokens{have}"
    )
    if command.time:
        _print_seconds(console, shape, work, config)
    return 0


def _print_seconds(console: Any, shape: ModelShape, work: Workload, config: Config) -> None:
    import torch

    from zorplex_rl.simulation.lag import mean_lag
    from zorplex_rl.sizing.step_time import calibrate, sample_seconds, train_seconds

    torch.set_num_threads(1)
    machine = calibrate(shape, work)
    learn = train_seconds(shape, work, machine, config.learner.updates_per_batch)
    sample = sample_seconds(shape, work, machine)
    console.print(
        f"on one thread of this machine ({machine.product / 1e9:.0f} GFLOP/s in {config.dtype}, {machine.traffic / 1e9:.1f} GB/s): "
        f"a training step {sum(learn.values()):.2g} s, sampling its batch {sum(sample.values()):.2g} s, if every answer has full length"
    )
    for name, parts in (("training", learn), ("sampling", sample)):
        shares = sorted(parts.items(), key=lambda item: -item[1])
        console.print(f"  {name}: " + ", ".join(f"{part} {value:.2g} s" for part, value in shares if value > 0))
    if config.max_lag:
        # A generator samples its share of a step at once, so a step is one round.
        ahead = config.on_update == "wait"
        lag = mean_lag(1, 1, config.max_lag, sum(sample.values()), sum(learn.values()), 0.0, ahead)
        who = "generators wait" if sum(sample.values()) < sum(learn.values()) else "the trainer waits"
        console.print(f"side by side {who}, and the data's lag will be {lag:g} (--max-lag {config.max_lag})")


def budget(config: Config) -> list[Process]:
    """Return the processes of ``config`` with a model, and their memory. Raises PolicyError."""
    shape, stored, source = _shape(config.policy)
    prompt, shared = _prompts(config, source)
    return processes(shape, Workload.of(config, prompt, stored, shared), config)


def run_time(config: Config, start: float) -> RunTime:
    """Measure this machine. Returns what a run takes on it; ``start`` is in seconds, of imports.
    For families other than Llama and Qwen2 the seconds are NaN. Raises PolicyError if not found."""
    shape, _, source = _shape(config.policy)
    if shape.unknown:
        return RunTime(math.nan, math.nan, math.nan)
    return RunTime.here(config, shape, _prompts(config, source)[0], start)


def expect_fit(
    config: Config,
    source: Path,
    count_tokens: Callable[[str], int] | None,
    devices: Mapping[str, str],
    environment: EnvironmentSource,
) -> None:
    """Warn if a run of ``config`` may outgrow this machine's memory; raise ConfigError if it must.
    ``source`` is the folder of the policy, ``devices`` says where each role computes."""
    shape, stored = _read_shape(source)
    prompt, _ = _prompt_tokens(config, count_tokens, environment)
    gpus = _gpu_capacity({device for device in devices.values() if device.startswith("cuda")})
    if warning := check_fit(
        shape, config, prompt, min(SHORTEST_ANSWER, config.max_tokens), available_memory(), gpus, devices, stored
    ):
        print(f"zorplex-rl: warning: {warning}", file=sys.stderr)


def _gpu_capacity(devices: set[str]) -> dict[str, int]:
    """Return the bytes of memory of each CUDA device. Without one, makes no CUDA call."""
    if not devices:
        return {}
    import torch

    return {device: torch.cuda.get_device_properties(device).total_memory for device in devices}


def _shape(policy: str) -> tuple[ModelShape, str, Path | None]:
    """Return ``policy``'s shape, number type and folder, which is None for an absent preset."""
    from zorplex_rl.policy.load import policy_folder

    of_preset = next((preset.shape for preset in PRESETS.values() if preset.values["policy"] == policy), None)
    if of_preset and policy != "embedded":
        return of_preset, "bfloat16", None
    source = policy_folder(policy)
    return *_read_shape(source), source


def _read_shape(folder: Path) -> tuple[ModelShape, str]:
    import json

    from zorplex_rl.sizing.model_shape import shape_of

    shape = shape_of(folder)
    config = json.loads((folder / "config.json").read_text())
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    return shape, stored if stored in ("float32", "bfloat16") else "float32"


def _prompts(config: Config, source: Path | None) -> tuple[int, int]:
    from zorplex_rl.policy.load import token_counter

    return _prompt_tokens(config, token_counter(source) if source else None)


def _prompt_tokens(
    config: Config, count_tokens: Callable[[str], int] | None, source: EnvironmentSource | None = None
) -> tuple[int, int]:
    """Return the tokens of the longest prompt, and how many all share, or else characters / 4."""
    count = count_tokens or (lambda text: len(text) // 4)
    environment = (source or EnvironmentSource.of(config)).make()
    tasks = [environment.task(index, "train") for index in range(PROMPTS_TRIED)]
    systems = {task.system: count(task.system) for task in tasks}
    longest = max(systems[task.system] + count(task.question) for task in tasks) + TEMPLATE_TOKENS
    return longest, next(iter(systems.values())) if len(systems) == 1 else 0
