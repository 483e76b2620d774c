"""Check what a learner writes in notebook 08: two rules, and a trainer's loop.

drawn_moment  drawn_load    arguments of ``may_start`` and ``least_seconds``
check_train                 what a loop trains on, when it publishes, whom it wakes, against the course's loop
"""

import asyncio
import inspect
import pickle
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, pstdev, stdev
from types import SimpleNamespace
from typing import Any

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.markup import quote

Train = Callable[..., Awaitable[None]]
PATIENCE_S = 2.0
"""How long a drawn run of ``check_train`` may take: it has nothing to wait for."""


def drawn_moment(rng: random.Random) -> tuple[int, int, int, int]:
    """Draw arguments of ``may_start`` that occur in a run: version, started, per_step, max_lag."""
    version, max_lag, per_step = rng.randint(0, 12), rng.randint(0, 5), rng.randint(1, 12)
    return (
        version,
        rng.randint(version * per_step, (version + max_lag + 1) * per_step),
        per_step,
        max_lag,
    )


def drawn_load(rng: random.Random) -> tuple[float, float, int]:
    """Draw the arguments of ``least_seconds``, in exact eighths of a second."""
    return rng.randint(2, 40) / 8, rng.randint(1, 40) / 8, rng.randint(0, 5)


@dataclass
class _Journal:
    """What a trainer's loop did: its calls, its batches, what it showed, whom it woke."""

    begun: list[str]
    """What was called; without ``await`` that is all that happens."""
    calls: list[str]
    batches: list[tuple[Any, Any]]
    shown: list[tuple[Any, Any]]
    woken: list[Any]
    """``newest.version`` at each time that the generator woke."""
    newest: Any = None
    """``newest.version`` at the end."""


@dataclass
class _Reply:
    """Call ``function`` when it is awaited, as a message to an actor does."""

    function: Callable[..., Awaitable[Any]]
    given: tuple[Any, ...]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.function(*self.given).__await__()


def check_train(attempt: Train, solution: Train, times: int = 8) -> None:
    """Compare trainer's loops beside a late generator and a waiting one."""
    for seed in range(times):
        rng = random.Random(seed)
        # The smallest run that shows most mistakes comes first: one step of two groups.
        per_step = rng.randint(1, 3) if seed else 2
        steps = rng.randint(1, 3) if seed else 1
        size = rng.randint(2, 3) if seed else 2
        first = rng.randint(0, 9)
        rewards = [
            [rng.choice((0.0, 0.2, 1.0, 1.2, -0.3)) for _ in range(size)]
            for _ in range(per_step * steps)
        ]
        rewards[-1] = [rewards[-1][0]] * size
        given = (rewards, steps, per_step, first)
        right = asyncio.run(_journal(solution, *given))
        called = quote(f"train(trainer, ready, newest, news, {steps}, {per_step}, on_step)")
        called += f", where the rewards of the groups are {quote(exercise.shown(rewards))},"
        exercise.case(called)
        try:
            found = asyncio.run(_journal(attempt, *given))
        except AttributeError as error:
            if error.name != "call_one":
                raise
            raise AssertionError(
                f"{quote('trainer')} hides {quote('call_one')} here: write {quote('await trainer.step(…)')}"
            ) from None
        except TimeoutError:
            raise AssertionError(
                f"{called} is still waiting when there are no more groups, and should be over"
            ) from None
        _compare(called, found, right, rewards[:per_step])


