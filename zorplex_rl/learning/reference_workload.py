"""The work that a speedrun's seconds are divided by, so that clocks and loads compare.

    two processes, one thread each, ready ──► go ──► seconds of each ──► their mean
    the work: three times: sample 40 tokens in 64 rows, then one gradient of those and a step of AdamW

It is what an entry spends its time on, many small operations and a few products in the policy's
shapes, written out in torch alone, without the package's decoder and learner: a faster one of these
should make entries faster, and not the unit that they are measured in. So nothing here is changed
once there are records.
"""

import contextlib
import subprocess
import sys
import time
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

PROCESSES = 2
HIDDEN, INNER, HEADS, SHARED, LAYERS, VOCABULARY = 128, 384, 4, 2, 4, 533
ROWS, TOKENS, TIMES = 64, 40, 3
SIZE = HIDDEN // HEADS
SHAPES = {
    "query": (HIDDEN, HIDDEN),
    "key": (SHARED * SIZE, HIDDEN),
    "value": (SHARED * SIZE, HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "gate": (INNER, HIDDEN),
    "up": (INNER, HIDDEN),
    "down": (HIDDEN, INNER),
}
"""The matrices of a layer."""


def reference_seconds(times: int = TIMES) -> float:
    """Return the mean seconds of the work in processes that do it at the same time."""
    program = [sys.executable, "-c", f"from {__name__} import main; main({times})"]
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(PROCESSES):
            child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.append(stack.enter_context(child))
            stack.callback(child.kill)
        _lines(started)
        for child in started:
            print("go", file=child.stdin, flush=True)
        return fmean(map(float, _lines(started)))


def _lines(children: list[subprocess.Popen[str]]) -> list[str]:
    """Return the next line of each."""
    return [child.stdout.readline() for child in children if child.stdout]


def main(times: int) -> None:
    """Do a little of the work, say so, wait for a line, do the work, and print its seconds."""
    torch.set_num_threads(1)
    table, layers, optimizer = prepare()
    work(table, layers, optimizer, tokens=2)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for _ in range(times):
        work(table, layers, optimizer, TOKENS)
    print(time.monotonic() - began, flush=True)


def prepare(learning_rate: float = 1e-6) -> tuple[Tensor, list[dict[str, Tensor]], torch.optim.Optimizer]:
    """Return a table of embeddings, matrices of the layers, and their optimizer; always the same."""
    torch.manual_seed(0)
    layers = [{name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in SHAPES.items()} for _ in range(LAYERS)]
    table = torch.randn(VOCABULARY, HIDDEN) / HIDDEN**0.5
    weights = [table, *(matrix for layer in layers for matrix in layer.values())]
    return table, layers, torch.optim.AdamW([weight.requires_grad_() for weight in weights], lr=learning_rate)


def work(table: Tensor, layers: list[dict[str, Tensor]], optimizer: torch.optim.Optimizer, tokens: int) -> Tensor:
    """Sample ``tokens`` in each row with a cache, and take one step on them. Returns their log π."""
    ids = torch.zeros(ROWS, tokens, dtype=torch.long)
    with torch.inference_mode():
        cache = torch.zeros(LAYERS, 2, ROWS, SHARED, tokens, SIZE)
        for step in range(tokens - 1):
            x = F.embedding(ids[:, step], table)
            for layer, kept in zip(layers, cache, strict=True):
                q, k, v = queries_keys_values(x, layer)
                kept[0, :, :, step], kept[1, :, :, step] = k.view(ROWS, SHARED, SIZE), v.view(ROWS, SHARED, SIZE)
                keys, values = kept[..., : step + 1, :].unbind()
                mixed = F.scaled_dot_product_attention(q.view(ROWS, SHARED, -1, SIZE), keys, values)
                x = rest_of_layer(x, mixed.reshape(ROWS, HIDDEN), layer)
            odds = (normed(x) @ table.T).softmax(-1)
            ids[:, step + 1] = torch.multinomial(odds, 1)[:, 0]
    x = F.embedding(ids, table)
    for layer in layers:
        q, k, v = (part.view(ROWS, tokens, -1, SIZE).transpose(1, 2) for part in queries_keys_values(x, layer))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = rest_of_layer(x, mixed.transpose(1, 2).reshape(ROWS, tokens, HIDDEN), layer)
    logp = (normed(x[:, :-1]) @ table.T).log_softmax(-1)
    logp = logp.gather(-1, ids[:, 1:, None])[..., 0]
    (-logp.mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return logp.detach()


def normed(x: Tensor) -> Tensor:
    """Scale [..., HIDDEN] to a mean square of 1."""
    return F.rms_norm(x, (HIDDEN,))


def queries_keys_values(x: Tensor, layer: dict[str, Tensor]) -> list[Tensor]:
    """Return queries [..., HIDDEN], keys and values [..., SHARED · SIZE] of ``x`` [..., HIDDEN]."""
    return [F.linear(normed(x), layer[name]) for name in ("query", "key", "value")]


def rest_of_layer(x: Tensor, mixed: Tensor, layer: dict[str, Tensor]) -> Tensor:
    """Return ``x`` [..., HIDDEN] after the layer, of what its attention has ``mixed``."""
    x = x + F.linear(mixed, layer["out"])
    h = normed(x)
    return x + F.linear(F.silu(F.linear(h, layer["gate"])) * F.linear(h, layer["up"]), layer["down"])
