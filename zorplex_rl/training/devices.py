"""Which device each actor computes on.

no CUDA         everything on the CPU, a fixed number of threads for each actor
one GPU         shared by all
several GPUs    one actor on each in the order given, the trainer first; then around again
"""

from __future__ import annotations

from collections.abc import Sequence

from zorplex_rl.errors import ConfigError


def assign_devices(requested: str, actors: Sequence[str], cuda_count: int) -> dict[str, str]:
    """A torch device name for each of ``actors``; ConfigError if CUDA is asked for where there is none.

    >>> assign_devices("auto", ["trainer", "generator_0", "generator_1"], cuda_count=2)
    {'trainer': 'cuda:0', 'generator_0': 'cuda:1', 'generator_1': 'cuda:0'}
    """
    if requested == "cuda" and cuda_count == 0:
        raise ConfigError("--device is cuda, but this machine has no CUDA device; use --device auto or cpu")
    if requested == "cpu" or cuda_count == 0:
        return dict.fromkeys(actors, "cpu")
    return {actor: f"cuda:{index % cuda_count}" for index, actor in enumerate(actors)}


def count_cuda_devices() -> int:
    """How many CUDA devices this machine has."""
    import torch

    return torch.cuda.device_count()
