"""Drive what notebook 08 runs and does not show: settings of a run, the check of a trainer's loop, a planted fault, accounts, a killed generator.

run_config      the page's settings ──► the package's Config
check_train     compare a learner's trainer with the course's: what it trains on, when it publishes, whom it wakes
diagnose        the diagnostics of three training steps, two of them with a fault
account         the spans of a run ──► seconds of its phases, busy shares, lags
simulated       the same phases with other numbers of generators and lag bounds
train_and_kill  a run of the package, in which a generator is killed
books_of  around_the_kill       what became of every group, and the moments around the kill
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from types import SimpleNamespace
from typing import Any

from zorplex_rl.config import Config, LearnerConfig, ServicesConfig
from zorplex_rl.course.figures.runs import lags_of
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.widgets.what_if import Answer
from zorplex_rl.drawing.plots import timeline_chart
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import load_policy
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.runtime import run_together
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.simulation.simulate import simulate_async
from zorplex_rl.task.episode import Episode
from zorplex_rl.timeline import Span, Timeline
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import train_async
from zorplex_rl.training.run_log import RunLog

Train = Callable[..., Awaitable[None]]
PATIENCE_S = 2.0
"""How long a drawn run of ``check_train`` may take: it has nothing to wait for."""


def run_config(config: SimpleNamespace, **changes: Any) -> Config:
    """Return the package's settings of a run, checked. ``changes`` replace the page's settings, and say how many generators and spares."""
    wanted = SimpleNamespace(**{"generators": 1, "spares": 0} | vars(config) | changes)
    made = Config(
        task="compositional",
        policy=wanted.policy,
        hints=wanted.hints,
        max_lag=wanted.max_lag,
        steps=wanted.steps,
        prompts_per_step=wanted.prompts,
        group_size=wanted.samples,
        learner=LearnerConfig(learning_rate=wanted.learning_rate),
        max_tokens=wanted.max_tokens,
        eval_every=wanted.steps,
        eval_tasks=wanted.eval_tasks,
        checkpoint_every=wanted.steps,
        seed=wanted.seed,
        device=wanted.device,
        threads=wanted.threads,
        services=ServicesConfig(generators=wanted.generators, spares=wanted.spares),
    )
    made.check()
    return made


def drawn_moment(rng: random.Random) -> tuple[int, int, int, int, int]:
    """Draw the arguments of ``may_start``: version, step, on_the_way, per_step, max_lag."""
    max_lag, step, per_step = rng.randint(0, 5), rng.randint(0, 12), rng.randint(1, 12)
    version = max(0, step - rng.randint(0, max_lag + 1))
    return version, step, rng.randint(0, (max_lag + 1) * per_step), per_step, max_lag


def drawn_load(rng: random.Random) -> tuple[float, float, int]:
    """Draw the arguments of ``generators_needed``, in eighths of a second, which are exact: generate, train, groups."""
    return rng.randint(1, 24) / 8, rng.randint(1, 24) / 8, rng.randint(1, 40)


@dataclass
class _Journal:
    """What a trainer's loop did: its calls in their order, what it trained on, what it showed, and what it told the generators."""

    calls: list[str]
    batches: list[tuple[list[str], Any, int]]
    shown: list[tuple[Any, Any]]
    woken: list[Any]
    step: int = 0


def check_train(attempt: Train, solution: Train, times: int = 8) -> None:
    """Compare two trainer's loops on drawn runs, beside a generator that is late and one that waits. Raises AssertionError with a sentence."""
    for seed in range(times):
        rng = random.Random(seed)
        per_step, begun, more, size = rng.randint(1, 4), rng.randint(0, 3), rng.randint(1, 4), rng.randint(2, 5)
        first = rng.randint(begun, 9)
        rewards = [[rng.choice((0.0, 0.2, 1.0, 1.2, -0.3)) for _ in range(size)] for _ in range(per_step * more)]
        rewards[-1] = [rewards[-1][0]] * size
        given = (rewards, begun, begun + more, per_step, first)
        right = asyncio.run(_journal(solution, *given))
        called = quote(f"train(trainer, ready, now, news, {begun + more}, {per_step}, on_step)")
        called += f" with {quote(f'now.step == {begun}')} and groups of rewards {quote(exercise._short(rewards))}"
        try:
            found = asyncio.run(_journal(attempt, *given))
        except TimeoutError:
            raise AssertionError(
                f"{called} is still waiting when there are no more groups, and should be over"
            ) from None
        _compare(called, found, right)


