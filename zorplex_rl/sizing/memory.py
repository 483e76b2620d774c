"""Compute what a trainer and a generator need in memory, part by part. Arithmetic only, no torch.

    ModelShape, Workload ──► trainer_memory, generator_memory ──► Memory: bytes of each part

N parameters, L layers, h hidden size, a attention width (heads · head size), k key-value width, i
intermediate size, V vocabulary, e bytes of a number (2 or 4).

    trainer                                                                         divided from ZeRO stage
    weights          e·N                                                            3
    masters          4·N if e is 2                                                  1
    gradients        4·N                                                            2
    moments          8·N                                                            1
    weight ring      2·e·N                                                          in shared memory
    activations      what autograd keeps of a micro-batch: ``activation_bytes``     never
    logits           3 · 4·V of each sampled token: ``logit_bytes``                 never

    generator
    weights          e·N
    merged weights   4·L times the matrices of a layer, with adapters in float32 on a CPU
    staging          e·N if weights do not come through shared memory
    key-value cache  2·k·e·L of each token of a row (+ e for its mask), for all slots
    prompts          2·k·e·L of each token of the prompts that are under way
    prefill          (a + 2·k)·e·L of each token of the prompts that run together, and one layer
    logits           e·V of each slot
    choice of tokens 4 · 4·V of each row: logits, log-probs, probabilities and their sums in float32

ZeRO divides weights, gradients and moments (Rajbhandari et al. 2020, arXiv:1910.02054, section 5).
Tensor parallelism (Megatron, Shoeybi et al. 2019, arXiv:1909.08053, section 3) divides attention,
MLP, output layer and cache, but no norms and residuals. Activations are counted as in Korthikanti
et al. 2022 (arXiv:2205.05198, section 4), for this architecture.

The ``reserve`` is what a process takes beyond these parts in main memory: libraries, the tokenizer,
freed blocks in which the next ones do not fit, and in 16 bits the kernels that oneDNN compiles. It is
not derived but measured: ``python benchmarks/sizing.py`` compares real processes, and
``benchmarks/LOG.md`` has its table. On a GPU nothing of it is counted.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Self

import psutil

from zorplex_rl.config import Config
from zorplex_rl.sizing.model_shape import ModelShape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ZERO = {"weights": 3, "adapters": 3, "masters": 1, "gradients": 2, "moments": 1}
"""The stage from which ZeRO divides each part."""
RING_SLOTS = 2
"""As in ``weights/ring.py``; a test holds them together."""
BLOCK = 128
"""Queries that attend together, as in ``policy/model.py``; a test holds them together."""
CACHE_STEP = 32
"""``RolloutEngine`` reserves rows of a multiple of this many tokens."""
TOGETHER = 8192
"""Maximum number of tokens of prompts that run at once, as in ``policy/decoder.py``; a test holds them together."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""A container's limits, of version 2."""
RESERVE = "reserve"

