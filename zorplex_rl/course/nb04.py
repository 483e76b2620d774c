"""Serve notebooks 04 and 04b: gloo groups, the bytes that they send, and checks that play ranks.

``play`` runs a function as every rank of a group in this one process. The ranks are run again from
their beginning after every collective, with the answers that are known by then: so no check needs
threads, and none can hang.
"""

import copy
import logging
import math
import os
import random
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zorplex_rl.course.figures.bars import grouped_bars
from zorplex_rl.course.lesson.checks import Attempt
from zorplex_rl.course.lesson.compare import shown
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.services.runtime import Actor, current_rank, endpoint, start_monarch, this_host


class Rank(Actor):
    """Run whatever function is sent: one of the processes that compute together."""

    @endpoint
    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


async def on_all(ranks: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run ``function`` on all ranks at the same time. Returns their answers, by rank."""
    answers = await ranks.run.call(function, *args)
    return [answer for _, answer in answers.items()]


def join(meeting: os.PathLike[str], ranks: int) -> int:
    """Join the gloo group of this actor's mesh, which meets in a new file. Returns the process's id."""
    logging.disable(logging.WARNING)  # what gloo cannot do is told on the page
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=current_rank().rank, world_size=ranks)
    return os.getpid()


@asynccontextmanager
async def process_group(name: str, count: int) -> AsyncIterator[Any]:
    """Start ``count`` processes with a ``Rank`` each and a gloo group, for the block."""
    start_monarch()
    torch.set_num_threads(1)  # here and in each process: all share two cores
    procs = this_host().spawn_procs(per_host={"procs": count}, name=name)
    try:
        ranks = procs.spawn(name, Rank)
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
    return grouped_bars(
        collectives,
        ("by formula", "sent"),
        "Bytes by formula and as sent",
        "MB that each rank sends",
        1e6,
    )


ANSWERS: dict[str, Any] = {
    "exchange": lambda parts, rank: parts[rank - 1],
    "add_up": lambda parts, rank: sum(parts),
    "all_gather": lambda parts, rank: torch.cat(parts),
    "reduce_scatter": lambda parts, rank: torch.stack(parts).sum(0).chunk(len(parts))[rank],
}
"""What each collective gives a rank, from what all ranks have put in."""


class _NotYet(BaseException):
    """Stop a rank that waits for what the others have not put in yet."""


def play(program: Any, ranks: int) -> list[Any]:
    """Run ``program(rank, collective)`` as every rank of a group. Returns the results, by rank.

    ``collective(name, tensor)`` is one of ``ANSWERS``. Raises AssertionError where a rank would wait for ever.
    """
    heard: list[list[Any]] = [[] for _ in range(ranks)]
    while True:
        asked: dict[int, Any] = {}
        results = []
        for rank in range(ranks):
            with suppress(_NotYet):
                results.append(program(rank, partial(_answer, iter(heard[rank]), asked, rank)))
        if not asked:
            assert all(result is not None for result in results), (
                "a rank returns `None`: is a `return` missing?"
            )
            return results
        name, _ = asked[min(asked)]
        assert len(asked) == ranks, (
            f"on {ranks} ranks, rank {min(asked)} waits in `{name}` for ever: another one has returned. "
            "All ranks have to call it equally often, those that have nothing to give, too"
        )
        parts = [part for _, part in asked.values()]
        shapes = quote([tuple(part.shape) for part in parts])
        assert len({part.shape for part in parts}) == 1, (
            f"all ranks have to call `{name}` with equal shapes, and call it with {shapes}"
        )
        for rank in range(ranks):
            heard[rank].append(ANSWERS[name](parts, rank).clone())


def _answer(known: Any, asked: Any, rank: int, name: str, part: Any) -> Any:
    for answer in known:
        return answer
    assert isinstance(part, Tensor), f"`{name}` gets {quote(shown(part))}; it takes one tensor"
    asked[rank] = name, part.clone()
    raise _NotYet


def in_a_ring(step: Attempt) -> Attempt:
    """Return a function that runs ``step(mine, rank, ranks, exchange)`` as every rank, on what each holds.

    Returns the results by rank. Raises AssertionError where ``exchange`` is called more than ``ranks - 1`` times.
    """

    def everywhere(held: Any) -> list[Any]:
        ranks = len(held)

        def program(rank: int, collective: Any) -> Any:
            calls = count(1)

            def exchange(tensor: Tensor) -> Any:
                assert next(calls) < ranks, (
                    f"`{step.__name__}` calls `exchange` more often than `ranks - 1` times, here with `ranks` = {ranks}"
                )
                return collective("exchange", tensor)

            return step(copy.deepcopy(held[rank]), rank, ranks, exchange)

        return play(program, ranks)

    everywhere.__name__ = step.__name__
    return everywhere


def draw_ring(draw: random.Random) -> list[list[Tensor]]:
    """Draw for each rank of a ring its summand of each share."""
    ranks = draw.randint(1, 5)
    return [[torch.tensor(draw.randint(1, 9)) for _ in range(ranks)] for _ in range(ranks)]


def placed(share: Callable[[int, int], int]) -> Attempt:
    """Return a wrong gather, in which share ``share(rank, place)`` is at ``place`` on ``rank``."""

    def gather(held: Any) -> Any:
        ranks = range(len(held))
        return [[held[share(rank, place) % len(held)] for place in ranks] for rank in ranks]

    return gather


GATHER_MISTAKES = {
    "the list is in the order of arrival: place i is for the share of rank i": placed(
        lambda rank, place: rank - place
    ),
    "it sends its own share again and again: pass on what has just arrived": placed(
        lambda rank, place: rank - (place != rank)
    ),
    "in step k the share comes from k ranks *back*, so its place is `(rank - k) % ranks`": placed(
        lambda rank, place: 2 * rank - place
    ),
}
"""Wrong results for all ranks, by what has been misunderstood. ``in_a_ring`` names those who call too often, or too rarely."""

THREE_RANKS = [[torch.tensor(rank * 10**share) for share in range(3)] for rank in (1, 2, 3)]
"""Summands whose digits tell of which share they are: the sums are 6, 60 and 600."""


def wrong_sums(sums: Any) -> str:
    """Return what has been misunderstood if ``THREE_RANKS`` make these ``sums``."""
    digits = {shown(number).strip("0.") for number in sums}
    if max(map(len, digits)) > 1:
        return "you add summands of different shares, because another share arrives in that step"
    if digits == {"6"}:
        return "a finished share ends at another rank, because you send the wrong one first"
    return "a share is not the sum of all ranks' summands"


def whole_layers(
    x: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    down_bias: Any,
    *ranks: int,
    activation: Attempt = torch.relu,
    kept: int | None = None,
) -> Any:
    """Return the output of both layers, computed in one place; of the hidden numbers only the first ``kept``."""
    hidden = activation(x @ up.T + up_bias)
    return hidden[:, :kept] @ down[:, :kept].T + down_bias


def on_ranks(layers: Attempt) -> Attempt:
    """Return a function that runs ``layers`` as every rank.

    Each rank calls ``add_up`` once, with its summand of the output, and uses no more than its part
    of the hidden numbers. Raises AssertionError where one does not.
    """

    def everywhere(
        x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, ranks: int
    ) -> Any:
        called = f"`{layers.__name__}` on {ranks} ranks, with x of shape {tuple(x.shape)} and up of {tuple(up.shape)},"
        share = math.ceil(len(up) / ranks)

        def program(rank: int, collective: Any) -> Any:
            calls = []

            def add_up(part: Tensor) -> Any:
                calls.append(part)
                shape = (len(x), len(down))
                assert tuple(part.shape) == shape, (
                    f"{called} adds up a tensor of shape {tuple(part.shape)}: the output has {shape}"
                )
                if part.requires_grad:
                    used, bias = torch.autograd.grad(
                        part.sum(), (down, down_bias), allow_unused=True, retain_graph=True
                    )
                    assert bias is None, (
                        "`down_bias` stands inside the sum. Add it behind the sum, once on every rank: else its gradient is not whole there"
                    )
                    hidden = 0 if used is None else int(used.any(0).sum())
                    assert hidden <= share, (
                        f"{called} uses {hidden} of the {len(up)} hidden numbers on rank {rank}: its part has {share}"
                    )
                return collective("add_up", part)

            output = layers(x, up, up_bias, down, down_bias, rank, ranks, add_up)
            assert len(calls) == 1, (
                f"{called} calls `add_up` {len(calls)} times on rank {rank}, and should call it once"
            )
            return output

        outputs = play(program, ranks)
        assert all(torch.allclose(outputs[0], other) for other in outputs), (
            f"{called} differs from rank to rank"
        )
        return outputs[-1]

    everywhere.__name__ = layers.__name__
    return everywhere


def draw_layers(draw: random.Random) -> tuple[Any, ...]:
    """Draw x, two layers with biases, and ranks that need not divide their width."""
    torch.manual_seed(draw.randrange(10**6))
    rows, narrow, ranks = (draw.randint(1, 3) for _ in range(3))
    wide = draw.randint(2, 7)
    sizes = ((rows, narrow), (wide, narrow), (wide,), (narrow, wide), (narrow,))
    return *(torch.randn(size).mul(2).round().requires_grad_() for size in sizes), ranks


def back_on_ranks(way_back: Attempt) -> Attempt:
    """Return a function that runs ``way_back`` as every rank. Returns the gradients that they pass on.

    Raises AssertionError where a rank sends what all ranks have.
    """

    def everywhere(place: str, gradients: Any) -> list[Any]:
        def program(rank: int, collective: Any) -> Any:
            def add_up(part: Tensor) -> Any:
                assert place == "x", (
                    'all ranks compute the *same* loss: at "sum" each has dL/dy already, and `add_up` is not needed'
                )
                return collective("add_up", part)

            return way_back(place, gradients[rank].clone(), add_up)

        return play(program, len(gradients))

    everywhere.__name__ = way_back.__name__
    return everywhere


def draw_way_back(draw: random.Random) -> tuple[str, list[Tensor]]:
    """Draw a place and the gradient of each rank there: behind a sum all have the same."""
    ranks = draw.randint(1, 4)
    if draw.random() < 0.5:
        return "sum", [torch.ones(1)] * ranks
    return "x", [torch.tensor([rank + 1.0]) for rank in range(ranks)]


def as_ranks(step: Attempt) -> Attempt:
    """Return a function that takes an FSDP ``step`` as every rank of a group. Returns the new shares, by rank.

    The gradient of a rank's loss is its slope times (weights - the first weight). So it is 0 at the
    first place, and weights are not. Raises AssertionError where weights are scattered, or nothing.
    """

    def everywhere(shares: Any, slopes: Any, rate: float) -> list[Any]:
        def program(rank: int, collective: Any) -> Any:
            scattered = []

            def reduce_scatter(gradient: Tensor) -> Any:
                scattered.append(gradient)
                assert gradient[0] == 0, (
                    "`reduce_scatter` gets the gradient, and you give it weights: then every rank has to update all of them"
                )
                return collective("reduce_scatter", gradient)

            def gradient_of(weights: Tensor) -> Tensor:
                assert len(weights) == sum(map(len, shares)), (
                    "`gradient_of` wants all weights, and you give it this rank's share: call `all_gather` first"
                )
                return slopes[rank] * (weights - weights[0])

            result = step(
                shares[rank].clone(),
                gradient_of,
                partial(collective, "all_gather"),
                reduce_scatter,
                len(shares),
                rate,
            )
            assert scattered, (
                "each rank uses its own gradient only: `reduce_scatter` adds up those of all ranks"
            )
            return result

        return play(program, len(shares))

    everywhere.__name__ = step.__name__
    return everywhere


def draw_step(draw: random.Random) -> tuple[Any, ...]:
    """Draw the share and the slope of each rank, and a rate."""
    slopes = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
    length = draw.randint(1, 3)
    shares = [torch.tensor([float(draw.randint(1, 9)) for _ in range(length)]) for _ in slopes]
    # No rate that ends at 0, where the rounding of another order would be all that is left.
    return shares, slopes, draw.choice([0.07, 0.13])
