"""What this machine computes with: devices, cores, number types."""

import os
import timeit
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError

CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container's limits


def assign_devices(
    requested: str, actors: Sequence[str], gpus: int | None = None
) -> dict[str, str]:
    """Return a torch device name for each actor, which share the GPUs, the first actors first;
    ``gpus`` is by default this machine's number, for which CUDA is not asked if ``requested`` is cpu.
    Raises ConfigError if there is none.

    >>> assign_devices("auto", ["trainer", "generator_0", "generator_1"], gpus=2)
    {'trainer': 'cuda:0', 'generator_0': 'cuda:1', 'generator_1': 'cuda:0'}
    """
    if gpus is None:
        gpus = 0 if requested == "cpu" else count_gpus()
    if requested == "cuda" and not gpus:
        raise ConfigError(
            "--device is cuda, but this machine has no CUDA device; use --device auto or cpu"
        )
    if requested == "cpu" or not gpus:
        return dict.fromkeys(actors, "cpu")
    return {actor: f"cuda:{index % gpus}" for index, actor in enumerate(actors)}


def devices_of(config: Config) -> dict[str, str]:
    """Return the device on this machine of each process of ``config`` that holds a model."""
    services = config.services
    ranks = [f"trainer rank {rank}" for rank in range(services.trainer_processes)]
    generators = [
        f"generator_{number}" for number in range(services.generators + int(services.spares))
    ]
    devices = assign_devices(config.device, [*ranks, *generators, "reference"])
    gpus = {devices[rank] for rank in ranks}
    if "cpu" not in gpus and len(gpus) < len(ranks):
        raise ConfigError(
            f"--trainer-processes is {len(ranks)}, and each needs a GPU, but this machine has {len(gpus)}; use --device cpu"
        )
    return devices


def cores() -> int:
    """Return the number of cores that this process may use: in a container, as many as its quota."""
    found = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for names in (
        ["cpu.max"],
        ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"],
    ):  # of version 2, and 1
        # There is no such group, or no limit: "max", or a quota of -1.
        with suppress(OSError, ValueError):
            quota, period = map(
                int, " ".join((CONTROL_GROUP / name).read_text() for name in names).split()
            )
            found = min(found, ceil(quota / period)) if quota > 0 else found
    return found


def count_gpus() -> int:
    """Return this machine's number of GPUs; torch is imported only where there is a driver of CUDA
    or ROCm."""
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
        return 0
    import torch

    return torch.cuda.device_count()


def is_faster_in_bfloat16() -> bool:
    """Measure whether this processor multiplies matrices faster in bfloat16 than in float32. Without
    instructions for it, it is many times slower."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        rows, matrix = torch.ones(32, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        return min(timeit.repeat(lambda: rows @ matrix, repeat=3, number=1))

    threads = torch.get_num_threads()
    # Beside a busy process several threads would measure how they wait for each other.
    torch.set_num_threads(1)
    is_faster = seconds(torch.bfloat16) < seconds(torch.float32)
    torch.set_num_threads(threads)
    return is_faster


def prepare(device: str, threads: int | str) -> None:
    """Set this process up to compute on ``device``: CPU threads, or TF32, with which tensor cores
    multiply float32 with 10 bits of mantissa instead of 23, and add in float32."""
    import torch

    if device == "cpu":
        torch.set_num_threads(int(threads))
    else:
        torch.set_float32_matmul_precision("high")