# What the reserve is made of.
LIBRARY_BYTES = {"trainer": 7_000_000, "generator": 2_000_000}
TOKEN_BYTES = 500
"""Of the tokenizer, for each token of the vocabulary."""
HOLES = 0.15
"""Share of the activations that find no freed place: gradients lay there in the step before."""
LATER_HOLES = 0.7
"""The same in a later micro-batch of a step: the gradients of the first one still lie there."""
BLOCK_BYTES = 3_000_000
"""Kernels that oneDNN compiles in 16 bits for each block of queries that is trained on."""
SAMPLING_BYTES = 9_000_000
"""Kernels that it compiles for the first answers."""
COMPILED_BYTES = 1024 * 650_000
"""What compiled kernels take at most: one for each new shape, of which oneDNN keeps the last 1,024."""
LARGE = 100_000
"""Weights of a matrix from which on a generator uses oneDNN in float32, too, as in ``policy/product.py``."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A micro-batch: a tree of texts, which attends in blocks of queries."""

    tokens: int
    """Tokens of the tree."""
    seen: int
    """Keys that the blocks attend to, summed over the blocks."""
    copied: int
    """Those of them that are copied, because they do not lie side by side."""
    responses: int
    response: int
    """Tokens of each response."""

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int]], response: int) -> Self:
        """Return the shape of a tree of ``parts``: the depth of the first token, and the number of tokens.
        A block attends to the ancestors of its first token, and to itself."""
        tokens = 0
        seen = 0
        copied = 0
        for depth, length in parts:
            # The blocks whose first query is in this part.
            first = ceil(tokens / BLOCK) * BLOCK
            starts = range(first, tokens + length, BLOCK)
            ancestors = sum(starts) - len(starts) * (tokens - depth)
            seen += ancestors
            if depth < tokens:
                copied += ancestors + len(starts) * BLOCK
            tokens += length
        return cls(tokens, seen + tokens, copied, len(parts), response)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run feeds its models. Lengths are in tokens: those of the longest text."""

    prompt: int = 100
    response: int = Config.max_tokens
    prompts: int = Config.prompts_per_step
    """Prompts of a training batch."""
    group_size: int = Config.group_size
    token_budget: int = Config.learner.token_budget
    slots: int = Config.slots
    tasks: int = Config.prompts_per_step
    """Prompts that a generator has to answer."""
    evaluated: int = Config.eval_tasks
    """Prompts of an evaluation, which has another cache; 0 is no evaluation."""
    dtype: str = "float32"
    transfer: str = "float32"
    """Number type of the weights that travel."""
    shared_prompt: int = 0
    """Tokens with which all prompts begin."""
    staged: bool = False
    """Whether weights do not come through shared memory."""
    lora_rank: int = 0
    """Rank of the adapters that are trained, in float32; 0: all weights are."""

    @classmethod
    def of(cls, config: Config, prompt: int, shared_prompt: int = 0) -> Self:
        """Return the workload of ``config`` for prompts of up to ``prompt`` tokens."""
        return cls(
            prompt=prompt,
            response=config.max_tokens,
            prompts=config.prompts_per_step,
            group_size=config.group_size,
            token_budget=config.learner.token_budget,
            slots=config.slots,
            tasks=config.share,
            evaluated=config.eval_tasks,
            dtype=config.dtype,
            transfer=config.dtype,
            shared_prompt=shared_prompt,
            staged=config.transport in ("rdma", "message"),
            lora_rank=config.lora_rank,
        )

    def micro_batches(self) -> list[BatchShape]:
        """Return the micro-batches of a step whose responses all have the greatest length and share only
        their prompts. They are filled as in ``policy/decoder.py``."""
        whole = self.prompt + self.response - 1
        trees: list[list[tuple[int, int]]] = []
        size = self.token_budget
        for sample in list(range(self.group_size)) * self.prompts:
            depth = self.prompt if sample else self.shared_prompt
            size += whole - depth
            if size > self.token_budget:
                trees.append([])
                depth = 0
                size = whole
            trees[-1].append((depth, whole - depth))
        return [BatchShape.of(parts, self.response) for parts in trees]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of every part of one process, in every phase: ``{"sample": {"weights": 5, …}, …}``."""

    phases: dict[str, dict[str, int]]
    later: int = 0
    """Bytes that a long run adds at most: kernels that oneDNN compiles for new shapes."""

    @property
    def highest(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the highest phase, in bytes, without those that are 0."""
        return {part: size for part, size in self.phases[self.highest].items() if size}

    @property
    def total(self) -> int:
        """Bytes at the highest, if the process has no GPU."""
        return sum(self.parts.values())


def trainer_memory(
    shape: ModelShape,
    work: Workload,
    ranks: int = 1,
    stage: int = 0,
    tensor: int = 1,
) -> Memory:
    """Return what a trainer of ``shape`` needs for ``work``: one of ``ranks`` processes at ZeRO
    ``stage`` 0 to 3, each of which is ``tensor`` processes."""
    n = shape.parameters
    trained = shape.trained(work.lora_rank)
    is_low = BYTES[work.dtype] < 4
    bytes_of = {
        "weights": BYTES[work.dtype] * n,
        "adapters": 4 * trained if work.lora_rank else 0,
        "masters": 4 * trained if is_low and not work.lora_rank else 0,
        "gradients": 4 * trained,
        "moments": 8 * trained,
    }
    static = {}
    for part, size in bytes_of.items():
        processes = tensor * (ranks if stage >= ZERO[part] else 1)
        static[part] = size // processes
    static["weight ring"] = RING_SLOTS * version_bytes(shape, work)
    first, *later = work.micro_batches()
    static[RESERVE] = LIBRARY_BYTES["trainer"] + TOKEN_BYTES * shape.vocabulary
    if is_low:
        for batch in (first, *later[:1]):
            static[RESERVE] += BLOCK_BYTES * ceil(batch.tokens / BLOCK)
    parts = _micro_batch(shape, first, work.dtype, tensor, static, HOLES)
    phases = {
        # No gradient is there before the backward pass, which begins by freeing the logits.
        "forward": parts | {"gradients": 0},
        "backward": parts | {"logits": 0},
    }
    if later:
        parts = _micro_batch(shape, later[0], work.dtype, tensor, static, LATER_HOLES)
        phases["later forward"] = parts
    return Memory(phases, later=COMPILED_BYTES if is_low else 0)


def _micro_batch(
    shape: ModelShape,
    batch: BatchShape,
    dtype: str,
    tensor: int,
    static: dict[str, int],
    holes: float,
) -> dict[str, int]:
    """Return ``static`` with what ``batch`` adds to it."""
    activations = activation_bytes(shape, batch, dtype, tensor)
    return static | {
        "activations": activations,
        "logits": logit_bytes(shape, batch, tensor),
        RESERVE: static[RESERVE] + int(holes * activations),
    }


def activation_bytes(
    shape: ModelShape,
    batch: BatchShape,
    dtype: str,
    tensor: int = 1,
) -> int:
    """Return what autograd keeps of ``batch`` for its backward pass, without the logits.

    one token   L · (16·h + e·(2h + 4i + 3a + 2k))    two norms in float32, inputs and results of all products
    one key     L · e·2k + e·128·heads/kv_heads       that a block of 128 queries sees: copied, and masked
    """
    e = BYTES[dtype]
    norms = 16 * shape.hidden
    residuals = 2 * e * shape.hidden
    products = e * (4 * shape.intermediate + 3 * shape.attention + 2 * shape.keys)
    copies = e * 2 * shape.keys * batch.copied
    layer = batch.tokens * (norms + residuals) + (batch.tokens * products + copies) // tensor
    ends = 8 * shape.hidden * batch.tokens
    return shape.layers * layer + ends + mask_bytes(shape, batch, dtype)


def mask_bytes(shape: ModelShape, batch: BatchShape, dtype: str) -> int:
    """Return the masks of ``batch``, which have a row for each query head that shares keys."""
    queries = min(BLOCK, batch.tokens) * shape.heads // shape.kv_heads
    return BYTES[dtype] * queries * batch.seen


def logit_bytes(shape: ModelShape, batch: BatchShape, tensor: int = 1) -> int:
    """Return ``batch``'s logits in float32, if all tokens are sampled: log π, π and their product for
    the entropy, and as many on the way back."""
    return 3 * 4 * batch.responses * batch.response * shape.vocabulary // tensor


def version_bytes(shape: ModelShape, work: Workload) -> int:
    """Return the bytes of a version of the weights, as it is published: of all that is trained."""
    return (4 if work.lora_rank else BYTES[work.transfer]) * shape.trained(work.lora_rank)


def generator_memory(shape: ModelShape, work: Workload, tensor: int = 1) -> Memory:
    """Return what a generator of ``shape`` needs for ``work``."""
    n = shape.parameters
    is_low = BYTES[work.dtype] < 4
    largest = shape.hidden * max(shape.intermediate, shape.vocabulary)
    static = {"weights": BYTES[work.dtype] * n // tensor}
    if work.lora_rank:
        static["adapters"] = 4 * shape.trained(work.lora_rank)
        static["merged weights"] = 0 if is_low else 4 * shape.layers * shape.matrices // tensor
    static["staging"] = version_bytes(shape, work) if work.staged else 0
    static[RESERVE] = LIBRARY_BYTES["generator"] + TOKEN_BYTES * shape.vocabulary
    if is_low:
        static[RESERVE] += SAMPLING_BYTES
    stream = _sampling(shape, work, work.tasks, work.group_size, tensor)
    cache = stream["key-value cache"]
    phases = {"sample": static | stream}
    if work.evaluated:
        evaluation = _sampling(shape, work, work.evaluated, 2, tensor)
        phases["evaluate"] = static | evaluation | {"cache of the stream": cache}
    return Memory(phases, COMPILED_BYTES if is_low or largest >= LARGE else 0)


def _sampling(
    shape: ModelShape,
    work: Workload,
    tasks: int,
    samples: int,
    tensor: int,
) -> dict[str, int]:
    """Return the parts of a rollout engine that answers ``tasks`` prompts ``samples`` times each."""
    e = BYTES[work.dtype]
    vocabulary = shape.vocabulary // tensor
    rows = min(work.slots, tasks * samples)
    length = ceil((work.prompt + work.response) / CACHE_STEP) * CACHE_STEP
    # The prompts of the rows that enter, and those of as many waiting requests as there are slots.
    prompts = min(tasks, ceil(2 * work.slots / samples))
    shared = min(work.shared_prompt, work.prompt - 1)
    rest = work.prompt - shared
    at_once = min(prompts, max(1, (TOGETHER - shared) // rest))
    tree = BatchShape.of([(0, work.prompt)] + [(shared, rest)] * (at_once - 1), 0)
    # Keys and values of the tree, with the queries beside the keys, and the copy of one prompt.
    prefill = cache_bytes(shape, 1, tree.tokens + work.prompt, work.dtype, tensor)
    prefill += shape.layers * e * tree.tokens * shape.attention // tensor
    # One layer at a time.
    prefill += e * tree.tokens * (3 * shape.intermediate + shape.attention) // tensor
    prefill += e * tree.tokens * 2 * shape.hidden
    prefill += mask_bytes(shape, tree, work.dtype)
    prefill += e * prompts * vocabulary
    cache = cache_bytes(shape, rows, length, work.dtype, tensor)
    return {
        "key-value cache": cache + e * work.slots * length,
        "prompts": cache_bytes(shape, prompts, work.prompt, work.dtype, tensor),
        "prefill": prefill,
        "logits": e * work.slots * vocabulary,
        "choice of tokens": 16 * rows * vocabulary,
    }


def cache_bytes(
    shape: ModelShape,
    rows: int,
    length: int,
    dtype: str,
    tensor: int = 1,
) -> int:
    """Return the keys and values of ``rows`` rows of ``length`` tokens."""
    heads = min(tensor, shape.kv_heads)
    return BYTES[dtype] * shape.layers * 2 * shape.keys * rows * length // heads


def available_memory() -> int:
    """Return the bytes that are left in main memory, or in a container."""
    left = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # There is no such group, or no limit ("max").
        limit = int((CONTROL_GROUP / "memory.max").read_text())
        used = int((CONTROL_GROUP / "memory.current").read_text())
        lines = (CONTROL_GROUP / "memory.stat").read_text().splitlines()
        statistics = dict(line.split() for line in lines)
        left = min(left, limit - used + int(statistics["inactive_file"]))
    return left