def _compare(called: str, found: _Journal, right: _Journal) -> None:
    """Raise AssertionError with a sentence that says in what ``found`` differs."""
    assert found.calls == right.calls, (
        f"{called} calls {quote(', '.join(found.calls) or 'nothing')}, and should call {quote(', '.join(right.calls))}"
    )
    for number, (ours, theirs) in enumerate(zip(right.batches, found.batches, strict=True)):
        assert theirs[0] == ours[0], (
            f"{called} gives the trainer {quote(' '.join(theirs[0]))} in its call {number}, and should give {quote(' '.join(ours[0]))}"
        )
        assert exercise.same(theirs[1], ours[1], 1e-3), (
            f"{called} gives the trainer the advantages {quote(exercise._short(theirs[1]))} in its call {number}, "
            f"and should give {quote(exercise._shown(ours[1]))}"
        )
        assert theirs[2] == ours[2], (
            f"{called} has {quote(f'now.step == {theirs[2]}')} while the trainer takes its step {number}, "
            f"and should have {quote(f'now.step == {ours[2]}')}: the step is begun"
        )
    assert exercise.same(found.woken, right.woken), (
        f"{called} wakes a generator that then reads {quote('now.published')} as {quote(exercise._short(found.woken))}, "
        f"and should wake it for {quote(exercise._short(right.woken))}"
    )
    assert exercise.same(found.shown, right.shown) and found.step == right.step, (
        f"{called} calls {quote('on_step')} with {quote(exercise._short(found.shown))}, and should with {quote(exercise._short(right.shown))}"
    )


async def _journal(
    train: Train, rewards: Sequence[Sequence[float]], begun: int, steps: int, per_step: int, first: int
) -> _Journal:
    """Run a trainer's loop alone. Groups come one by one; versions count from ``first``; a generator waits for news."""
    ready, news = asyncio.Queue[Any](), asyncio.Event()
    now = SimpleNamespace(started=99, step=begun, published=first)
    journal = _Journal([], [], [], [])

    async def step(episodes: Sequence[str], advantages: Any) -> dict[str, float]:
        journal.calls.append("step")
        journal.batches.append((list(episodes), [float(a) for a in advantages], now.step))
        await asyncio.sleep(0.001)
        return {"loss": len(journal.calls)}

    async def publish() -> int:
        journal.calls.append("publish")
        await asyncio.sleep(0.001)
        return first + journal.calls.count("publish")

    async def deliver() -> None:
        for number, group in enumerate(rewards):
            await asyncio.sleep(0)
            ready.put_nowait((list(group), [f"episode_{number}.{place}" for place in range(len(group))]))

    async def generate() -> None:
        while await news.wait():
            journal.woken.append(now.published)
            news.clear()

    others = [asyncio.create_task(deliver()), asyncio.create_task(generate())]
    trainer = SimpleNamespace(step=step, publish=publish)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await train(trainer, ready, now, news, steps, per_step, lambda *shown: journal.shown.append(shown))
        await asyncio.sleep(0)
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    journal.step = now.step
    return journal


def diagnose(config: SimpleNamespace, episodes: Sequence[Episode], advantages: Sequence[float]) -> dict[str, Any]:
    """Return the diagnostics of three training steps on the same episodes, which are marked as fresh, by what is wrong with each."""

    def fresh() -> Learner:
        run = run_config(config).changed(warmup_steps=0)
        return Learner(load_policy(config.policy, config.device), run.learner, decay_steps=run.steps)

    def step(batch: Sequence[Episode], learner: Learner) -> dict[str, float]:
        return learner.step(list(batch), list(advantages)) | {"trained on": sum(sum(e.sampled) for e in batch)}

    learner = fresh()
    sound = step(episodes, learner)
    unmasked = [replace(episode, sampled=[True] * len(episode.sampled)) for episode in episodes]
    return {"a missed pull": step(episodes, learner), "sound": sound, "not masked": step(unmasked, fresh())}


