"""Divide GPUs between generators and a trainer that work side by side, for notebook 10: computed
from a data sheet.

    ModelShape, Workload, GPUs ──► splits ──► Split: seconds of sampling, seconds of training, memory of a GPU on either side

Memory is that of ``sizing/memory.py``. Seconds are operations and bytes over what a GPU does a
second. Operations are counted as in Kaplan et al. 2020 (arXiv:2001.08361, section 2.1 and table 1):
2 for each weight of a matrix and each token, 6 with the backward pass, and the attention to earlier
tokens. A matrix product of a decode step with few rows is as slow as reading the weights (Williams
et al. 2009, doi:10.1145/1498765.1498785): operations or bytes, whichever takes longer.

    generators   replicas of 1, 2, 4 or 8 GPUs (tensor parallel), each with as many slots as its memory holds
    trainer      tensor parallel over 1, 2, 4 or 8 GPUs, ZeRO stage 3 over the rest, nothing recomputed

What it leaves out: every link. Collectives, weights and tools cost no time here, every answer has
full length, and each GPU loads its own share of the weights.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from zorplex_rl.sizing.memory import (
    BLOCK,
    BYTES,
    RESERVE,
    Memory,
    Workload,
    generator_memory,
    trainer_memory,
)
from zorplex_rl.sizing.model_shape import ModelShape

COMPUTE_SHARE = 0.4
"""Of the peak, in training: 38 to 43 % on 8,192 and 16,384 H100s (Llama 3, arXiv:2407.21783)."""
BANDWIDTH_SHARE = 0.7
"""Of the peak, in decoding. An assumption."""
MEMORY_SHARE = 0.9
"""The rest is for driver, allocator's holes and buffers of collectives. An assumption."""
CALL = 2e-6
"""Seconds of a GPU for a small operation in a graph: assumed; not shorter for a part of a model."""
TRAINING_CALLS, DECODE_CALLS = 300, 20
"""Such operations of a layer, forward and backward, and in a decode step."""
OPTIMIZER_PASSES = 22
"""Weight-sized reads and writes of a step: moments, gradients, AdamW, clipping. Assumed."""
TENSOR = (1, 2, 4, 8)
"""GPUs that one model may be cut over: those of one machine."""
OFF_GPU = ("weight ring", "staging", RESERVE)
"""Parts of a process that are in no GPU's memory."""
TOKEN_BUDGETS = (16384, 1)
"""What is tried for the trainer's micro-batches: this many tokens, or a single row."""

MODELS: dict[str, ModelShape] = {
    "0.5B": ModelShape(24, 896, 14, 2, 4864, 151936),
    "1.5B": ModelShape(28, 1536, 12, 2, 8960, 151936),
    "3B": ModelShape(36, 2048, 16, 2, 11008, 151936),
    "7B": ModelShape(28, 3584, 28, 4, 18944, 152064, tied=False),
    "14B": ModelShape(48, 5120, 40, 8, 13824, 152064, tied=False),
    "32B": ModelShape(64, 5120, 40, 8, 27648, 152064, tied=False),
    "72B": ModelShape(80, 8192, 64, 8, 29568, 152064, tied=False),
}
"""Qwen2.5, as in the models' own ``config.json`` (technical report, arXiv:2412.15115, table 1)."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU's 16-bit operations per second without sparsity, memory bytes per second, and bytes."""

    operations: float
    bandwidth: float
    memory: float
    source: str


H100 = Accelerator(989.4e12, 3.35e12, 80e9, "https://www.nvidia.com/en-us/data-center/h100/")
"""The SXM one. The data sheet gives 1,979 teraFLOPS of BF16 with sparsity, twice that without."""
SPEED, BANDWIDTH = COMPUTE_SHARE * H100.operations, BANDWIDTH_SHARE * H100.bandwidth
ROOM = MEMORY_SHARE * H100.memory


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


