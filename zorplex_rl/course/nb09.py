"""Run what notebooks 09 and 11 show: training on old data with a loss of one's own, and the recorded studies.

A loss of these pages is called with log π, log π₀, log μ, advantage, mask, tokens, and returns one number.

packaged                       a loss of the package in this form
train_on_old_data, curve_of    a loss ──► a trained policy; a line of a live curve, where it ends, what it writes
log_ratios                     how far a policy is from the one that sampled
other_engine                   plant a fault: some recorded log-probs are wrong
push, pushes                   what a loss does with one token ──► a figure
check_loss, variant            the check of an exercise; a loss with a usual mistake
uncertain, compared            a share with its ±; whether two of them differ clearly
by_lag, at_each_lag            a recorded study ──► a table, what each lag costs
seconds_at                     what each lag saves
answer, usual, answers         what policies write for the first question of all cards
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from zorplex_rl.course.figures.tokens import Written, written, written_card
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.lesson import figure
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.recorded_study import Study
from zorplex_rl.course.staleness import (
    Conditions,
    advantages_of,
    held_out_accuracy,
    sample_batch,
    weights_of,
)
from zorplex_rl.course.sync_and_async import compare as simulate
from zorplex_rl.course.widgets import LiveCurve
from zorplex_rl.course.widgets.timeline_simulator import START
from zorplex_rl.learning.batches import MicroBatch, collate
from zorplex_rl.learning.learner import schedule, token_logprobs
from zorplex_rl.learning.losses import LOSSES, LossInputs, policy_loss
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.rewards import accuracy

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
NAMES = {
    "reinforce": "plain",
    "tis": "truncated",
    "grpo": "clipped",
    "decoupled_ppo": "corrected",
    "icepop": "masked",
    "dppo": "masked by difference",
}
"""What the pages call the losses of the package."""
DRAWS = 40
"""How often ``answer`` asks: a single text would be luck."""


def packaged(name: str) -> Loss:
    """Return the package's loss ``name`` in the form of these pages."""

    def loss(
        logp: Tensor,
        start_logp: Tensor,
        behaviour_logp: Tensor,
        advantage: Tensor,
        mask: Tensor,
        tokens: float,
    ) -> Tensor:
        given = LossInputs(logp, behaviour_logp, advantage, mask, tokens, start_logp)
        return policy_loss(LOSSES[name], given)[0]

    return loss


