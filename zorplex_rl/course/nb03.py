"""Serve notebook 03: the curve that is learned, and cases for its checks."""

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from zorplex_rl.course.lesson.checks import case
from zorplex_rl.course.lesson.compare import difference, same

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


def curve(share: int, shares: int) -> tuple[Tensor, Tensor]:
    """Return part ``share`` of ``shares`` of the curve: x and y, each [64, 1]."""
    x = torch.linspace(2 * share / shares - 1, 2 * (share + 1) / shares - 1, 64)[:, None]
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


def whole_curve(shares: int) -> list[list[float]]:
    """Return x and y of all shares, one after the other."""
    xs, ys = zip(*(curve(share, shares) for share in range(shares)), strict=True)
    return [torch.cat(xs).flatten().tolist(), torch.cat(ys).flatten().tolist()]


def predictions(weights: Tensor, shares: int) -> list[float]:
    """Return what a model with ``weights`` says at every x of the whole curve."""
    with torch.no_grad():
        return network(weights)(torch.tensor(whole_curve(shares)[0])[:, None])[:, 0].tolist()


def situation(**given: Any) -> dict[str, Any]:
    """Return the arguments of ``decide`` by name: an idle worker, but for what is given."""
    limits = SimpleNamespace(silent=2.5, busy=4, restarts=2, window=20)
    idle = {
        "gone": False,
        "silent_for": 0,
        "busy_for": 0,
        "limits": limits,
        "failed_at": [],
        "now": 50,
    }
    return idle | given


RULES = {
    "an idle worker waits": situation(),
    "a call within its limit is busy, and waits": situation(busy_for=3),
    "a worker that has missed a probe is slow, and waits": situation(silent_for=1),
    "who is gone is dead, however short the silence": situation(gone=True),
    "a silence above `limits.silent` is death, too": situation(silent_for=3),
    "a call that takes too long is stuck, even if its probe answers": situation(busy_for=6),
    "slow comes before busy": situation(silent_for=1, busy_for=3),
    "dead comes before stuck": situation(gone=True, busy_for=6),
    "a silence of exactly `limits.silent` is still allowed": situation(silent_for=2.5),
    "a call of exactly `limits.busy` is still allowed": situation(busy_for=4),
    "only dead and stuck workers are given up": situation(failed_at=[40, 45]),
    "`failed_at` holds the earlier failures, and the present one does not count": situation(
        gone=True, failed_at=[45]
    ),
    "`limits.restarts` earlier failures are enough to give up": situation(
        gone=True, failed_at=[40, 45]
    ),
    "only failures of the last `limits.window` seconds count": situation(
        gone=True, failed_at=[10, 20]
    ),
    "a failure that is exactly `limits.window` seconds old counts, too": situation(
        gone=True, failed_at=[30, 45]
    ),
}
"""The smallest situation for each rule of ``decide``. A rule stands behind those that it builds on."""


def compare_decisions(
    attempt: Callable[..., Any],
    solution: Callable[..., Any],
    given: dict[str, Any],
    rule: str = "",
) -> None:
    """Compare two ``decide``. Raises AssertionError with ``rule`` and the call, its arguments named."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    called = case(f"`decide({arguments})`")
    right = solution(*given.values())
    found = attempt(*copy.deepcopy([*given.values()]))
    assert same(found, right), rule + difference(called, found, right)


def draw_situation(draw: random.Random) -> dict[str, Any]:
    """Draw the arguments of ``decide``: whole seconds, so that each limit is often met exactly."""
    limits = SimpleNamespace(
        silent=draw.randint(1, 4),
        busy=draw.randint(2, 9),
        restarts=draw.randint(1, 3),
        window=draw.randint(5, 30),
    )
    return situation(
        gone=draw.random() < 0.3,
        silent_for=draw.randint(0, 5),
        busy_for=draw.randint(0, 10),
        limits=limits,
        failed_at=sorted(draw.sample(range(10, 50), draw.randint(0, 4))),
        now=draw.randint(50, 60),
    )


def draw_changes(draw: random.Random) -> tuple[Tensor, list[Change]]:
    """Draw the arguments of ``merge``: weights, and up to four changes with their examples."""
    size = draw.randint(1, 4)

    def tensor() -> Tensor:
        return torch.tensor([float(draw.randint(-9, 9)) for _ in range(size)])

    return tensor(), [(tensor(), draw.randint(1, 60)) for _ in range(draw.randint(0, 4))]