def splits(shape: ModelShape, work: Workload, gpus: int, parts: int = 8) -> list[Split]:
    """Return splits of ``gpus`` GPUs in steps of 1 / ``parts``, fewest generators first."""
    step = max(1, gpus // parts)
    return [
        Split(sampling(shape, work, g), training(shape, work, gpus - g))
        for g in range(step, gpus, step)
    ]


@lru_cache(maxsize=4096)
def sampling(shape: ModelShape, work: Workload, gpus: int) -> Side:
    """Return the fastest way to sample ``work``'s batch on ``gpus`` GPUs; may not fit."""
    ways = [_sampling(shape, work, gpus, tensor) for tensor in TENSOR if tensor <= gpus]
    return min(ways, key=lambda side: (not side.fits, round(side.seconds, 9), side.bytes))


@lru_cache(maxsize=4096)
def training(shape: ModelShape, work: Workload, gpus: int) -> Side:
    """Return the fastest way to train on ``work``'s batch on ``gpus`` GPUs; may not fit."""
    ways = list(_training(shape, work, gpus))
    return min(ways, key=lambda side: (not side.fits, round(side.seconds, 9), side.bytes))


def _sampling(shape: ModelShape, work: Workload, gpus: int, tensor: int) -> Side:
    replicas = gpus // tensor
    tasks = -(-work.prompts // replicas)
    group = (
        work.group_size
        if replicas <= work.prompts
        else -(-work.prompts * work.group_size // replicas)
    )

    def needed(slots: int) -> int:
        share = replace(work, slots=slots, tasks=tasks, group_size=group)
        return on_gpu(generator_memory(shape, share, tensor))

    # The largest number of slots that fits, found by halving.
    low, high = 0, tasks * group
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= ROOM else (low, middle - 1)
    slots = max(low, 1)
    seconds = sample_seconds(
        shape, replace(work, slots=slots, tasks=tasks, group_size=group), tensor
    )
    return Side(gpus, replicas, tensor, seconds, needed(slots), slots, low > 0)


def on_gpu(memory: Memory) -> int:
    """Return the bytes of a GPU at the highest, if no generator has more slots than rows: a GPU gives the memory of
    all slots at once."""
    highest = 0
    for parts in memory.phases.values():
        off_gpu = sum(parts.get(part, 0) for part in OFF_GPU)
        highest = max(highest, sum(parts.values()) - off_gpu)
    return highest


def sample_seconds(shape: ModelShape, work: Workload, tensor: int = 1) -> float:
    """Return the seconds in which ``tensor`` GPUs sample ``tasks`` · ``group_size`` in ``slots``."""
    episodes = work.tasks * work.group_size
    rows = min(work.slots, episodes)
    steps = -(-episodes // rows) * (work.response - 1)
    # Each weight is read once for a step, and serves two operations in every row.
    decode = min(SPEED, 2 * rows / BYTES[work.dtype] * BANDWIDTH)
    matrices = shape.layers * shape.matrices
    # The last episodes do not fill all slots.
    tokens = episodes * (work.response - 1)
    attended = 2 * shape.keys * BYTES[work.dtype] / BANDWIDTH + 4 * shape.attention / SPEED
    divided = 2 * matrices * work.tasks * work.prompt / SPEED
    divided += 2 * (matrices + shape.table) * tokens / decode
    divided += shape.layers * tokens * (work.prompt + work.response / 2) * attended
    return divided / tensor + steps * (DECODE_CALLS * shape.layers + 30) * CALL


def _training(shape: ModelShape, work: Workload, gpus: int) -> Iterator[Side]:
    for tensor in (size for size in TENSOR if size <= gpus):
        data = min(gpus // tensor, work.prompts * work.group_size)
        for budget in TOKEN_BUDGETS:
            whole = replace(work, token_budget=budget)
            share = replace(whole, prompts=max(1, work.prompts // data))
            needed = on_gpu(trainer_memory(shape, share, data, 3, tensor))
            seconds = train_seconds(shape, whole, tensor) / data
            yield Side(gpus, data, tensor, seconds, needed, 0, needed <= ROOM)


@lru_cache(maxsize=4096)
def train_seconds(shape: ModelShape, work: Workload, tensor: int = 1) -> float:
    """Return the seconds in which ``tensor`` GPUs train on ``prompts`` · ``group_size`` answers."""
    divided = 4 * shape.parameters / BANDWIDTH * OPTIMIZER_PASSES
    calls = 0.0
    for batch, count in Counter(work.micro_batches()).items():
        of_layer = (
            6 * shape.matrices * batch.tokens
            + 12 * shape.attention * min(BLOCK, batch.tokens) * batch.seen
        )
        logits = 6 * shape.table * batch.responses * batch.response
        divided += count * (shape.layers * of_layer + logits) / SPEED
        calls += count * (TRAINING_CALLS * shape.layers + 300) * CALL
    return divided / tensor + calls
