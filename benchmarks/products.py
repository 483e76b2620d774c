"""Which share of the machine do sampling and the gradient reach? The bound is their matrix products alone.

    a real run ──► each product of two matrices that it computes: shapes and strides ──► these products, on random numbers

Nothing else counts into the bound: no attention, softmax, norms, Python, texts or tools. Weights of
many layers take turns in the products, as in the model, so that no cache holds what it would not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import Learner, add_gradients
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.requests import Sampling, group_requests
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.specs import run_tool

MM, ADDMM, LINEAR = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.linear.default,
)
MATMUL, ONEDNN = torch.ops.aten.matmul.default, torch.ops.mkldnn._linear_pointwise.default
ROTATED_BYTES = 128_000_000
"""Bytes of matrices that take turns, the larger of the two: more than a cache holds."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step: median seconds, those of its products alone, and tokens sampled, or of the
    trees that the model runs on."""

    name: str
    seconds: float
    bound: float
    tokens: int


class Products(TorchDispatchMode):
    """Counts the products of two matrices that are computed inside, by shapes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (MM, ADDMM, LINEAR, ONEDNN) or (
            func is MATMUL and args[0].dim() == args[1].dim() == 2
        ):
            left, right = args[1:3] if func is ADDMM else args[:2]
            if func in (LINEAR, ONEDNN):
                left, right = left.reshape(-1, left.shape[-1]), right.t()
            self.found[
                (left.shape, left.stride(), right.shape, right.stride(), func is ONEDNN)
            ] += 1
        return func(*args, **kwargs or {})

    def seconds(self, like: Tensor) -> float:
        """Return the seconds of all of them, in the type and on the device of ``like``."""
        return sum(count * _seconds_of(*shapes, like) for shapes, count in self.found.items())


def _seconds_of(
    left: Any, of_left: Any, right: Any, of_right: Any, by_onednn: bool, like: Tensor
) -> float:
    def made(shape: Any, strides: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device).normal_()

    turns = min(30, 1 + ROTATED_BYTES // (like.element_size() * max(left.numel(), right.numel())))
    lefts, rights = [made(left, of_left)], [made(right, of_right)]
    if left.numel() > right.numel():
        lefts = [made(left, of_left) for _ in range(turns)]
    else:
        rights = [made(right, of_right) for _ in range(turns)]
    product = (lambda a, b: ONEDNN(a, b.t(), None, "none", [], "")) if by_onednn else torch.matmul
    return (
        timed(lambda: [product(one, other) for one in lefts for other in rights], like.device, 2)[0]
        / turns
    )


def timed(work: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, Any]:
    """Return the median of the seconds of ``work``, once it has run, and what it returned last."""
    seconds = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:]), result


def measure(
    policy: Policy, prompts: int, group_size: int = 8, shots: int = 2, repeats: int = 3
) -> Iterator[Part]:
    """Yield sampling, gradient and step of ``prompts`` × ``group_size`` episodes of ``simple``. The step
    trains ``policy`` in place."""
    model, tasks = (
        policy.model,
        Zorplex(0, ("simple:easy",), shots).tasks(("simple:easy",), prompts),
    )
    requests = group_requests(enumerate(tasks), group_size, 0)
    sampling = Sampling(slots=len(requests))
    learner = Learner(policy, LearnerConfig(learning_rate=1e-6))

    def part(name: str, work: Callable[[], Any], tokens: Callable[[Any], int]) -> tuple[Part, Any]:
        seconds, result = timed(work, model.device, repeats)
        with Products() as products:
            work()
        bound = products.seconds(next(model.parameters()).detach())
        return Part(name, seconds, bound, tokens(result)), result

    found, episodes = part(
        "sampling",
        lambda: rollout(policy, requests, run_tool, sampling),
        lambda all: sum(sum(e.sampled) for e in all),
    )
    yield found
    # Each teaches, whatever it earned.
    advantages = [1.0 if index % 2 else -1.0 for index in range(len(episodes))]

    def gradient() -> int:
        batches = collate(episodes, advantages, learner.config.token_budget, device=model.device)
        add_gradients(learner, batches, found.tokens)
        for master in learner.optimizer.masters:
            master.grad = None
        return sum(batch.tree.ids.numel() for batch in batches)

    yield part("gradient", gradient, int)[0]
    yield part("step", lambda: learner.step(episodes, advantages), lambda _: found.tokens)[0]
