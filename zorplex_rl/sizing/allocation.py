"""Divide GPUs between generators and a trainer that work side by side: computed, not measured.

    ModelShape, Workload ─┐
    GPUs, Accelerator ────┴─► splits ──► Split: seconds of sampling, seconds of training, memory of a GPU on either side
                                 └─► best_split: the least of max(sampling, training) among those that fit

Memory is that of ``memory.py``, operations and bytes are those of ``step_time.py``; what is new is
a GPU's speed. A matrix product of a decode step with few rows is as slow as reading the weights
(Williams et al. 2009, doi:10.1145/1498765.1498785): operations or bytes, whichever takes longer.

    generators   replicas of 1, 2, 4 or 8 GPUs (tensor parallel), each with as many slots as its memory holds
    trainer      tensor parallel over 1, 2, 4 or 8 GPUs, ZeRO stage 3 over the rest, nothing recomputed

What it leaves out: every link. Collectives, weights and tools cost no time here, every answer has
full length, and each GPU loads its own share of the weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from zorplex_rl.sizing.memory import Memory, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.presets import PRESETS
from zorplex_rl.sizing.step_time import Machine, sample_seconds, train_seconds
from zorplex_rl.sizing.workload import BYTES, Parallel, Workload

COMPUTE_SHARE = 0.4
"""Of the peak, in training: 38 to 43 % on 8,192 and 16,384 H100s (Llama 3, arXiv:2407.21783)."""
BANDWIDTH_SHARE = 0.7
"""Of the peak, in decoding. An assumption."""
MEMORY_SHARE = 0.9
"""The rest is for driver, allocator's holes and buffers of collectives. An assumption."""
CALL = 2e-6
"""Seconds of a GPU for a small operation in a graph: assumed; not shorter for a part of a model."""
OPTIMIZER_PASSES = 22
"""Weight-sized reads and writes of a step: moments, gradients, AdamW, clipping. Assumed."""
TENSOR = (1, 2, 4, 8)
"""GPUs that one model may be cut over: those of one machine."""
TOKEN_BUDGETS = (16384, 1)
"""What is tried for the trainer's micro-batches: this many tokens, or a single row."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU's 16-bit operations per second without sparsity, memory bytes per second, and bytes."""

    name: str
    operations: float
    bandwidth: float
    memory: float
    source: str

    def machine(self, rows: int, dtype: str = "bfloat16") -> Machine:
        """Return the speeds for ``step_time.py``, when a decode step has ``rows`` rows."""
        speed, bandwidth = COMPUTE_SHARE * self.operations, BANDWIDTH_SHARE * self.bandwidth
        # Each weight is read once for a step, and serves two operations in every row.
        decode = min(speed, 2 * rows / BYTES[dtype] * bandwidth)
        # PyTorch keeps a GPU's memory, so none of it is fresh.
        unlimited = float("inf")
        return Machine(
            speed, speed, decode, speed, unlimited, bandwidth, bandwidth / OPTIMIZER_PASSES, unlimited, unlimited, CALL
        )


H100 = Accelerator("H100 SXM", 989.4e12, 3.35e12, 80e9, "https://www.nvidia.com/en-us/data-center/h100/")
"""NVIDIA's data sheet gives 1,979 teraFLOPS of BF16 with sparsity, which is twice that without."""

