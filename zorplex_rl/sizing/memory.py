"""What a trainer and a generator need in memory, computed part by part. Arithmetic only, no torch.

    ModelShape ─┐                           phases       forward   backward   update      prefill   sample
                ├─► trainer_memory ─────►   weights         ■         ■         ■            ■        ■
    Workload ───┘   generator_memory        moments         ■         ■         ■     cache  ·        ■
                                            activations     ■                         …

A phase is a moment at which much is allocated at once; ``Memory.total`` is the sum of the parts in
the highest one. In main memory the C library keeps freed blocks below 32 MiB; the next phase takes
their places, but leaves holes. These, and what another phase needed more of such blocks, are "kept
by the allocator". A GPU's wastes nothing.

N parameters, L layers, h hidden size, a attention width (heads · head size), k key-value width, i
intermediate size, V vocabulary, e bytes of a number (2 or 4). Activations are what autograd keeps.

    weights     e·N                         masters   4·N if e is 2        gradients  4·N        AdamW's moments  8·N
    one token   L · (16·h + e·(2h + 4i + 3a + 2k))    two norms in float32, inputs and results of all products
    one key     L · e·2k + e·128·heads/kv_heads    that a block of 128 queries sees: copied if it is not in place, and masked
    logits      3 · 4·V for each sampled token: log-probs and two more for the entropy, or for their gradients, all float32
    cache       L · 2k · e · slots · length, the length rounded up to a multiple of 32

ZeRO divides weights, gradients and moments (Rajbhandari et al. 2020, arXiv:1910.02054, section 5).
Tensor parallelism (Megatron, Shoeybi et al. 2019, arXiv:1909.08053, section 3) divides attention,
MLP, output layer and cache, but no norms and residuals. Activations are counted as in Korthikanti
et al. 2022 (arXiv:2205.05198, section 4), for this architecture.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from zorplex_rl.config import Config
from zorplex_rl.sizing.model_shape import ModelShape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ZERO = {"weights": 3, "masters": 1, "gradients": 2, "moments": 1}
"""The stage from which ZeRO divides each part."""
RING_SLOTS = 2
BLOCK = 128
"""As in ``weights/ring.py`` and in ``policy/model.py``; tests hold them together."""
CACHE_STEP = 32  # ``RolloutEngine`` reserves rows of a multiple of this many tokens
LOGIT_COPIES = 3
"""Float32 [tokens, V] at once in ``token_logprobs``: log π, π, and their product; as many on the way back."""
RETURNED = 32 * 2**20
"""The C library keeps smaller freed blocks (mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX)."""
HOLES = {"trainer": 0.1, "generator": 0.15}
"""What the holes between these add, as a share; a generator has no backward pass."""
LIBRARY_BYTES = 5_000_000  # what torch's kernels keep for the shapes that they have met
CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container's limits, of version 2
KEPT, LIBRARIES = "kept by the allocator", "libraries"
OFF_GPU = ("weight ring", "staging", KEPT, LIBRARIES)
"""Parts that are in no GPU's memory."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A micro-batch: a tree of ``tokens``, with ``responses`` of ``response`` tokens. Its blocks of
    queries see ``seen`` keys, one counted for each block, and of these ``copied`` are not in place."""

    tokens: int
    seen: int
    copied: int
    responses: int
    response: int

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int]], response: int) -> Self:
        """Return the shape of a tree of ``parts``, each with the depth of its first token and the number of
        its tokens. A block sees what its first token sees, and itself."""
        tokens = seen = copied = 0
        for depth, length in parts:
            firsts = range(-(-tokens // BLOCK) * BLOCK, tokens + length, BLOCK)  # of blocks that begin here
            before = sum(firsts) - len(firsts) * (tokens - depth)
            seen += before
            copied += (before + len(firsts) * BLOCK) * (depth < tokens)
            tokens += length
        return cls(tokens, seen + tokens, copied, len(parts), response)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run feeds its models; lengths in tokens, of the longest. ``tasks``: prompts that a
    generator has before it; ``evaluated``: those of an evaluation, which has a cache beside (0: none);
    ``transfer``: type of weights that travel; ``shared_prompt``: tokens with which all prompts begin;
    ``staged``: weights do not come through shared memory."""

    prompt: int = 100
    response: int = Config.max_tokens
    prompts: int = Config.prompts_per_step
    group_size: int = Config.group_size
    token_budget: int = Config.learner.token_budget
    slots: int = Config.slots
    tasks: int = Config.prompts_per_step
    evaluated: int = Config.eval_tasks
    dtype: str = "float32"
    transfer: str = "float32"
    shared_prompt: int = 0
    staged: bool = False

    @classmethod
    def of(cls, config: Config, prompt: int, shared_prompt: int = 0) -> Self:
        """Return the workload of ``config`` for prompts of up to ``prompt`` tokens."""
        return cls(
            prompt, config.max_tokens, config.prompts_per_step, config.group_size, config.learner.token_budget,
            config.slots, config.share, config.eval_tasks, config.dtype, config.dtype,
            shared_prompt, config.transport in ("rdma", "message"),
        )  # fmt: skip

    def micro_batches(self) -> list[BatchShape]:
        """Return the micro-batches of a step if all responses are longest, and share only their prompts.
        They are filled as in ``policy/decoder.py``."""
        whole = self.prompt + self.response - 1
        trees: list[list[tuple[int, int]]] = []
        size = self.token_budget
        for sample in list(range(self.group_size)) * self.prompts:
            depth = self.prompt if sample else self.shared_prompt
            size += whole - depth
            if size > self.token_budget:
                trees.append([])
                depth, size = 0, whole
            trees[-1].append((depth, whole - depth))
        return [BatchShape.of(parts, self.response) for parts in trees]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of every part in every phase of one process: ``{"update": {"weights": 5, …}, …}``."""

    phases: dict[str, dict[str, int]]
    untouched: int = 0  # Slots without a row: main memory gives them when they are written, a GPU at once.

    @property
    def highest(self) -> str:
        """The phase that needs most."""
        # Of equal sums the one of which the allocator keeps least.
        return max(self.phases, key=lambda name: (sum(self.phases[name].values()), -self.phases[name].get(KEPT, 0)))

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the highest phase, in bytes, without those that are 0."""
        return {part: size for part, size in self.phases[self.highest].items() if size}

    @property
    def total(self) -> int:
        """Bytes at the highest, if the process has no GPU."""
        return sum(self.parts.values())

    @property
    def on_gpu(self) -> int:
        """Bytes of a GPU at the highest, if the model is on one."""
        sums = (sum(size for part, size in parts.items() if part not in OFF_GPU) for parts in self.phases.values())
        return max(sums) + self.untouched


