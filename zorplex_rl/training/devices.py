"""Choose the device that each actor computes on.

no CUDA         everything on the CPU, a fixed number of threads for each actor
one GPU         shared by all
several GPUs    one actor on each in the order given, the trainer first; then around again
"""

from collections.abc import Sequence

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.hosts.lease import count_gpus


def assign_devices(requested: str, actors: Sequence[str], gpus: int | None = None) -> dict[str, str]:
    """Return a torch device name for each actor; ``gpus`` is by default this machine's number, for
    which CUDA is not asked if ``requested`` is cpu. Raises ConfigError if there is none.

    >>> assign_devices("auto", ["trainer", "generator_0", "generator_1"], gpus=2)
    {'trainer': 'cuda:0', 'generator_0': 'cuda:1', 'generator_1': 'cuda:0'}
    """
    if gpus is None:
        gpus = 0 if requested == "cpu" else count_gpus()
    if requested == "cuda" and not gpus:
        raise ConfigError("--device is cuda, but this machine has no CUDA device; use --device auto or cpu")
    if requested == "cpu" or not gpus:
        return dict.fromkeys(actors, "cpu")
    return {actor: f"cuda:{index % gpus}" for index, actor in enumerate(actors)}


def devices_of(config: Config) -> dict[str, str]:
    """Return the device on this machine of each process of ``config`` that holds a model."""
    services = config.services
    ranks = [f"trainer rank {rank}" for rank in range(services.trainer_processes)]
    generators = [f"generator_{number}" for number in range(services.generators + services.spares)]
    devices = assign_devices(config.device, [*ranks, *generators, "reference"])
    gpus = {devices[rank] for rank in ranks}
    if "cpu" not in gpus and len(gpus) < len(ranks):
        raise ConfigError(
            f"--trainer-processes is {len(ranks)}, and each needs a GPU, but this machine has {len(gpus)}; use --device cpu"
        )
    return devices


def prepare(device: str, threads: int) -> None:
    """Set this process up to compute on ``device``: CPU threads, or TF32, with which tensor cores
    multiply float32 with 10 bits of mantissa instead of 23, and add in float32."""
    import torch

    if device == "cpu":
        torch.set_num_threads(threads)
    else:
        torch.set_float32_matmul_precision("high")
