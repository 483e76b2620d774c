"""Does a run fit into this machine? Compares ``memory.py``'s bytes with the memory that is there.

    available    the least of MemAvailable and what is left below each memory limit of the process's cgroups; files that can be dropped are free
    surely       what the run takes if every answer is as short as it can be    more than there is: refused
    at most      what it takes if answers grow to --max-tokens                  more than there is: a warning

Only what cannot fit is refused, and the computed bytes may be a fifth too high before that happens.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.sizing.memory import Memory, generator_memory, logit_bytes, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.workload import BYTES, Workload

MODEL_PROCESS, SMALL_PROCESS = 280_000_000, 65_000_000
"""Bytes that a process with torch and transformers, and one without a model, has for itself alone
before it does anything. From ``Private_Dirty`` of the processes of a run on the embedded policy,
2026-11-22; pages of libraries, which all share, are not in it. Since the embedded policy needs no
transformers, processes with it have less."""
SMALL_PROCESSES = 3
"""Dataset, replay buffer and advantages; reward and tool replicas come on top."""
EMPTY = "cache of slots that stay empty"
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""In a group of version 2 and of version 1: limit, bytes in use, and its droppable files' entry."""
CORE_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Likewise: microseconds of processors, in each period of so many microseconds."""
TOLERANCE = 1.2
"""Computed ÷ available bytes that refuse a run: beyond their error (benchmarks/LOG.md)."""


@dataclass(frozen=True, slots=True)
class Process:
    """One kind of process of a run: how many there are, and what each needs."""

    role: str
    count: int
    memory: Memory


def processes(shape: ModelShape, work: Workload, config: Config) -> list[Process]:
    """Return the processes of ``config`` that hold a model."""
    generator = generator_memory(shape, work)
    # A spare has loaded the policy, and nothing else yet.
    spare = Memory({"load": {"weights": generator.phases["load"]["weights"]}})
    found = [
        Process("trainer", 1, trainer_memory(shape, work)),
        Process("generator", config.services.generators, generator),
        Process("spare generator", config.services.spares, spare),
    ]
    if config.learner.kl_coefficient > 0:
        largest = work.micro_batches[0][0]
        weights = {"weights": BYTES[work.dtype] * shape.parameters, "logits": logit_bytes(shape, largest)}
        found.append(Process("reference", 1, Memory({"score": weights})))
    return [process for process in found if process.count]


def run_bytes(shape: ModelShape, work: Workload, config: Config, cuda: bool = False) -> int:
    """Return the bytes of main memory that all processes of ``config`` take together."""
    found = processes(shape, work, config)
    tools = config.services.tool_replicas * (config.tool_latency > 0)
    small = SMALL_PROCESSES + config.services.reward_replicas + tools
    models = sum(process.count * (process.memory.on_host(cuda) + MODEL_PROCESS) for process in found)
    # The controller has loaded what a model process has, but no model.
    return models + small * SMALL_PROCESS + MODEL_PROCESS


def gpu_bytes(shape: ModelShape, work: Workload, config: Config, devices: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes of each CUDA device in ``devices``, as ``assign_devices`` gives them."""
    of_role = {process.role: process.memory.on_gpu() for process in processes(shape, work, config)}
    found: dict[str, int] = {}
    for name, device in devices.items():
        role, _, index = name.partition("_")
        spare = role == "generator" and int(index) >= config.services.generators
        if device.startswith("cuda"):
            found[device] = found.get(device, 0) + of_role.get("spare generator" if spare else role, 0)
    return found


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the bytes of main memory still free to this process and its children, or None."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = (proc / "meminfo").read_text().splitlines()
        found = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for group in _groups("memory", proc, cgroups):
        for limit, used, droppable in MEMORY_FILES:
            with suppress(OSError, ValueError):  # No such group here, or "max": no limit.
                most = int((group / limit).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                found.append(max(0, most - int((group / used).read_text()) + int(stat.get(droppable, 0))))
    return min(found, default=None)


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Return how many cores this process and its children may use at a time."""
    found = [float(allowed_cores())]
    for group in _groups("cpu", proc, cgroups):
        for files in CORE_FILES:
            with suppress(OSError, ValueError):  # As above.
                quota, period = (int(word) for file in files for word in (group / file).read_text().split())
                found += [quota / period] if quota > 0 else []
    return min(found)


def allowed_cores() -> int:
    """Return on how many cores the system may run this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folder of each cgroup that may limit this process, of versions 1 and 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers or controller in controllers.split(","):
            # In a container the path may be that outside, and the container's own group is the root.
            group = cgroups / controller if controllers else cgroups
            yield group
            for part in (part for part in path.split("/") if part not in ("", "..")):
                yield (group := group / part)


def check_fit(
    shape: ModelShape,
    config: Config,
    prompt: int,
    shortest: int,
    available: int | None,
    gpus: Mapping[str, int] = {},
    devices: Mapping[str, str] = {},
    stored: str = "float32",
) -> str | None:
    """Return a warning if a run of ``config`` may outgrow the memory that is there, else None.

    ``prompt`` and ``shortest`` are the tokens of the longest prompt and of the shortest answer,
    ``gpus`` the bytes of each CUDA device. Raises ConfigError if the run cannot fit, with what
    would.
    """

    def short_of(settings: Config, response: int, tolerance: float) -> str | None:
        work = replace(Workload.of(settings, prompt, stored), response=min(response, settings.max_tokens))
        needs = {device: gpu_bytes(shape, work, settings, devices).get(device, 0) for device in gpus}
        have: dict[str, int] = dict(gpus)
        if available is not None:
            needs["main memory"] = run_bytes(shape, work, settings, cuda=bool(gpus))
            have["main memory"] = available
        short = [name for name in needs if needs[name] > tolerance * have[name]]
        if not short:
            return None
        return f"about {gigabytes(needs[short[0]])} of {short[0]}, and {gigabytes(have[short[0]])} are there"

    lacking = short_of(config, shortest, TOLERANCE)
    at_most = short_of(config, config.max_tokens, 1.0)
    if not lacking and not at_most:
        return None
    smaller, most = _smaller(config, prompt), config.max_tokens
    fitting = [change for change in smaller if not short_of(config.changed(**change), most, 1.0)]
    advice = "no smaller setting would fit; use a smaller policy or a larger machine"
    if fitting:
        advice = f"it would fit with {_flags(fitting[0])}"
    if lacking:
        raise ConfigError(f"this run needs {lacking}; {advice}")
    return f"if answers grow to --max-tokens {config.max_tokens}, this run needs {at_most}; {advice}"


def _smaller(config: Config, prompt: int) -> Iterator[dict[str, Any]]:
    """Yield changes that take less memory: harmless ones one at a time, then all together."""
    least = prompt + config.max_tokens
    budget = config.learner.token_budget
    budgets = [b for b in _halves(budget) if b >= least] or [min(least, budget)]
    slots = list(_halves(config.slots))
    yield from ({"token_budget": budget} for budget in budgets)
    yield from ({"slots": count} for count in slots)
    low: dict[str, Any] = {} if config.dtype == "bfloat16" else {"dtype": "bfloat16"}
    fewer: dict[str, Any] = {"spares": 0} if config.services.spares else {}
    yield from (change for change in (low, fewer) if change)
    for budget, count in zip(budgets + budgets[-1:] * len(slots), slots + slots[-1:] * len(budgets), strict=False):
        both: dict[str, Any] = {"token_budget": budget, "slots": count}
        yield both
        if low:
            yield both | low
    yield {"token_budget": budgets[-1], "slots": slots[-1] if slots else 1, "spares": 0, "generators": 1} | low


def _halves(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value


def _flags(change: Mapping[str, object]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def gigabytes(size: float) -> str:
    """Return ``size`` bytes for people.

    >>> gigabytes(2_340_000_000), gigabytes(45_600_000)
    ('2.3 GB', '46 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def table_of(found: Sequence[Process]) -> list[tuple[str, str, str, int]]:
    """Return rows (process, phase, part, bytes) at each process's highest, largest first."""
    rows = []
    for process in found:
        name = f"{process.role} × {process.count}" if process.count > 1 else process.role
        parts = process.memory.parts | {EMPTY: process.memory.reserved}
        largest_first = sorted(parts.items(), key=lambda item: -item[1])
        rows += [(name, process.memory.highest, part, size) for part, size in largest_first if size]
    return rows