MODELS: dict[str, ModelShape] = {
    "0.5B": PRESETS["qwen0.5b"].shape,
    "1.5B": PRESETS["qwen1.5b"].shape,
    "3B": PRESETS["qwen3b"].shape,
    "7B": ModelShape(28, 3584, 28, 4, 18944, 152064, tied=False),
    "14B": ModelShape(48, 5120, 40, 8, 13824, 152064, tied=False),
    "32B": ModelShape(64, 5120, 40, 8, 27648, 152064, tied=False),
    "72B": ModelShape(80, 8192, 64, 8, 29568, 152064, tied=False),
}
"""Qwen2.5, as in the models' own ``config.json`` (technical report, arXiv:2412.15115, table 1)."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a split: ``processes`` of ``tensor`` GPUs, seconds of a step, bytes of a GPU.
    ``slots``: rows that a generator decodes at once, 0 for a trainer; ``fits``: there is a way."""

    gpus: int
    processes: int
    tensor: int
    seconds: float
    bytes: int
    slots: int = 0
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs for generators and GPUs for a trainer."""

    sampling: Side
    training: Side

    @property
    def fits(self) -> bool:
        """Whether both sides have enough memory."""
        return self.sampling.fits and self.training.fits

    @property
    def seconds(self) -> float:
        """Of a step: both sides work at the same time, so the slower one decides."""
        return max(self.sampling.seconds, self.training.seconds) if self.fits else float("inf")

    @property
    def waits(self) -> str:
        """Who waits for the other."""
        return "trainer" if self.sampling.seconds > self.training.seconds else "generators"


def splits(
    shape: ModelShape, work: Workload, gpus: int, accelerator: Accelerator = H100, parts: int = 8
) -> list[Split]:
    """Return splits of ``gpus`` GPUs in steps of 1 / ``parts``, fewest generators first."""
    step = max(1, gpus // parts)
    return [
        Split(sampling(shape, work, g, accelerator), training(shape, work, gpus - g, accelerator))
        for g in range(step, gpus, step)
    ]


def best_split(found: list[Split]) -> Split | None:
    """Return the fastest of ``found`` that fits, or None."""
    return min((split for split in found if split.fits), key=lambda split: split.seconds, default=None)


@lru_cache(maxsize=4096)
def sampling(shape: ModelShape, work: Workload, gpus: int, accelerator: Accelerator = H100) -> Side:
    """Return the fastest way to sample ``work``'s batch on ``gpus`` GPUs; may not fit."""
    ways = [_sampling(shape, work, gpus, tensor, accelerator) for tensor in TENSOR if tensor <= gpus]
    return min(ways, key=lambda side: (not side.fits, side.seconds, side.bytes))


@lru_cache(maxsize=4096)
def training(shape: ModelShape, work: Workload, gpus: int, accelerator: Accelerator = H100) -> Side:
    """Return the fastest way to train on ``work``'s batch on ``gpus`` GPUs; may not fit."""
    ways = list(_training(shape, work, gpus, accelerator))
    return min(ways, key=lambda side: (not side.fits, side.seconds, side.bytes))


def _sampling(shape: ModelShape, work: Workload, gpus: int, tensor: int, accelerator: Accelerator) -> Side:
    replicas = gpus // tensor
    tasks = -(-work.prompts // replicas)
    group = work.group_size if replicas <= work.prompts else -(-work.prompts * work.group_size // replicas)
    room = MEMORY_SHARE * accelerator.memory

    def needed(slots: int) -> int:
        mine = replace(work, slots=slots, tasks=tasks, group_size=group, evaluated=0)
        return _on_gpu(generator_memory(shape, mine, Parallel(tensor=tensor)))

    # The largest number of slots that fits, found by halving.
    low, high = 0, tasks * group
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= room else (low, middle - 1)
    slots = max(low, 1)
    mine = replace(work, slots=slots, tasks=tasks, group_size=group)
    parts = sample_seconds(shape, mine, accelerator.machine(slots, work.dtype))
    # A GPU chooses all rows' tokens in one operation; Python's work per row is left out.
    seconds = _shared(parts, tensor) - parts["rows"] / tensor
    return Side(gpus, replicas, tensor, seconds, needed(slots), slots, low > 0)


def _training(shape: ModelShape, work: Workload, gpus: int, accelerator: Accelerator) -> Iterator[Side]:
    for tensor in (size for size in TENSOR if size <= gpus):
        data = min(gpus // tensor, work.prompts * work.group_size)
        for budget in TOKEN_BUDGETS:
            whole = replace(work, token_budget=budget)
            share = replace(whole, prompts=max(1, work.prompts // data))
            needed = _on_gpu(trainer_memory(shape, share, Parallel(data, 3, tensor)))
            seconds = _shared(train_seconds(shape, whole, accelerator.machine(1, work.dtype)), tensor) / data
            yield Side(gpus, data, tensor, seconds, needed, 0, needed <= MEMORY_SHARE * accelerator.memory)


def _shared(parts: dict[str, float], tensor: int) -> float:
    """Return the seconds of ``parts`` on ``tensor`` GPUs: all but the calls are divided."""
    return (sum(parts.values()) - parts["calls"]) / tensor + parts["calls"]


def _on_gpu(memory: Memory) -> int:
    """Return the bytes on a GPU that loads its own share of the weights only."""
    return Memory({name: parts for name, parts in memory.phases.items() if name != "load"}).on_gpu()
