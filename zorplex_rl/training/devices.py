"""Choose the device that each actor computes on.

no CUDA         everything on the CPU, a fixed number of threads for each actor
one GPU         shared by all
several GPUs    one actor on each in the order given, the trainer first; then around again

Attention is PyTorch's ``scaled_dot_product_attention``, which takes a fused kernel if there is one.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError


def assign_devices(requested: str, actors: Sequence[str], cuda_count: int | None = None) -> dict[str, str]:
    """Return a torch device name for each actor; ``cuda_count`` is by default this machine's.

    CUDA is not asked for that if ``requested`` is cpu. Raises ConfigError if there is none.

    >>> assign_devices("auto", ["trainer", "generator_0", "generator_1"], cuda_count=2)
    {'trainer': 'cuda:0', 'generator_0': 'cuda:1', 'generator_1': 'cuda:0'}
    """
    if cuda_count is None and requested != "cpu" and has_driver():
        import torch

        cuda_count = torch.cuda.device_count()
    if requested == "cuda" and not cuda_count:
        raise ConfigError("--device is cuda, but this machine has no CUDA device; use --device auto or cpu")
    if requested == "cpu" or not cuda_count:
        return dict.fromkeys(actors, "cpu")
    return {actor: f"cuda:{index % cuda_count}" for index, actor in enumerate(actors)}


def has_driver() -> bool:
    """Return whether this machine can have a GPU: for CUDA the driver's library is needed, for ROCm
    its device. Asking torch instead takes the second in which it is imported."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True


def prepare(device: str, threads: int) -> None:
    """Set this process up to compute on ``device``: CPU threads, and TF32 where a GPU has it. With
    TF32 (Ampere and later) tensor cores multiply float32 with 10 bits of mantissa instead of 23,
    and add in float32. That is finer than bfloat16's 7 bits. Older GPUs ignore it."""
    import torch

    if device == "cpu":
        torch.set_num_threads(threads)
    else:
        torch.set_float32_matmul_precision("high")


def names_of_ranks(ranks: int) -> list[str]:
    """Return the name of each rank of the trainer, by which it is given its device."""
    return ["trainer", *(f"trainer rank {rank}" for rank in range(1, ranks))]


def one_each(devices: Sequence[str]) -> list[str]:
    """Return the trainer's ``devices``. Raises ConfigError if two are one GPU, as NCCL would."""
    gpus = [device for device in devices if device != "cpu"]
    if len(set(gpus)) < len(gpus):
        raise ConfigError(
            f"--trainer-processes is {len(gpus)}, but this machine has {len(set(gpus))} GPU; each process needs one of its own, so use fewer, "
            f"or --device cpu"
        )
    return list(devices)


def roles_with_models(config: Config) -> list[str]:
    """Return the names of the processes of ``config`` with a model, in the order of devices."""
    generators = config.services.generators + config.services.spares
    ranks = names_of_ranks(config.services.trainer_processes)
    return [*ranks, *(f"generator_{index}" for index in range(generators)), "reference"]