def trainer_memory(shape: ModelShape, work: Workload, ranks: int = 1, stage: int = 0, tensor: int = 1) -> Memory:
    """Return what a trainer of ``shape`` needs for ``work``, above its libraries: one of ``ranks``
    processes at ZeRO ``stage`` 0 to 3, of which each is ``tensor`` processes."""
    n, e = shape.parameters, BYTES[work.dtype]
    low = e < 4
    divided = {part: tensor * (ranks if stage >= first else 1) for part, first in ZERO.items()}
    base = {
        "weights": e * n // divided["weights"],
        "masters": 4 * n // divided["masters"] if low else 0,
        "moments": 8 * n // divided["moments"],
        "weight ring": RING_SLOTS * BYTES[work.transfer] * n,
    }
    table = 4 * shape.table // tensor
    whole = {"gradients": 4 * n // divided["gradients"]}
    small_gradients = 4 * (n - (shape.tables if table >= RETURNED else 0)) // divided["gradients"]
    phases: dict[str, dict[str, int]] = {}
    small: dict[str, int] = {}  # Of each phase the bytes in blocks that come and go and are not given back.
    done = 0
    batches = work.micro_batches()
    for batch, count in Counter(batches).items():
        # The last of these: the gradients of the earlier ones are there when it begins.
        done += count
        number = f" {done}" if len(batches) > 1 else ""
        gradients, earlier = (whole, small_gradients) if done > 1 else ({"gradients": 0}, 0)
        kept = activation_bytes(shape, batch, work.dtype, tensor)
        mlp = 4 * shape.layers * e * batch.tokens * shape.intermediate
        small_kept = earlier + kept - _returned(mlp, 4 * shape.layers)
        logits = logit_bytes(shape, batch, tensor)
        # The table's gradient comes in parts, one for each place where it is used.
        again = e * shape.table // tensor if low else table * (2 if done > 1 else 1)
        phases[f"logits{number}"] = base | gradients | {"activations": kept, "logits": logits}
        phases[f"backward{number}"] = base | whole | {"gradient parts": again}
        small[f"logits{number}"] = small_kept + logits - _returned(logits, LOGIT_COPIES)
        small[f"backward{number}"] = small_gradients + (again if table < RETURNED else 0)
    phases["update"], small["update"] = base | whole, small_gradients
    highest = max(small.values())
    # Float32 gradients take activations' places one by one: the next step's do not fit there.
    holes = int(HOLES["trainer"] * highest) + (0 if low else small_gradients)
    for name, size in small.items():
        phases[name] |= {KEPT: highest - size + holes, LIBRARIES: LIBRARY_BYTES}
    return Memory(phases)


def _returned(size: int, blocks: int = 1) -> int:
    """Return how much of ``size`` bytes in ``blocks`` goes back when freed: all or nothing."""
    return size if size // blocks >= RETURNED else 0


def activation_bytes(shape: ModelShape, batch: BatchShape, dtype: str, tensor: int = 1) -> int:
    """Return what autograd keeps of ``batch`` for its backward pass, without the logits."""
    e = BYTES[dtype]
    divided = batch.tokens * (4 * shape.intermediate + 3 * shape.attention + 2 * shape.keys)
    layer = batch.tokens * (16 + 2 * e) * shape.hidden + e * (divided + 2 * shape.keys * batch.copied) // tensor
    return shape.layers * layer + 8 * shape.hidden * batch.tokens + mask_bytes(shape, batch, dtype)


def mask_bytes(shape: ModelShape, batch: BatchShape, dtype: str) -> int:
    """Return the masks of ``batch``, which have a row for each query head that shares keys."""
    return BYTES[dtype] * min(BLOCK, batch.tokens) * shape.heads // shape.kv_heads * batch.seen


def logit_bytes(shape: ModelShape, batch: BatchShape, tensor: int = 1) -> int:
    """Return ``batch``'s float32 logits and what comes of them, if all tokens are sampled."""
    return LOGIT_COPIES * 4 * batch.responses * batch.response * shape.vocabulary // tensor


def generator_memory(shape: ModelShape, work: Workload, tensor: int = 1) -> Memory:
    """Return what a generator of ``shape`` needs for ``work``, above its libraries."""
    n = shape.parameters
    base = {"weights": BYTES[work.dtype] * n // tensor, "staging": BYTES[work.transfer] * n * work.staged}
    stream = _sampling(shape, work, work.tasks, work.group_size, tensor)
    rows = work.tasks * work.group_size
    untouched = stream["sample"]["key-value cache"] * max(0, work.slots - rows) // rows
    phases = {name: base | parts for name, parts in stream.items()}
    if work.evaluated:
        beside = {"cache of the stream": stream["sample"]["key-value cache"] + stream["sample"]["logits"]}
        evaluation = _sampling(shape, work, work.evaluated, 1, tensor)
        phases |= {f"evaluation, {name}": base | beside | parts for name, parts in evaluation.items()}
    come_and_go = ("prefill", "choice of tokens", "prompts' keys and values")
    largest = {part: max(parts.get(part, 0) for parts in phases.values()) for part in come_and_go}
    for parts in phases.values():
        # Of the largest of these, a block is about a quarter.
        others = sum(size - _returned(size, 4) for part, size in largest.items() if part not in parts)
        holes = int(HOLES["generator"] * sum(parts.get(part, 0) for part in come_and_go))
        parts |= {KEPT: others + holes, LIBRARIES: LIBRARY_BYTES}
    return Memory(phases, untouched)


def cache_bytes(shape: ModelShape, rows: int, length: int, dtype: str, tensor: int = 1) -> int:
    """Return the keys and values of ``rows`` rows of ``length`` tokens."""
    return BYTES[dtype] * shape.layers * 2 * shape.keys * rows * length // min(tensor, shape.kv_heads)


def _sampling(shape: ModelShape, work: Workload, tasks: int, samples: int, tensor: int) -> dict[str, dict[str, int]]:
    """Return a rollout engine's parts in prefill and sampling: ``samples`` × ``tasks``."""
    e = BYTES[work.dtype]
    vocabulary = shape.vocabulary // tensor
    rows = min(work.slots, tasks * samples)
    # The prompts of the rows that enter, and those of as many waiting requests as there are slots.
    prompts = min(tasks, -(-2 * work.slots // samples))
    length = -(-(work.prompt + work.response) // CACHE_STEP) * CACHE_STEP
    shared = min(work.shared_prompt, work.prompt - 1) if prompts > 1 else 0
    new = shared + prompts * (work.prompt - shared)
    tree = [(0, work.prompt), *[(shared, work.prompt - shared)] * (prompts - 1)]
    prompt_keys, tree_keys = (cache_bytes(shape, 1, n, work.dtype, tensor) for n in (prompts * work.prompt, new))
    masks = mask_bytes(shape, BatchShape.of(tree, 0), work.dtype)
    layer = e * new * 4 * (shape.intermediate + shape.attention) // tensor + masks + new * (8 + e) * shape.hidden
    prefill = {
        # Those of the tree, then a copy for each prompt.
        "prompts' keys and values": prompt_keys + tree_keys,
        "prefill": max(0, layer - prompt_keys) + e * prompts * vocabulary,
    }
    sample = {
        "key-value cache": cache_bytes(shape, rows, length, work.dtype, tensor) + e * work.slots * length,
        "prompts' keys and values": prompt_keys,
        "logits": e * work.slots * vocabulary,
        # Logits in float32 or what their product needs, log-probs, probabilities and their sums.
        "choice of tokens": rows * vocabulary * 16,
    }
    return {"prefill": prefill, "sample": sample}


def available_memory() -> int:
    """Return the bytes that are left in main memory, or in a container."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # There is no such group, or no limit ("max").
        limit, used = (int((CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        droppable = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
        left = min(left, limit - used + int(droppable["inactive_file"]))
    return left
