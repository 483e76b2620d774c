"""Run what notebook 09 shows: draws for its checks, its runs, what the recorded study says.

draw_batch, draw_gaps          arguments for the checks of the exercises
falling                        what the policy of a run writes, step by step
follow, points                 a run ──► a live curve ──► the lines of a figure
other_engine                   plant a fault: some recorded log-probs are wrong
push, pushes                   a loss ──► what it does with a token, by its ratio
accuracy_by_lag                a recorded study ──► what lag costs
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zorplex_rl.course.nb05b import Card, example, varied
from zorplex_rl.course.recorded_study import Study
from zorplex_rl.course.staleness import EVALUATION_SEED, Conditions, held_out_accuracy
from zorplex_rl.course.widgets import LiveCurve
from zorplex_rl.learning.batches import MicroBatch
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.task.environment import Zorplex, kinds_of

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
NAMES = {"reinforce": "plain", "tis": "truncated", "grpo": "clipped", "decoupled_ppo": "decoupled"}
"""What the page calls the losses of the recorded study."""


def draw_batch(draw: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Draw the arguments of a loss: ratios inside and outside all bounds, for both signs."""
    rows, columns = draw.randint(2, 4), draw.randint(3, 6)

    def table(low: float, high: float) -> Tensor:
        return torch.tensor(
            [[draw.uniform(low, high) for _ in range(columns)] for _ in range(rows)]
        )

    behaviour = table(-3.0, -0.5)
    apart = torch.tensor([[draw.choice(_APART) for _ in range(columns)] for _ in range(rows)])
    mask = torch.tensor([[float(draw.random() < 0.7) for _ in range(columns)] for _ in range(rows)])
    mask[0, 0] = 1.0
    advantage = torch.tensor([draw.choice((-1, 1)) * draw.uniform(0.3, 2.0) for _ in range(rows)])
    tokens = mask.sum().item() + draw.randint(1, 9)
    return (behaviour + apart).requires_grad_(), behaviour, advantage, mask, tokens


# Logarithms of ratios: on both sides of every bound, of 0.5, 0.8, 1.2 and 2, and of what is taken
# for one (1 / 1.2, 1.25).
_APART = tuple(
    math.log(ratio)
    for ratio in (0.1, 0.45, 0.55, 0.78, 0.82, 0.95, 1.0, 1.1, 1.18, 1.22, 1.3, 1.9, 2.1, 6.0)
)


def draw_gaps(draw: random.Random) -> tuple[list[float], list[float]]:
    """Draw log π − log μ of a fresh and an old batch, with no, few or many far ratios."""

    def batch() -> list[float]:
        count, outside = 100 * draw.randint(1, 3), draw.choice((0, 0, 1, 3, 4, 7, 30))
        far = [draw.choice((-1, 1)) * draw.uniform(0.3, 3.0) for _ in range(outside)]
        near = [
            draw.choice((-0.21, 0.17, draw.uniform(-0.15, 0.15))) for _ in range(count - outside)
        ]
        return draw.sample(far + near, count)

    return batch(), batch()


def falling(policy: Policy, environment: Zorplex, conditions: Conditions, steps: int) -> Card:
    """Return a card of four held-out tasks, at step 0."""
    tasks = environment.tasks(kinds_of(conditions.task, conditions.difficulty), 24, "held_out")
    sampling = Sampling(max_tokens=conditions.max_tokens)
    shown = varied(
        [example(policy, sampling), *play(policy, environment, tasks, EVALUATION_SEED, sampling)], 4
    )
    return Card(
        "What the policy writes while it trains on old data",
        policy,
        steps,
        sampling,
        shown,
        lines=5,
    )


def follow(
    curve: LiveCurve, name: str, environment: Zorplex, conditions: Conditions, config: Any
) -> Callable[[int, Policy, Any], None]:
    """Return what is called before each step: it adds a point to the line ``name``."""
    few = replace(conditions, held_out_tasks=config.eval_tasks)

    def watch(step: int, policy: Policy, batches: Any) -> None:
        if step % config.eval_every == 0:
            curve.add(name, step, held_out_accuracy(policy, environment, few))

    return watch


def points(*curves: LiveCurve) -> dict[str, list[tuple[int, float]]]:
    """Return the lines of the curves, by name."""
    return {
        name: [(step, value) for step, value in line]
        for curve in curves
        for name, line in curve.series
    }


def recorded(
    study: Study, wanted: dict[str, tuple[str, int, float]]
) -> dict[str, list[list[tuple[int, float]]]]:
    """Return the recorded lines of each wanted cell (loss, lag, rate), one a seed."""
    cells = {(cell.loss, cell.lag, cell.learning_rate): cell for cell in study.cells()}
    return {
        name: [list(zip(row.eval_steps, row.accuracies, strict=True)) for row in cells[key].rows]
        for name, key in wanted.items()
    }


def other_engine(batch: MicroBatch, step: int, share: float, spread: float) -> None:
    """Plant a fault: noise on the recorded log-probs of a ``share`` of the tokens."""
    draw = torch.Generator().manual_seed(step)
    shape = batch.behaviour_logp.shape
    hit = torch.rand(shape, generator=draw) < share
    batch.behaviour_logp.add_(hit * spread * torch.randn(shape, generator=draw))


def push(loss: Loss, ratio: float, advantage: float) -> float:
    """Return by what ``loss`` multiplies ∇ log π of a token with this ratio."""
    logp = torch.tensor([[math.log(ratio)]], requires_grad=True)
    value = loss(logp, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1), 1.0)
    if not value.requires_grad:
        return 0.0
    value.backward()
    return 0.0 if logp.grad is None else -logp.grad.item() / advantage


def pushes(
    losses: dict[str, Loss], ratios: Sequence[float]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return ``push`` over ``ratios`` for each loss: of a good token and of a bad one."""
    return {
        name: ([push(loss, r, 1.0) for r in ratios], [push(loss, r, -1.0) for r in ratios])
        for name, loss in losses.items()
    }


def accuracy_by_lag(study: Study) -> str:
    """Return the mean accuracy of plain and clipped at each lag, to end a sentence."""
    found = {(cell.loss, cell.lag): cell.accuracy for cell in study.cells(study.whole_seeds)}
    lags = sorted({lag for _, lag in found})
    told = [
        ", ".join(f"{found[loss, lag]:.0%}" for lag in lags) + f" with {NAMES[loss]}"
        for loss in ("reinforce", "grpo")
    ]
    return f"{', '.join(map(str, lags))} it was {'; '.join(told)}"
