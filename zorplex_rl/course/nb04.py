"""Serve notebook 04: gloo groups, the bytes that they send, and checks that play ranks."""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zorplex_rl.course.figures.bars import grouped_bars
from zorplex_rl.services.runtime import current_rank, start_monarch, this_host


def join(meeting: os.PathLike[str], ranks: int) -> int:
    """Join the gloo group of this actor's mesh, which meets in a new file. Returns the process's id."""
    logging.disable(logging.WARNING)  # what gloo cannot do is told on the page
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=current_rank().rank, world_size=ranks)
    return os.getpid()


@asynccontextmanager
async def process_group(name: str, count: int, actor: Any) -> AsyncIterator[Any]:
    """Start ``count`` processes with an ``actor`` each and a gloo group, for the block."""
    start_monarch()
    procs = this_host().spawn_procs(per_host={"procs": count}, name=name)
    try:
        ranks = procs.spawn(name, actor)
        await ranks.run.call(join, f"{tempfile.mkdtemp()}/meeting", count)
        yield ranks
    finally:
        await procs.stop()


def sent_so_far() -> int:
    """Return the bytes that this process has put on TCP connections, as Linux counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                facts = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208)
                # tcpi_bytes_sent, the 25th of the 8-byte words of struct tcp_info
                total += struct.unpack_from("Q", facts, 200)[0] if len(facts) >= 208 else 0
    return total


def counted(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Return what ``function`` returns, and the bytes that this rank sent meanwhile."""
    dist.barrier()
    before = sent_so_far()
    answer = function(*args)
    dist.barrier()
    return answer, sent_so_far() - before


def sent_chart(collectives: Mapping[str, tuple[float, float]]) -> str:
    """Draw the bytes that one rank sends in each operation: by formula, and as Linux counted."""
    names = ("by formula", "sent")
    return grouped_bars(
        collectives, names, "Bytes by formula and as sent", "MB that each rank sends", 1e6
    )


def on_ranks(layers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that runs ``layers`` as every rank, one after the other.

    Each rank calls ``add_up`` once, with its summand of the output, and uses no more than its part
    of the hidden numbers. Raises AssertionError where one does not.
    """

    def everywhere(
        x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, ranks: int
    ) -> Tensor:
        called = f"`{layers.__name__}` on {ranks} ranks, with x of shape {tuple(x.shape)} and up of {tuple(up.shape)}"
        summands: list[list[Tensor]] = []

        def run(rank: int, add_up: Callable[[Tensor], Tensor]) -> Tensor:
            return layers(x, up, up_bias, down, down_bias, rank, ranks, add_up)

        for rank in range(ranks):
            mine: list[Tensor] = []
            run(rank, lambda part, mine=mine: mine.append(part) or part)  # type: ignore[misc]
            assert len(mine) == 1, (
                f"{called}, calls `add_up` {len(mine)} times on rank {rank}, and should call it once"
            )
            shape = (len(x), len(down))
            assert tuple(mine[0].shape) == shape, (
                f"{called}, adds up a tensor of shape {tuple(mine[0].shape)}: the output has {shape}"
            )
            if mine[0].requires_grad:
                (used,) = torch.autograd.grad(
                    mine[0].sum(), down, allow_unused=True, retain_graph=True
                )
                count, share = (
                    0 if used is None else int(used.any(0).sum()),
                    math.ceil(len(up) / ranks),
                )
                assert count <= share, (
                    f"{called}, uses {count} of the {len(up)} hidden numbers on rank {rank}: its part has {share}"
                )
            summands.append(mine)
        total = sum((mine[0] for mine in summands[1:]), summands[0][0])
        outputs = [run(rank, lambda part: total) for rank in range(ranks)]
        assert all(torch.allclose(outputs[0], other) for other in outputs), (
            f"{called}, differs from rank to rank"
        )
        return outputs[-1]

    everywhere.__name__ = layers.__name__
    return everywhere


def draw_layers(draw: random.Random) -> tuple[Tensor | int, ...]:
    """Draw x, two layers with biases, and ranks that need not divide their width."""
    torch.manual_seed(draw.randrange(10**6))
    rows, narrow, wide, ranks = (
        draw.randint(2, 5),
        draw.randint(2, 4),
        draw.randint(5, 9),
        draw.randint(2, 4),
    )
    sizes = ((rows, narrow), (wide, narrow), (wide,), (narrow, wide), (narrow,))
    return *(torch.randn(size).requires_grad_() for size in sizes), ranks


def draw_share(draw: random.Random) -> tuple[Tensor, int, int]:
    """Draw a flat tensor, a rank, and a number of ranks that need not divide its length."""
    ranks = draw.randint(1, 5)
    return torch.arange(1.0, draw.randint(1, 12) + 1), draw.randrange(ranks), ranks
