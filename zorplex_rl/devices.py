"""Find out what this machine can compute with: devices, cores, number types."""

import os
import timeit
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container's limits."""


def assign_devices(requested: str, actors: Sequence[str]) -> dict[str, str]:
    """Return a torch device for each of ``actors``. They share this machine's GPUs in their order. CUDA is
    not loaded if ``requested`` is cpu. Raises ConfigError if cuda is requested and there is no GPU."""
    gpus = 0 if requested == "cpu" else count_gpus()
    if requested == "cuda" and not gpus:
        raise ConfigError(
            "--device is cuda, but this machine has no CUDA device; use --device auto or cpu"
        )
    if not gpus:
        return dict.fromkeys(actors, "cpu")
    return {actor: f"cuda:{index % gpus}" for index, actor in enumerate(actors)}


def devices_of(config: Config) -> dict[str, str]:
    """Return the device of each process of ``config`` that has a model, if it runs on this machine."""
    services = config.services
    ranks = [f"trainer rank {rank}" for rank in range(services.trainer_processes)]
    count = services.generators + int(services.spares)
    generators = [f"generator_{number}" for number in range(count)]
    devices = assign_devices(config.device, [*ranks, *generators, "reference"])
    gpus = {devices[rank] for rank in ranks}
    if "cpu" not in gpus and len(gpus) < len(ranks):
        raise ConfigError(
            f"--trainer-processes is {len(ranks)}, and each needs a GPU, but this machine has {len(gpus)}; "
            "use --device cpu"
        )
    return devices


def cores() -> int:
    """Return the number of cores that this process may use; in a container, its quota."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    # There may be no control group of version 2, or no limit: "max".
    with suppress(OSError, ValueError):
        quota, period = map(int, (CONTROL_GROUP / "cpu.max").read_text().split())
        count = min(count, ceil(quota / period))
    return count


def count_gpus() -> int:
    """Return the number of GPUs in this machine. Torch is imported only if there is a driver of CUDA or ROCm."""
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
        return 0
    import torch

    return torch.cuda.device_count()


def is_faster_in_bfloat16() -> bool:
    """Return whether this processor multiplies matrices faster in bfloat16 than in float32, by a measurement.
    Without instructions for bfloat16, it is many times slower."""
    processor = Path("/proc/cpuinfo")
    if processor.exists() and "bf16" not in processor.read_text():
        # No need to measure it, nor to import torch, which takes seconds.
        return False
    import torch

    def seconds(dtype: torch.dtype) -> float:
        rows = torch.ones(32, 512, dtype=dtype)
        matrix = torch.ones(512, 512, dtype=dtype)
        return min(timeit.repeat(lambda: rows @ matrix, repeat=10, number=1))

    threads = torch.get_num_threads()
    # Beside a busy process, several threads would mostly wait for each other.
    torch.set_num_threads(1)
    is_faster = seconds(torch.bfloat16) < seconds(torch.float32)
    torch.set_num_threads(threads)
    return is_faster


def prepare(device: str, threads: int | str) -> None:
    """Prepare this process to compute on ``device``: set its CPU threads, or allow TF32. Tensor cores then
    multiply float32 numbers with 10 bits of mantissa instead of 23, and add in float32."""
    import torch

    if device == "cpu":
        torch.set_num_threads(int(threads))
    else:
        torch.set_float32_matmul_precision("high")
