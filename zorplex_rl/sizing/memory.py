"""What a trainer and a generator need in memory, computed: arithmetic only, no torch.

    ModelShape ─┐                           phases       load   forward   backward   update      load   prefill   sample
                ├─► trainer_memory ─────►   weights        ■       ■         ■         ■            ■       ■        ■
    Workload ───┘   generator_memory        moments                ■         ■         ■     cache  ·       ■        ■
                                            activations            ■                         …

A phase is a moment at which much is allocated at once; ``Memory.total`` is the sum of the parts in
the highest one. In main memory the C library keeps freed blocks below 32 MiB. The tensors of the
next phase take their places, but not without holes. Holes, and what another phase needed more of
such blocks, are the part "kept by the allocator". A GPU's allocator is taken to waste nothing.
Every term follows an allocation in the code: ``learning/learner.py`` (trainer),
``policy/rollout.py`` and ``policy/kv_cache.py`` (generator), ``weights/ring.py`` (both). The
activations are what autograd keeps for the backward pass of a Qwen2 or Llama model in
``transformers``, without recomputation.

N parameters, L layers, h hidden size, a attention width (heads · head size), k key-value width, i
intermediate size, V vocabulary, e bytes of a number (2 or 4).

    weights     e·N                         masters   4·N if e is 2        gradients  4·N        AdamW's moments  8·N
    one token   L · (norms + e·(4i + 2a))   norms     24·h in float32, 16·h in bfloat16
    attention   L · e · (2a · keys + mask)  keys and values, repeated for every query head that shares them (k for a, if there is one key head); the
                                            mask once for each layer
    logits      4 · 4·V for each sampled token: logits, log-probs and two more for the entropy, all float32
    cache       L · 2k · e · slots · length, the length rounded up to a multiple of 32

The division of weights, gradients and moments is that of ZeRO (Rajbhandari et al. 2020,
arXiv:1910.02054, section 5 and figure 1). Tensor parallelism is Megatron's (Shoeybi et al. 2019,
arXiv:1909.08053, section 3): attention, MLP, output layer and cache are divided; norms and
residuals are not. Activations at 16-bit precision are counted as in Korthikanti et al. 2022
(arXiv:2205.05198, section 4), for this architecture.

Unknown: activations of experts and other attention (``ModelShape.unknown``), other programs.
"""

from dataclasses import dataclass, replace

from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.workload import BYTES, CACHE_STEP, ONE_PROCESS, MicroBatch, Parallel, Workload