def train_on_old_data(
    loss: Loss,
    lag: int,
    conditions: Conditions,
    seed: int,
    steps: int,
    watch: Callable[[int, Policy, list[MicroBatch]], None],
    disturb: Callable[[MicroBatch, int], None] | None = None,
) -> Policy:
    """Train on data that are up to ``lag`` versions old. Returns the policy.

    ``watch`` is called before each step with its number, the policy and the batch; ``disturb`` may
    spoil the batch before.
    """
    policy = load_policy(conditions.policy)
    sampler = load_policy(conditions.policy)
    environment = Zorplex(seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    versions = deque([weights_of(policy)], maxlen=lag + 1)
    for step in range(steps):
        sampler.model.load_state_dict(versions[0])  # the oldest one that is kept
        episodes = sample_batch(sampler, environment, step, seed, conditions)
        advantages = advantages_of(episodes, conditions.samples)
        batches = collate(episodes, advantages, token_budget=8192)
        tokens = sum(batch.mask.sum().item() for batch in batches)
        if disturb is not None:
            for batch in batches:
                disturb(batch, step)
        watch(step, policy, batches)
        share = schedule(step, conditions.warmup_steps, conditions.steps)
        optimizer.param_groups[0]["lr"] = conditions.learning_rate * share
        starts: dict[int, Tensor] = {}  # log π₀ of each batch, from the first update
        for _ in range(conditions.updates_per_batch):
            for number, b in enumerate(batches):
                logp, _ = token_logprobs(policy, b)
                start = starts.setdefault(number, logp.detach())
                loss(logp, start, b.behaviour_logp, b.advantage, b.mask, tokens).backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        versions.append(weights_of(policy))
    return policy


def curve_of(
    name: str,
    loss: Loss,
    lag: int,
    curve: LiveCurve,
    conditions: Conditions,
    config: Any,
    one_more: Callable[[], None],
    also: Callable[[int, Policy, Any], None] = lambda *_: None,
    disturb: Callable[[MicroBatch, int], None] | None = None,
) -> tuple[float, Written]:
    """Train with ``loss`` and draw the line ``name``. Returns the accuracy at the end, on all held-out tasks, and
    what the policy then writes.

    The points before it have ``config.curve_tasks``. ``one_more`` is called after each step, ``also`` before each
    one and at the end.
    """
    environment = Zorplex(config.seed)
    few = replace(conditions, held_out_tasks=config.curve_tasks)

    def watch(step: int, policy: Policy, batches: Any) -> None:
        also(step, policy, batches)
        if step:
            one_more()
        if step % config.eval_every == 0:
            curve.add(name, step, held_out_accuracy(policy, environment, few))

    policy = train_on_old_data(loss, lag, conditions, config.seed, config.steps, watch, disturb)
    also(config.steps, policy, None)
    one_more()
    end = held_out_accuracy(policy, environment, conditions)
    curve.add(name, config.steps, end)
    return end, answer(policy)


def answer(policy: Policy) -> Written:
    """Ask ``policy`` the question that stands first in the cards of all pages. Returns what ``usual`` does."""
    return usual(policy, play(policy, Zorplex(), first_question(), 0, Sampling(max_tokens=96)))


def first_question(shots: int = 0) -> list[Task]:
    """Return the task that stands first in the cards of all pages, ``DRAWS`` times."""
    return Zorplex(shots=shots).tasks(("compositional",), 1, "held_out") * DRAWS


def usual(policy: Policy, episodes: Sequence[Episode]) -> Written:
    """Return the commonest of the texts to one question, and at the question how many were right."""
    texts = [episode.token_ids for episode in episodes]
    shown = max(episodes, key=lambda episode: texts.count(episode.token_ids))
    right = round(len(episodes) * accuracy(episodes))
    question = f"{shown.task.question} Right {right} times of {len(episodes)}, most often so:"
    return written(policy, shown) | {"question": question}


def answers(texts: Mapping[str, Written], caption: str) -> Any:
    """Return the texts as a figure, each under the name of its policy."""
    named = [text | {"question": f"{name}: {text['question']}"} for name, text in texts.items()]
    return figure(written_card(named), caption)


@torch.no_grad()
def log_ratios(policy: Policy, batches: Sequence[MicroBatch]) -> list[Tensor]:
    """Return log π − log μ of the sampled tokens, one tensor for each episode."""
    found = []
    for batch in batches:
        logp, _ = token_logprobs(policy, batch)
        rows = zip(logp - batch.behaviour_logp, batch.mask, strict=True)
        found += [row[mask.bool()] for row, mask in rows]
    return found


def other_engine(batch: MicroBatch, step: int, share: float, spread: float) -> None:
    """Plant a fault: noise on the recorded log-probs of a ``share`` of the tokens."""
    draw = torch.Generator().manual_seed(step)
    shape = batch.behaviour_logp.shape
    hit = torch.rand(shape, generator=draw) < share
    batch.behaviour_logp.add_(hit * spread * torch.randn(shape, generator=draw))


def push(loss: Loss, advantage: float, moved: float, stale: float = 1.0) -> float | None:
    """Return by what ``loss`` multiplies A ∇ log π of one token with π/π₀ = ``moved`` and π₀/μ = ``stale``;
    None if no gradient comes back."""
    behaviour = torch.tensor([[-3.0]])
    start = behaviour + math.log(stale)
    logp = (start + math.log(moved)).requires_grad_()
    value = loss(logp, start, behaviour, torch.tensor([advantage]), torch.ones(1, 1), 1.0)
    if not getattr(value, "requires_grad", False):
        return None
    value.sum().backward()
    return 0.0 if logp.grad is None else -logp.grad.item() / advantage


def pushes(
    losses: Mapping[str, Loss], ratios: Sequence[float]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return ``push`` over the ratio π/μ for each loss, of a good token and of a bad one, in the first update
    of a step: there π is π₀."""

    found = {}
    for name, loss in losses.items():
        good, bad = ([push(loss, way, 1.0, r) or 0.0 for r in ratios] for way in (1.0, -1.0))
        found[name] = good, bad
    return found


MOVED = (1.0, 0.3, 1.5, 0.7, 0.9, 1.1, 3.0, 6.0)
STALE = (1.0, 3.0, 0.45, 6.0)
"""The ratios π/π₀ and π₀/μ at which ``check_loss`` looks: on both sides of every bound."""
SMALL_BATCH = "two episodes of two tokens (π₀ = μ, π/μ = 1.1 for the first token, else 1; A = 1 and −2, the last token not sampled, `tokens` = 5)"


def check_loss(attempt: Loss, right: Loss, mistakes: Mapping[str, Loss]) -> None:
    """Compare two losses by what they do with one token, then with a batch. Only the gradient counts.

    ``mistakes`` holds wrong losses, each under the sentence that says what one has misunderstood.
    Raises AssertionError with a sentence for the learner.
    """
    name = quote(attempt.__name__)
    loss: Any = right
    known = dict(mistakes) | {"the sign is the other one": lambda *given: -loss(*given)}
    cases = list(product((1.0, -1.0), STALE, MOVED))

    def told(judged: Loss) -> list[float | None]:
        found = [push(judged, advantage, moved, stale) for advantage, stale, moved in cases]
        return [None if value is None else round(value, 4) + 0.0 for value in found]  # no -0.0

    exercise.case(f"{name} of one token")
    found, expected = told(attempt), told(right)
    for (advantage, stale, moved), ours, theirs in zip(cases, expected, found, strict=True):
        if ours == theirs:
            continue
        assert theirs is not None, (
            f"no gradient flows back from {name} to `logp`: it is detached, or not used, or a loss that you call, as `clipped`, returns nothing yet"
        )
        cause = _cause(known, told, found)
        token = f"One token with A = {advantage:g} and π/μ = {moved * stale:.2g}".replace("-", "−")
        token += f" (π/π₀ = {moved:g}, π₀/μ = {stale:g})" if stale != 1 else ""
        raise AssertionError(
            f"{cause}{token}: {name} multiplies A ∇ log π by {quote(f'{theirs:g}')}; right is {quote(f'{ours:g}')}"
        )
    check_small_batch(
        attempt,
        right,
        {
            "it divides by the sampled tokens of this part, not by `tokens`, those of the whole batch": (
                lambda *given: loss(*given[:5], given[4].sum())
            ),
            "it also counts tokens that were not sampled, where `mask` is 0": (
                lambda *given: loss(*given[:4], torch.ones_like(given[4]), given[5])
            ),
            "it divides by all places, also by those that were not sampled": (
                lambda *given: loss(*given[:5], given[4].numel())
            ),
            "the advantage of an episode must go to all tokens of its row: write `advantage[:, None]`": (
                lambda *given: loss(
                    *(table.T for table in given[:3]), given[3], given[4].T, given[5]
                )
            ),
        },
    )


def check_small_batch(attempt: Loss, right: Loss, mistakes: Mapping[str, Loss]) -> None:
    """Compare two losses by their gradients on two episodes of two tokens, as ``check_loss`` does on one."""
    name = quote(attempt.__name__)

    def told(judged: Loss) -> Any:
        old = torch.full((2, 2), -3.0)
        logp = (old + torch.tensor([[1.1, 1.0], [1.0, 1.0]]).log()).requires_grad_()
        mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        loss = judged(logp, old, old, torch.tensor([1.0, -2.0]), mask, 5.0)
        assert loss.numel() == 1, f"{name} returns a number for each token: add them up to one"
        (gradient,) = torch.autograd.grad(loss, logp)
        return (-gradient).round(decimals=4).tolist()

    exercise.case(f"{name} of {SMALL_BATCH}")
    found, expected = told(attempt), told(right)
    if found == expected:
        return
    raise AssertionError(
        f"{_cause(mistakes, told, found)}With {SMALL_BATCH}, {name} multiplies ∇ log π by {quote(exercise.shown(found))}; "
        f"right is {quote(exercise.shown(expected))}"
    )


def _cause(mistakes: Mapping[str, Loss], told: Callable[[Loss], Any], found: Any) -> str:
    """Return the sentence of the mistake that gives ``found``, or nothing."""
    return next((f"{said}. " for said, wrong in mistakes.items() if told(wrong) == found), "")


def variant(
    loss: Any,
    policies: Sequence[int] = (0, 1, 2),
    weight: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Loss:
    """Return a wrong loss: ``loss`` with other ``policies`` (0 is π, 1 is π₀, 2 is μ) in their places, and with
    a ``weight`` of π, π₀ and μ on each token."""

    def wrong(*given: Any) -> Any:
        mask = given[4] if weight is None else given[4] * weight(*given[:3])
        return loss(*(given[number] for number in policies), given[3], mask, given[5])

    return wrong


def draw_log_ratios(draw: random.Random) -> tuple[list[float]]:
    """Draw the logarithms of some ratios, near and far, on both sides of 0.8 and 1.2."""
    choices = (0.0, -0.21, 0.17, 0.19, -0.3, 0.9, -1.5)
    return ([draw.choice(choices) for _ in range(draw.randint(2, 6))],)


def uncertain(share: float, tasks: int) -> str:
    """Return a share of ``tasks`` with two standard errors.

    >>> uncertain(0.3, 200), uncertain(0.3, 40)
    ('30% ± 6', '30% ± 14')
    """
    return f"{share:.0%} ± {200 * math.sqrt(share * (1 - share) / tasks):.0f}"


def compared(share: float, other: float, tasks: int) -> int:
    """Return 1 if ``share`` is clearly above ``other``, -1 if it is clearly below, 0 if neither: two standard
    errors of the difference, each share being of ``tasks``.

    >>> compared(0.32, 0.30, 40), compared(0.9, 0.3, 200)
    (0, 1)
    """
    error = 2 * math.sqrt((share * (1 - share) + other * (1 - other)) / tasks)
    return (share > other + error) - (share < other - error)


def by_lag(study: Study, rate: float, lags: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each loss of ``NAMES``: its mean accuracy at each of ``lags``, with the lowest and the
    highest of the seeds."""
    return [
        {"loss": name}
        | {
            f"lag {lag}": f"{fmean(found[lag]):.0%} ({min(found[lag]):.0%} to {max(found[lag]):.0%})"
            for lag in lags
        }
        for name, found in at_each_lag(study, rate, NAMES).items()
        if found
    ]


def at_each_lag(
    study: Study, rate: float, losses: Iterable[str]
) -> dict[str, dict[int, list[float]]]:
    """Return the accuracies of the seeds at each lag, by the name of the loss."""
    cells = sorted(study.cells(), key=lambda cell: cell.lag)
    return {
        NAMES[loss]: {
            cell.lag: cell.accuracies
            for cell in cells
            if (cell.loss, cell.learning_rate) == (loss, rate)
        }
        for loss in losses
    }


def seconds_at(lag: int, study: Study) -> float:
    """Return the seconds of as many simulated steps as ``study`` has, of as many groups, at ``max_lag`` ``lag``.

    The machines are those of notebook 05's simulator, and answers take very unequally long."""
    size = {"groups_per_step": study.conditions["prompts"], "steps": study.conditions["steps"]}
    return simulate(replace(START, variation=1.0, max_lag=lag, **size)).asynchronous.seconds
