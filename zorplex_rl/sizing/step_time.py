"""How long a step and a batch take: operations and bytes, over what this machine does a second.

    calibrate(shape, …) ──► Machine    matrix products in the sizes of this model, bytes of large and small tensors, exponentials, calls
                               │
    ModelShape, Workload ──────┴────► train_seconds, sample_seconds: seconds by part, of one thread

Floating-point operations are counted as in Kaplan et al. 2020 (arXiv:2001.08361, section 2.1 and
table 1): 2 for each weight of a matrix and each token, 6 with the backward pass, and the attention
to the earlier tokens, which 6N leaves out. Memory traffic is counted tensor by tensor. A sum of the
two, and no maximum: one thread does one after the other (Williams et al. 2009,
doi:10.1145/1498765.1498785, section 3, for the case of overlap).

Speeds are in processor time, which neighbours change little. ``calibrate`` imports torch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.workload import BYTES, Workload


@dataclass(frozen=True, slots=True)
class Machine:
    """What one thread of a machine does with a model of one shape and number type.

    product      operations per second of a matrix product with as many rows as a micro-batch has tokens, in the number type of the model
    logits       the same for the output layer, in float32
    decode       the same with as many rows as a decode step has on average
    attention    operations per second of attention, forward and backward
    traffic      bytes per second of norms, residuals and activations on tensors of the size of a micro-batch's, forward and backward
    update       bytes per second of elementwise work in place on tensors of the size of the weights
    optimizer    bytes of float32 weights per second of clipping and AdamW: its kernels and temporaries, tensor by tensor
    exponential  elements per second of a log-softmax
    fresh        bytes per second of memory that is written for the first time: the kernel zeroes every page and enters it in the page table
    call         seconds of one small tensor operation
    """

    product: float
    logits: float
    decode: float
    attention: float
    traffic: float
    update: float
    optimizer: float
    exponential: float
    fresh: float
    call: float


def calibrate(shape: ModelShape, work: Workload, seconds: float = 0.1, device: str = "cpu") -> Machine:
    """Measure ``device`` for ``shape``, each speed ``seconds`` long (of processor on a CPU)."""
    if device == "cpu":
        # Without the block below, which slows every call of torch: calls are measured, too.
        return _calibrate(shape, work, seconds, time.process_time, lambda: None)
    import torch

    with torch.device(device):
        return _calibrate(shape, work, seconds, time.monotonic, torch.cuda.synchronize)


def _calibrate(
    shape: ModelShape, work: Workload, seconds: float, clock: Callable[[], float], finish: Callable[[], None]
) -> Machine:
    """Measure with ``clock``; ``finish`` returns when the device has done what it was given."""
    import torch
    import torch.nn.functional as F

    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[work.dtype]
    batch = work.micro_batches[0][0]
    tokens = min(1024, batch.rows * batch.response)
    h, i, heads = shape.hidden, shape.intermediate, shape.heads
    size = shape.attention // heads

    def speed(amount: float, run: Callable[[], object], share: float = 0.5) -> float:
        """Return ``amount`` per second of the run at quantile ``share`` (0.5 is the median)."""
        run()
        finish()
        found: list[float] = []
        began = clock()
        while len(found) < 3 or clock() - began < seconds:
            start = clock()
            run()
            finish()
            found.append(clock() - start)
        return amount / max(sorted(found)[int(share * len(found))], 1e-9)

    x, up, down = torch.randn(tokens, h, dtype=dtype), torch.randn(i, h, dtype=dtype), torch.randn(h, i, dtype=dtype)
    wide = F.linear(x, up)

    def products() -> None:
        F.linear(x, up)  # forward
        F.linear(wide, down)
        wide @ up  # gradient of the input
        wide.t() @ x  # gradient of the weights

    # As many as a decode step has on average: the last episodes do not fill all slots.
    episodes = work.tasks * work.group_size
    rows = max(1, round(episodes / -(-episodes // min(work.slots, episodes))))
    layers = [(up, down)]
    # As many layers as fill no cache: a decode step reads each weight once, seldom from one.
    while len(layers) < shape.layers and len(layers) * 2 * up.nbytes < BEYOND_CACHES:
        layers.append((up.clone(), down.clone()))
    entries = min(shape.vocabulary, 8192)
    few = min(256, tokens)
    states, table = torch.randn(few, h), torch.randn(entries, h)
    logits = F.linear(states, table)

    def output() -> None:
        F.linear(states, table)
        logits @ table
        logits.t() @ states

    steps, width = max(1, batch.response - 1), batch.prompt + batch.response - 1
    some = max(1, min(batch.rows, 512 // steps))
    q = torch.randn(some, heads, steps, size, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(some, heads, width, size, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = torch.zeros(some, 1, steps, width, dtype=torch.bool).logical_not()

    def attend() -> None:
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()

    many = min(batch.rows * batch.response, 4096)
    residual = torch.randn(many, h, dtype=dtype, requires_grad=True)
    gate, value = (torch.randn(many, i, dtype=dtype, requires_grad=True) for _ in range(2))
    scale = torch.ones(h, dtype=dtype, requires_grad=True)

    def elementwise() -> None:
        """A norm as in transformers, a residual, the MLP's activation, forward and backward."""
        x = residual.float()
        x = scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)
        torch.autograd.backward([x + residual, F.silu(gate) * value], [residual.detach(), gate.detach()])

    whole = torch.randn(min(shape.parameters, 16_000_000))
    step_rows, weights = torch.randn(rows, h, dtype=dtype), torch.ones(h, dtype=dtype)

    def decode() -> None:
        for widen, narrow in layers:
            F.linear(F.linear(step_rows, widen), narrow)

    # Matrices as a layer has them: what AdamW takes depends on whether a tensor fills a cache.
    matrices = max(1, min(3 * shape.layers, NEVER_KEPT // up.numel()))
    masters = [torch.zeros(i, h, requires_grad=True) for _ in range(matrices)]
    for master in masters:
        master.grad = torch.ones(i, h)
    adamw = torch.optim.AdamW(masters)

    def optimize() -> None:
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        adamw.step()

    fresh = min(max(4 * shape.parameters, NEVER_KEPT), 4 * NEVER_KEPT)

    def call() -> float:
        return 1 / speed(20, lambda: [F.rms_norm(step_rows[:4], (h,), weights) for _ in range(20)], 0.1)

    with torch.no_grad():
        calls = [call()]
        decoding = speed(len(layers) * 2 * rows * h * i * 2, decode)
        found = Machine(
            product=speed(4 * 2 * tokens * h * i, products),
            logits=speed(3 * 2 * few * h * entries, output),
            decode=decoding,
            attention=1.0,
            traffic=1.0,
            update=speed(3 * whole.nbytes, lambda: whole.add_(whole, alpha=0.0)),
            optimizer=speed(len(masters) * 4 * i * h, optimize),
            exponential=speed(logits.numel(), lambda: torch.log_softmax(logits, -1)),
            fresh=speed(fresh, lambda: torch.zeros(fresh // 4)),
            call=call(),
        )
    moved = 3 * many * (_norm_bytes(work.dtype) * h + 5 * BYTES[work.dtype] * i)
    attention = speed(3 * 4 * some * steps * width * shape.attention, attend)
    traffic = speed(moved, elementwise)
    with torch.no_grad():
        # Microseconds are disturbed most by a neighbour: the quietest of three moments counts.
        calls += [found.call, call()]
    return replace(found, attention=attention, traffic=traffic, call=min(calls))


def train_seconds(shape: ModelShape, work: Workload, machine: Machine, updates: int = 1) -> dict[str, float]:
    """Return the seconds of a training step by part, if no response is shorter than the longest."""
    kinds = ("matrix products", "attention", "elementwise", "logits", "optimizer", "fresh memory", "calls")
    parts = dict.fromkeys(kinds, 0.0)
    for batch, count in work.micro_batches:
        steps = batch.response - 1
        width = batch.prompt + steps
        tokens = batch.rows * steps + batch.prompts * batch.prompt
        sampled = batch.rows * batch.response
        attended = batch.rows * steps * width + batch.prompts * batch.prompt**2
        parts["matrix products"] += count * 6 * shape.layers * _matrices(shape) * tokens / machine.product
        parts["attention"] += count * 3 * 4 * shape.layers * shape.attention * attended / machine.attention
        moved = TRAFFIC_PASSES * traffic_bytes(shape, tokens, batch.rows * width, work.dtype)
        parts["elementwise"] += count * moved / machine.traffic
        of_token = 6 * shape.table / machine.logits + LOGIT_PASSES * shape.vocabulary / machine.exponential
        parts["logits"] += count * sampled * of_token
        parts["calls"] += count * (CALLS_PER_LAYER * shape.layers + 300) * machine.call
    parts["optimizer"] = 4 * shape.parameters / machine.optimizer
    # Gradients are freed after a step. A tied table has two, as embedding and output layer.
    parts["fresh memory"] = 4 * (shape.parameters - shape.tables + 2 * shape.table) / machine.fresh
    return {part: updates * seconds for part, seconds in parts.items()}


BEYOND_CACHES = 200_000_000
"""Bytes that no processor's caches hold."""
NEVER_KEPT = 1 << 25
"""A block of this size goes back to the kernel when freed, under glibc: 32 MiB."""
TRAFFIC_PASSES = 5.0
"""Elementwise work of a step ÷ its forward pass: backward reads more, and adds up."""
LOGIT_PASSES = 6.0
"""Times that the logits are read or written, backward pass included, in units of a log-softmax."""
CALLS_PER_LAYER = 300.0
"""Calls of a layer, forward and backward, from Python and autograd, in units of a small one."""


def traffic_bytes(shape: ModelShape, tokens: int, keys: int, dtype: str) -> int:
    """Return the elementwise bytes of a forward pass; ``keys`` are the copies for responses. For
    each token and layer, in numbers: two norms and residuals 20·h, rotation 9·(a + k), MLP 5·i."""
    e = BYTES[dtype]
    token = 2 * _norm_bytes(dtype) * shape.hidden + e * (9 * (shape.attention + shape.keys) + 5 * shape.intermediate)
    copied = 4 * shape.keys + (2 * shape.attention if shape.heads > shape.kv_heads else 0)
    return shape.layers * (token * tokens + e * copied * keys)


def _norm_bytes(dtype: str) -> int:
    """Return the bytes of a norm (float32) and a residual, per number of the hidden size."""
    return 7 * 4 + 3 * BYTES[dtype]


def sample_seconds(shape: ModelShape, work: Workload, machine: Machine, steps: int | None = None) -> dict[str, float]:
    """Return the seconds by part for sampling ``tasks`` · ``group_size`` in ``slots``. ``steps`` is
    the number of decode steps if it is known."""
    e = BYTES[work.dtype]
    episodes = work.tasks * work.group_size
    rows: float = min(work.slots, episodes)
    steps = steps if steps is not None else -(-episodes // min(work.slots, episodes)) * (work.response - 1)
    # The last episodes do not fill all slots.
    rows = min(rows, episodes * (work.response - 1) / steps) if steps else rows
    prompts = work.tasks * (work.prompt - work.shared_prompt) + work.shared_prompt
    width = work.prompt + work.response / 2
    matrices = shape.layers * _matrices(shape) + shape.table
    attended = 2 * shape.keys * e / machine.update + 4 * shape.attention / machine.attention
    return {
        # Without a backward pass, which some processors do slowly in bfloat16.
        "prefill": 2 * shape.layers * _matrices(shape) * prompts / max(machine.product, machine.decode)
        + traffic_bytes(shape, prompts, work.tasks * work.prompt, work.dtype) / machine.traffic,
        "matrix products": steps * 2 * matrices * rows / machine.decode,
        "attention": steps * shape.layers * rows * width * attended,
        "choice of tokens": steps * rows * 5 * shape.vocabulary / machine.exponential,
        "calls": steps * (DECODE_CALLS * shape.layers + 30) * machine.call,
        "rows": steps * rows * ROW_CALLS * machine.call,
    }


DECODE_CALLS = 20.0
"""Tensor operations of one layer in ``LeanDecoder``, in units of a norm, which is several."""
ROW_CALLS = 5.0
"""What the engine does in Python for one token of one row, in units of a small tensor operation."""


def _matrices(shape: ModelShape) -> int:
    """Return the weights of one layer that are in matrices."""
    return shape.hidden * (2 * shape.attention + 2 * shape.keys + 3 * shape.intermediate)