LOGIT_COPIES = 4
"""Float32 [tokens, V] at once in ``token_logprobs``: logits, log π, π, and their product."""
RETURNED = 32 * 2**20
"""The C library keeps smaller freed blocks (mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX)."""
FRAGMENTATION = 0.3
"""What the holes between these add in a trainer, measured as a share: 0.2 to 0.6 for one step."""
SAMPLING_FRAGMENTATION = 0.15
"""The same in a generator, which keeps nothing for a backward pass."""
TRAINER_LIBRARIES = 5_000_000
"""What torch's kernels keep for the shapes that they have met."""
GENERATOR_LIBRARIES = {4: 5_000_000, 2: 2_000_000}
"""By the bytes of a number; those of two measured in bfloat16."""
KEPT, LIBRARIES = "kept by the allocator", "libraries"
HOST_PARTS = ("weight ring", "staging", "policy file")
"""Parts that are in main memory also where the model is on a GPU."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of every part in every phase of one process.

    >>> Memory({"load": {"weights": 5}, "update": {"weights": 5, "moments": 10}}).highest
    'update'
    """

    phases: dict[str, dict[str, int]]
    reserved: int = 0
    """Bytes that are set aside and stay empty: the cache of slots that have no episode. In main
    memory they take no room, but the kernel refuses more than the machine has; on a GPU they take
    what others do."""

    @property
    def highest(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the highest phase, in bytes, without those that are 0."""
        return {part: size for part, size in self.phases[self.highest].items() if size}

    @property
    def total(self) -> int:
        """Bytes at the highest."""
        return sum(self.parts.values())

    def on_host(self, cuda: bool) -> int:
        """Return the bytes in main memory: all, or with CUDA ring and staging buffer."""
        if not cuda:
            return self.total + self.reserved
        return max(sum(parts.get(part, 0) for part in HOST_PARTS) for parts in self.phases.values())

    def on_gpu(self) -> int:
        """Return the bytes in the memory of a GPU, if the model is on one."""
        without = (*HOST_PARTS, KEPT, LIBRARIES)
        highest = max(sum(parts[part] for part in parts if part not in without) for parts in self.phases.values())
        return highest + self.reserved


def trainer_memory(shape: ModelShape, work: Workload, parallel: Parallel = ONE_PROCESS) -> Memory:
    """Return what a trainer of ``shape`` needs for ``work``, above its libraries."""
    n, e = shape.parameters, BYTES[work.dtype]
    low = e < 4
    weights = {"weights": e * n // parallel.of("weights"), "masters": 4 * n // parallel.of("masters") if low else 0}
    base = weights | {"moments": 8 * n // parallel.of("moments"), "weight ring": work.ring_bytes * n}
    table, of_gradients = 4 * shape.table // parallel.tensor, parallel.of("gradients")
    whole = {"gradients": 4 * n // of_gradients}
    small_gradients = 4 * (n - (shape.tables if table >= RETURNED else 0)) // of_gradients
    phases = {"load": {"weights": e * n, "policy file": _mapped(n, work)}}
    # Of each phase the bytes in blocks that come and go and are not given back.
    small, first = dict[str, int](), 0
    for batch, count in work.micro_batches:
        # The last of these: the gradients of the earlier ones are there when it begins.
        index, first = first + count - 1, first + count
        number = f" {index + 1}" if len(work.micro_batches) > 1 or index else ""
        gradients, earlier = (whole, small_gradients) if index else ({"gradients": 0}, 0)
        kept = activation_bytes(shape, batch, work.dtype, parallel)
        responses = e * batch.rows * batch.response
        small_kept = earlier + kept - _returned(4 * shape.layers * responses * shape.intermediate, 4 * shape.layers)
        logits = logit_bytes(shape, batch, parallel)
        # In bfloat16 the output layer runs on a float32 copy of its weights.
        copied = table if low else 0
        keys = e * 2 * shape.layers * shape.keys * batch.rows * (batch.prompt + batch.response) // parallel.tensor
        # The table's gradient comes in parts, one for each place where it is used.
        again = (2 * table if index else table) if not low else e * n // parallel.tensor + table
        phases[f"forward{number}"] = base | gradients | {"activations": kept, "key-value copies": keys}
        phases[f"logits{number}"] = base | gradients | {"activations": kept, "logits": logits + copied}
        phases[f"backward{number}"] = base | whole | {"gradient parts": again}
        small[f"forward{number}"] = small_kept + keys
        small[f"logits{number}"] = small_kept + logits - _returned(logits, LOGIT_COPIES) + copied - _returned(copied)
        small[f"backward{number}"] = small_gradients + (again if table < RETURNED else e * small_gradients // 4 * low)
    # AdamW's square root and quotient of its largest tensor.
    matrix = shape.largest or shape.hidden * max(shape.intermediate, shape.attention)
    largest = max(table, 4 * matrix // parallel.tensor)
    phases["update"] = base | whole | {"optimizer's temporaries": 2 * largest}
    small["update"] = small_gradients + 2 * largest - _returned(2 * largest, 2)
    # Float32 gradients take activations' places one by one: the next step's do not fit there.
    scattered = 0 if low else small_gradients
    # Holes, and what other phases had more of blocks that are not given back.
    highest = max(small.values())
    holes = int(FRAGMENTATION * highest) + scattered
    for name, size in small.items():
        phases[name] |= {KEPT: highest - size + holes, LIBRARIES: TRAINER_LIBRARIES}
    return Memory(phases)


def _returned(size: int, blocks: int = 1) -> int:
    """Return how much of ``size`` bytes in ``blocks`` goes back when freed: all or nothing."""
    return size if size // blocks >= RETURNED else 0


def activation_bytes(shape: ModelShape, batch: MicroBatch, dtype: str, parallel: Parallel = ONE_PROCESS) -> int:
    """Return what autograd keeps of ``batch`` for its backward pass, without the logits. The first
    hidden state is the prompt's last, so a response's pass is a token shorter."""
    e = BYTES[dtype]
    h, a, k, i = shape.hidden, shape.attention, shape.keys, shape.intermediate
    steps = batch.response - 1
    width = batch.prompt + steps
    responses, prompts = batch.rows * steps, batch.prompts * batch.prompt
    # Two norms a layer: float32 keeps input, normalized, scaled; bfloat16 the input in float32.
    norms = (24 if e == 4 else 16) * h
    divided = e * (4 * i + 2 * a)
    keys = 2 * shape.copied_keys
    mask = e * batch.rows * steps * width
    layer = norms * (responses + prompts) + mask
    layer += (divided * (responses + prompts) + e * (keys * batch.rows * width + 2 * k * prompts)) // parallel.tensor
    ends = (4 * e + 8) * h * (responses + prompts) // 2
    return shape.layers * layer + ends


def logit_bytes(shape: ModelShape, batch: MicroBatch, parallel: Parallel = ONE_PROCESS) -> int:
    """Return ``batch``'s float32 logits and what comes of them, if all tokens are sampled."""
    return LOGIT_COPIES * 4 * batch.rows * batch.response * shape.vocabulary // parallel.tensor


def generator_memory(
    shape: ModelShape, work: Workload, parallel: Parallel = ONE_PROCESS, mapped_ring: bool = False
) -> Memory:
    """Return what a generator of ``shape`` needs for ``work``, above its libraries. ``mapped_ring``
    counts the trainer's ring, too, which a reader through shared memory maps."""
    work = replace(work, dtype=work.sampled_in or work.dtype)
    n, e = shape.parameters, BYTES[work.dtype]
    base = {
        "weights": e * n // parallel.tensor,
        "staging": BYTES[work.transfer] * n,
        "weight ring": work.ring_bytes * n if mapped_ring else 0,
    }
    phases = {"load": {"weights": e * n, "policy file": _mapped(n, work)}}
    stream = _sampling(shape, work, work.tasks, work.group_size, parallel)
    phases |= {name: base | parts for name, parts in stream.items()}
    if work.evaluated:
        beside = {"cache of the stream": stream["sample"]["key-value cache"] + stream["sample"]["logits"]}
        evaluation = _sampling(shape, work, work.evaluated, 1, parallel)
        phases |= {f"evaluation, {name}": base | beside | parts for name, parts in evaluation.items()}
    come_and_go = ("prefill", "choice of tokens", "prompts' keys and values")
    largest = {part: max(parts.get(part, 0) for parts in phases.values()) for part in come_and_go}
    for name, parts in phases.items():
        if name != "load":
            # Of the largest of these, a block is about a quarter.
            others = sum(size - _returned(size, 4) for part, size in largest.items() if part not in parts)
            holes = int(SAMPLING_FRAGMENTATION * sum(parts.get(part, 0) for part in come_and_go))
            phases[name] = parts | {KEPT: others + holes, LIBRARIES: GENERATOR_LIBRARIES[e]}
    length = _rounded(work.prompt + max(work.max_tokens, work.response))
    free = [work.slots - min(work.slots, n) for n in (work.tasks * work.group_size, work.evaluated or work.slots)]
    return Memory(phases, sum(cache_bytes(shape, rows, length, work.dtype, parallel) for rows in free))


def _rounded(length: int) -> int:
    """Return the tokens for which a row of the cache has room if it holds ``length``."""
    return -(-length // CACHE_STEP) * CACHE_STEP


def cache_bytes(shape: ModelShape, rows: int, length: int, dtype: str, parallel: Parallel = ONE_PROCESS) -> int:
    """Return the keys and values of ``rows`` rows of ``length`` tokens."""
    return BYTES[dtype] * shape.layers * 2 * shape.keys * rows * length // min(parallel.tensor, shape.kv_heads)


def _sampling(
    shape: ModelShape, work: Workload, tasks: int, samples: int, parallel: Parallel
) -> dict[str, dict[str, int]]:
    """Return a rollout engine's parts in prefill and sampling: ``samples`` × ``tasks``."""
    e, v = BYTES[work.dtype], shape.vocabulary // parallel.tensor
    rows = min(work.slots, tasks * samples)
    # The prompts of the rows that enter, and those of as many waiting requests as there are slots.
    prompts = min(tasks, -(-2 * work.slots // samples))
    length = _rounded(work.prompt + work.response)
    shared = min(work.shared_prompt, work.prompt - 1) if prompts > 1 else 0
    new = prompts * (work.prompt - shared)
    prompt_keys = cache_bytes(shape, prompts, work.prompt, work.dtype, parallel)
    repeated = 2 * shape.copied_keys if shared and shape.heads > shape.kv_heads > 1 else 0
    of_layer = new * 4 * (shape.intermediate + shape.attention) + prompts * work.prompt * repeated
    layer = e * of_layer // parallel.tensor
    layer += new * (8 + e) * shape.hidden + e * prompts * (work.prompt - shared) * work.prompt
    prefill = {
        # The model's cache, stacked by layer, and stacked once more; then a copy for each prompt.
        "prompts' keys and values": 3 * prompt_keys,
        "prefill": max(0, layer - 2 * prompt_keys) + e * prompts * v,
    }
    sample = {
        "key-value cache": cache_bytes(shape, rows, length, work.dtype, parallel) + e * work.slots * length,
        "prompts' keys and values": prompt_keys,
        "logits": e * work.slots * v,
        # Logits in float32 or what their product needs, log-probs, probabilities and their sums.
        "choice of tokens": rows * v * 16,
    }
    return {"prefill": prefill, "sample": sample}


def _mapped(n: int, work: Workload) -> int:
    """Return the mapped bytes of the policy's file while it is loaded as another type."""
    return BYTES[work.stored] * n if work.stored != work.dtype else 0


def divided(shape: ModelShape, work: Workload, data: int, tensor: int = 1) -> dict[int, int]:
    """Return a trainer's bytes per process at ZeRO stages 0 to 3, rows shared by ``data``."""
    share = replace(work, prompts=max(1, work.prompts // data))
    return {stage: trainer_memory(shape, share, Parallel(data, stage, tensor)).total for stage in range(4)}
