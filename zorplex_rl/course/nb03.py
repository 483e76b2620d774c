"""Serve notebook 03: the curve that is learned, supervisors with a spare, draws for its checks."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Change = tuple[Tensor, int]
"""How weights have changed, and the examples behind it."""


def network(weights: Tensor | None = None) -> nn.Module:
    """Build the network that learns the curve, with ``weights`` or the first ones."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)
    )
    if weights is not None:
        vector_to_parameters(weights.clone(), model.parameters())
    return model


def first_weights() -> Tensor:
    """Return the weights with which training begins, as one vector."""
    return parameters_to_vector(network().parameters()).detach()


def curve(share: int, shares: int, points: int = 64) -> tuple[Tensor, Tensor]:
    """Return part ``share`` of ``shares`` of the curve: x and y, each [points, 1]."""
    x = torch.linspace(2 * share / shares - 1, 2 * (share + 1) / shares - 1, points)[:, None]
    return x, torch.sin(6 * x) + 0.5 * x


def local_steps(x: Tensor, y: Tensor, weights: Tensor, steps: int, rate: float) -> Change:
    """Train from ``weights`` on some data. Returns how they changed, and by how many examples."""
    model = network(weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - weights, len(x)


def losses_of(weights: Tensor, shares: int) -> list[float]:
    """Return the mean squared error on every share of the curve."""
    model = network(weights)
    with torch.no_grad():
        parts = (curve(share, shares) for share in range(shares))
        return [nn.functional.mse_loss(model(x), y).item() for x, y in parts]


def whole_curve(shares: int) -> tuple[list[float], list[float]]:
    """Return x and y of all shares, one after the other."""
    parts = [curve(share, shares) for share in range(shares)]
    return torch.cat([x for x, _ in parts])[:, 0].tolist(), torch.cat([y for _, y in parts])[
        :, 0
    ].tolist()


def predictions(weights: Tensor, shares: int) -> list[float]:
    """Return what a model with ``weights`` says at every x of the whole curve."""
    with torch.no_grad():
        return network(weights)(torch.tensor(whole_curve(shares)[0])[:, None])[:, 0].tolist()


@asynccontextmanager
async def guarded(
    start: Callable[[int], Awaitable[Any]],
    end: Callable[[Any], Awaitable[None]],
    supervisor: Callable[[Callable[[], Awaitable[Any]]], Any],
    learners: int,
) -> AsyncIterator[list[Any]]:
    """Give each learner a supervisor, and the last a spare; all end with the block."""
    shares = [*range(learners), learners - 1]
    started = await asyncio.gather(*map(start, shares), return_exceptions=True)
    waiting = [
        (share, one)
        for share, one in zip(shares, started, strict=True)
        if not isinstance(one, BaseException)
    ]

    async def begin(share: int) -> Any:
        for number, (found, _) in enumerate(waiting):
            if found == share:
                return waiting.pop(number)[1]
        return await start(share)

    guards: list[Any] = []
    try:
        for share in range(learners):
            guards.append(await supervisor(functools.partial(begin, share)).__aenter__())
        yield guards
    finally:
        await asyncio.gather(
            *(guard.__aexit__() for guard in guards), *(end(one) for _, one in waiting)
        )


async def until_replaced(guard: Any, patience: float = 30.0) -> None:
    """Wait until a supervisor has replaced its worker. Raises TimeoutError."""
    async with asyncio.timeout(patience):
        while not (guard.failed_at and guard.worker):
            await asyncio.sleep(0.1)


def draw_situation(
    draw: random.Random,
) -> tuple[bool, float, float, SimpleNamespace, list[float], float]:
    """Draw the arguments of ``decide``: whole seconds, so that each limit is often met exactly."""
    limits = SimpleNamespace(
        silent=draw.randint(1, 4),
        busy=draw.randint(2, 9),
        restarts=draw.randint(1, 3),
        window=draw.randint(5, 30),
    )
    silent = draw.choice((0, 0, 0.5, limits.silent, limits.silent + draw.choice((0.5, 3))))
    busy = draw.choice((0, 0, 0.5, limits.busy, limits.busy + draw.choice((0.5, 9))))
    now = draw.randint(50, 99)
    ages = sorted(
        (draw.choice((1, limits.window, limits.window + 1, draw.randint(0, 45))) for _ in range(4)),
        reverse=True,
    )
    return (
        draw.random() < 0.3,
        silent,
        busy,
        limits,
        [now - age for age in ages[: draw.randint(0, 4)]],
        now,
    )


def draw_changes(draw: random.Random) -> tuple[Tensor, list[Change]]:
    """Draw the arguments of ``merge``: weights, and up to four changes with their examples."""
    size = draw.randint(1, 4)

    def tensor() -> Tensor:
        return torch.tensor([float(draw.randint(-9, 9)) for _ in range(size)])

    return tensor(), [(tensor(), draw.randint(1, 60)) for _ in range(draw.randint(0, 4))]