def _compare(
    called: str, found: _Journal, right: _Journal, rewards: Sequence[Sequence[float]]
) -> None:
    """Raise AssertionError with a sentence that says in what ``found`` differs; ``rewards`` are those of the
    first step's groups."""
    flat = list(chain(*rewards))
    spread = pstdev(flat) + 1e-4
    mistakes = {
        "those are the rewards themselves": flat,
        "you compare with the whole batch, not with the group": [
            (reward - fmean(flat)) / spread for reward in flat
        ],
        "that is the sample deviation (`stdev`, or torch's `std`), so take `pstdev`": [
            (reward - fmean(group)) / (stdev(group) + 1e-4) for group in rewards for reward in group
        ],
    }
    for name in ("step", "publish"):
        assert found.begun.count(name) == found.calls.count(name), (
            f"you called {quote(f'trainer.{name}')} without {quote('await')}, so it never ran"
        )
    assert found.calls == right.calls, (
        f"{called} calls {quote(', '.join(found.calls) or 'nothing')}, and should call {quote(', '.join(right.calls))}"
    )
    for number, (ours, theirs) in enumerate(zip(right.batches, found.batches, strict=True)):
        for what, one, other in zip(("episodes", "advantages"), theirs, ours, strict=False):
            known = (said for said, wrong in mistakes.items() if exercise.same(one, wrong, 1e-3))
            assert exercise.same(one, other, 1e-3), (
                f"{next(known, 'look at what the trainer gets')}: {called} gives it the {what} {quote(exercise.shown(one))} in its call {number}, "
                f"and should give the flat list {quote(exercise.shown(other))}"
            )
    assert found.woken, f"{called} never wakes the generator"
    # To wake it once more, for what it has seen already, does no harm.
    woken = [version for version in dict.fromkeys(found.woken) if version in right.woken]
    early = exercise.same(found.newest, right.newest)
    mistake = (
        f"{quote('news.set()')} comes before the new version is in {quote('newest.version')}, so the generator wakes and finds the old one"
        if early
        else f"{quote('newest.version')} must be what {quote('publish')} returned"
    )
    assert exercise.same(woken, right.woken), (
        f"{mistake}. {called} wakes a generator that reads {quote(exercise.shown(found.woken))}, "
        f"and {quote('publish')} returned {quote(exercise.shown(right.woken))}"
    )
    assert exercise.same(found.shown, right.shown), (
        f"{called} calls {quote('on_step')} with {quote(exercise.shown(found.shown))}, and should with {quote(exercise.shown(right.shown))}"
    )


async def _journal(
    train: Train, rewards: Sequence[Sequence[float]], steps: int, per_step: int, first: int
) -> _Journal:
    """Run a trainer's loop alone: groups come one by one, versions go up by 2 from ``first``."""
    ready, news = asyncio.Queue[Any](), asyncio.Event()
    newest = SimpleNamespace(version=first)
    journal = _Journal([], [], [], [], [])

    async def step(episodes: Any, advantages: Any) -> dict[str, float]:
        journal.calls.append("step")
        # A message is a copy, too.
        journal.batches.append(pickle.loads(pickle.dumps((episodes, advantages))))
        await asyncio.sleep(0.001)
        return {"loss": len(journal.calls)}

    async def publish() -> int:
        journal.calls.append("publish")
        await asyncio.sleep(0.001)
        return first + 2 * journal.calls.count("publish")

    async def deliver() -> None:
        for number, group in enumerate(rewards):
            await asyncio.sleep(0)
            ready.put_nowait(
                (list(group), [f"episode_{number}.{place}" for place in range(len(group))])
            )

    async def generate() -> None:
        while await news.wait():
            journal.woken.append(newest.version)
            news.clear()

    others = [asyncio.create_task(deliver()), asyncio.create_task(generate())]

    def begin(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def call(*given: Any) -> Awaitable[Any]:
            journal.begun.append(function.__name__)
            return _Reply(function, given)

        return call

    trainer = SimpleNamespace(step=begin(step), publish=begin(publish))
    try:
        async with asyncio.timeout(PATIENCE_S):
            begun = train(
                trainer,
                ready,
                newest,
                news,
                steps,
                per_step,
                lambda *shown: journal.shown.append(shown),
            )
            assert inspect.isawaitable(begun), f"{quote('train')} must be an {quote('async def')}"
            await begun
        await asyncio.sleep(0)
        journal.newest = newest.version
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return journal