def account(timeline: Timeline, steps: int) -> SimpleNamespace:
    """Return seconds, busy shares and lags of a run, from the spans of its generator and its trainer."""
    trained = sorted((span for span in timeline.spans if span.kind == "train"), key=lambda span: span.end)
    begin = min(span.start for span in timeline.spans if span.kind == "generate")
    window = (begin, trained[-1].end)
    shares, lags = timeline.shares(window), lags_of(timeline)
    sampling = sum(span.end - span.start for span in timeline.spans if span.kind == "generate")
    return SimpleNamespace(
        seconds=window[1] - begin,
        step=median(later.end - sooner.end for sooner, later in pairwise(trained)),
        train=median(span.end - span.start for span in trained),
        generate=sampling / steps,
        trainer=1 - shares["trainer"]["idle"],
        generator=1 - shares["generator_0"]["idle"],
        lag=sum(lag * count for lag, count in lags.items()) / sum(lags.values()),
        oldest=max(lags),
    )


def simulated(found: SimpleNamespace, groups: int, generators: int, max_lag: int) -> Answer:
    """Return what the simulator says of the phases ``found``, with other numbers of ``generators`` and another ``max_lag``."""
    setting = Setting(
        generators=generators,
        groups_per_step=groups,
        steps=8,
        max_lag=max_lag,
        generation_seconds=found.generate / groups,
        variation=0.3,
        training_seconds=found.train,
        sync_seconds=0.02,
    )
    run = simulate_async(setting, setting.latencies())
    lag = sum(age * count for age, count in run.staleness.items()) / sum(run.staleness.values())
    return Answer(
        figure=timeline_chart(run.timeline),
        numbers=[
            ("A step", f"{run.seconds / 8:.2f} s", "mean of eight"),
            ("Trainer busy", f"{run.utilisation()['trainer']:.0%}", "of the time"),
            ("Mean lag", f"{lag:.2f}", "versions"),
        ],
    )


async def train_and_kill(
    run: Config, folder: RunFolder, kill: Callable[[Controller], Coroutine[Any, Any, None]]
) -> tuple[RunLog, dict[str, int]]:
    """Train with the package while ``kill`` has its way with the controller. Returns the run's log and the replay buffer's counters."""
    log = RunLog(folder)
    async with Controller.assemble(run, log) as controller:
        await controller.begin()
        await run_together(train_async(controller), kill(controller))
        await controller.finish()
        books = (await controller.replay.state.route())["counters"]
    return log, books


@contextmanager
def quietly() -> Iterator[list[str]]:
    """Keep what native code writes to file descriptor 2 off the page. Yields a list, which has its lines at the end."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            kept.seek(0)
            lines += [line for line in kept.read().decode(errors="replace").splitlines() if line.strip()]


def books_of(log: RunLog, books: dict[str, int]) -> dict[str, Any]:
    """Return what became of the groups of a run in which a generator was killed, by what each number counts."""
    numbers = [number for span in log.timeline.spans if span.kind == "train" for number, *_ in span.args["groups"]]
    return {
        "processes replaced": sum(row["event"] == "restart" for row in log.folder.metrics()),
        "groups started": books["started"],
        "groups lost with the generator, and generated again": books["abandoned"],
        "groups trained on": books["trained"],
        "groups thrown away as too old": books["stale"],
        "unaccounted for": books["started"] - books["trained"] - books["abandoned"] - books["stale"],
        "numbers found in the trainer's steps": "each once"
        if sorted(numbers) == list(range(books["trained"]))
        else f"{len(set(numbers))} different ones",
    }


def around_the_kill(timeline: Timeline) -> tuple[str, float, float]:
    """Draw the seconds around the kill. Returns the drawing, and the seconds until it was noticed and until it was made good."""
    kill, restart = (next(span for span in timeline.spans if span.kind == kind) for kind in ("kill", "restart"))
    around = timeline.between(kill.start - 1.0, restart.end + 4.0)
    mark = (around.end - around.start) / 150  # a kill takes no time: its mark is widened
    shown: list[Span] = [
        replace(span, end=span.end + mark) if span.kind == "kill" else span
        for span in around.spans
        if span.actor.startswith(("generator", "trainer"))
    ]
    drawn = timeline_chart(Timeline(sorted(shown, key=lambda span: span.actor)))
    return drawn, restart.start - kill.start, restart.end - kill.start
