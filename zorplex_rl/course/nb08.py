"""Drive notebook 08: settings of a run, a planted fault, accounts, a killed generator.

run_config      the page's settings ──► the package's Config
run_time        what its parts take on this machine, for the labels of buttons
create          the folder of a run; notebook 11 replays the one that is kept
diagnose        the diagnostics of three training steps, two of them with a fault
account         the spans of a run ──► seconds of its phases, busy shares, lags
side_by_side  rows_of           the runs on one axis, and their accounts by ``max_lag``
foretold_steps  gain  paid      a rule beside what was measured; what lag brought, and what it cost
train_and_kill  a run of the package, in which a generator is killed
books_of  around_the_kill       what became of every group, and the moments around the kill
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from zorplex_rl.config import Config, LearnerConfig, ServicesConfig
from zorplex_rl.course.figures.spans import paired_timelines, timeline_chart
from zorplex_rl.course.nb02 import captured
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import Learner, token_logprobs
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutEngine, Sampling
from zorplex_rl.policy.tool_loop import encode_prompt, group_requests
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.services.runtime import run_together
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.task.episode import Episode
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import train_async
from zorplex_rl.training.run_log import RunLog

KEPT = Path("runs") / "notebook_08"
"""Where the run with the kill stays, in the folder above the notebooks, for notebook 11 to replay."""
ANSWER_SHARE = 0.5
"""A common answer ÷ ``max_tokens``."""
LOST = "groups lost with the generator, and generated again"
SLOWEST = 9
"""The waits of a batch's slowest episode ÷ the mean of a tool's."""
SCRATCH = tempfile.TemporaryDirectory(prefix="zorplex_rl_08_")


def new_path(name: str) -> Path:
    """Return a path that is gone when the notebook is."""
    return Path(tempfile.mkdtemp(dir=SCRATCH.name)) / name


def create(run: Config, beside: str | None = None) -> RunFolder:
    """Create the folder of a run: a temporary one, or ``KEPT`` for the notebook ``beside`` it, where
    it takes the place of the one before."""
    path = Path(beside).resolve().parents[1] / KEPT if beside else new_path("run")
    shutil.rmtree(path, ignore_errors=True)
    return RunFolder.create(path, run)


def run_config(config: SimpleNamespace, **changes: Any) -> Config:
    """Return the checked settings of a run: the page's, with ``changes``."""
    wanted = {"generators": 1, "spares": 0, "tool_latency": 0.0} | vars(config) | changes
    alike = "policy shots max_lag steps max_tokens eval_tasks seed device threads tool_latency".split()
    made = Config(
        task="compositional",
        prompts_per_step=wanted["prompts"],
        group_size=wanted["samples"],
        learner=LearnerConfig(learning_rate=wanted["learning_rate"]),
        eval_every=wanted["steps"],
        checkpoint_every=wanted["steps"],
        services=ServicesConfig(generators=wanted["generators"], spares=wanted["spares"]),
        **{name: wanted[name] for name in alike},
    )
    made.check()
    return made


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds on this machine: a process's imports and load, sampling a batch, a step on it."""

    start: float
    sample: float
    train: float
    cores: int

    def starting(self, processes: int) -> float:
        """Return the seconds until ``processes`` with a model are ready, one per core at a time."""
        return self.start * max(1.0, processes / self.cores)

    def run(self, run: Config) -> float:
        """Return a run's seconds, from the start of its processes to the last evaluation, which
        answers its tasks greedily and by sampling."""
        generators = run.services.generators
        evaluations = 2 + (run.steps - 1) // run.eval_every
        evaluating = self.sample * 2 * run.eval_tasks * evaluations / (run.prompts_per_step * run.group_size)
        sampling = self.sample * run.steps
        training = self.train * run.steps
        loop = sampling / generators + evaluating + training
        if run.max_lag:
            loop = max(sampling / generators + evaluating, training, (sampling + evaluating + training) / self.cores)
        return self.starting(1 + generators + int(run.services.spares)) + loop

    def slow_tools(self, config: SimpleNamespace) -> float:
        """Return the seconds of the page's runs with slow tools, one for each of ``config.lags``."""
        batch = self.sample + SLOWEST * config.tool_seconds
        steps = (max(self.train, self.sample, batch / lag) if lag else batch + self.train for lag in config.lags)
        return self.starting(2) + config.steps * sum(steps)


def run_time(run: Config, policy: Policy, start: float) -> RunTime:
    """Time the first decode steps of a batch, and the gradient of one group. ``start`` is in seconds."""

    def seconds(work: Callable[[], object]) -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began

    def gradient() -> None:
        for batch in collate(group, [1.0] * len(group), run.learner.token_budget):
            logp, _ = token_logprobs(policy, batch)
            logp.sum().backward()

    environment = Zorplex(run.seed, shots=run.shots)
    tasks = environment.tasks(kinds_of(run.task), run.prompts_per_step, "train")
    engine = RolloutEngine(policy, environment.execute, Sampling.of(run))
    engine.submit(group_requests(enumerate(tasks), run.group_size, run.seed))
    rounds = -(-run.prompts_per_step * run.group_size // run.slots)
    prefill, *decode = (seconds(engine.step) for _ in range(6))
    length = max(2, round(ANSWER_SHARE * run.max_tokens))
    prompt = encode_prompt(policy.tokenizer, tasks[0])
    answer = Episode(tasks[0], prompt, [5] * length, [True] * length, [-1.0] * length, [], "tokens", 0, 0)
    group = [answer] * run.group_size
    gradient()
    train = seconds(gradient) * run.prompts_per_step
    policy.model.zero_grad()
    return RunTime(start, prefill + rounds * length * median(decode), train, os.cpu_count() or 1)


def diagnose(config: SimpleNamespace, episodes: Sequence[Episode], advantages: Sequence[float]) -> dict[str, Any]:
    """Return the diagnostics of three steps on fresh episodes, by what is wrong with each."""

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
    """Return seconds, busy shares and lags of a run, from its spans."""
    trained = sorted((span for span in timeline.spans if span.kind == "train"), key=lambda span: span.end)
    begin = min(span.start for span in timeline.spans if span.kind == "generate")
    window = (begin, trained[-1].end)
    shares, lags = timeline.shares(window), lags_of(timeline)
    sampling = sum(span.end - span.start for span in timeline.spans if span.kind == "generate")
    return SimpleNamespace(
        seconds=window[1] - begin,
        ended=[span.end - begin for span in trained],
        between=median(later.start - sooner.end for sooner, later in pairwise(trained)),
        step=median(later.end - sooner.end for sooner, later in pairwise(trained)),
        train=median(span.end - span.start for span in trained),
        generate=sampling / steps,
        trainer=1 - shares["trainer"]["idle"],
        generator=1 - shares["generator_0"]["idle"],
        lag=sum(lag * count for lag, count in lags.items()) / sum(lags.values()),
        oldest=max(lags),
    )


def lags_of(timeline: Timeline) -> dict[int, int]:
    """Count the groups that a real run trained on at each lag (in versions)."""
    lags: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind == "train":
            for _, version, *_ in span.args["groups"]:
                lags[span.args["step"] - version] = lags.get(span.args["step"] - version, 0) + 1
    return dict(sorted(lags.items()))


def side_by_side(runs: Mapping[int, SimpleNamespace], seconds: float) -> str:
    """Draw ``seconds`` of each run on one axis, from the middle of the run and the beginning of a
    step. Early steps are longer than most: hardly an episode of theirs is as good as the others."""
    windows = {}
    for lag, run in runs.items():
        begun = sorted(span.start for span in run.timeline.spans if span.kind == "train")
        middle = (begun[0] + begun[-1] - seconds) / 2
        first = max((start for start in begun if start <= middle), default=begun[0])
        windows[name_of(lag)] = run.timeline.between(first, first + seconds)
    return paired_timelines(windows, seconds, ["generator_0", "trainer"])


def name_of(lag: int) -> str:
    """Return what the page calls a run with ``max_lag`` ``lag``."""
    return f"max_lag {lag}" if lag else "in turns"


def rows_of(accounts: Mapping[int, SimpleNamespace], after: Mapping[int, float], held_out: int) -> list[dict[str, str]]:
    """Return the rows that compare runs, with the share of held-out tasks ``after`` each."""
    fields = {
        "step": ("a step, median", "{:.2f} s"),
        "train": ("training, median of a step", "{:.2f} s"),
        "generate": ("the generator computes, mean of a step", "{:.2f} s"),
        "trainer": ("trainer busy", "{:.0%}"),
        "generator": ("generator busy", "{:.0%}"),
        "lag": ("mean lag of a group, versions", "{:.2f}"),
        "oldest": ("largest lag", "{}"),
    }
    rows = [
        {"": label} | {name_of(lag): how.format(getattr(found, field)) for lag, found in accounts.items()}
        for field, (label, how) in fields.items()
    ]
    last = {"": f"right of {held_out} held-out tasks"} | {name_of(lag): f"{share:.0%}" for lag, share in after.items()}
    return [*rows, last]


def foretold_steps(accounts: Mapping[int, SimpleNamespace]) -> list[dict[str, str]]:
    """Return for each run what a step takes by the rule, from the phases in turns, and as measured."""
    turns = accounts[0]

    def rule(lag: int) -> float:
        return max(turns.train, (turns.between + turns.train) / (lag + 1))

    return [
        {"run": name_of(lag), "by the rule": f"{rule(lag):.2f} s", "measured": f"{found.step:.2f} s"}
        for lag, found in accounts.items()
    ]


def gain(accounts: Mapping[int, SimpleNamespace]) -> str:
    """Say how much faster the run with most lag was than the one in turns."""
    turns, most = accounts[0].step, accounts[max(accounts)].step
    gained = f"{turns / most:.1f} times as fast" if turns > 1.05 * most else "no faster"
    return (
        f"With slow tools, a step took {turns:.2f} s in turns and {most:.2f} s at `max_lag` {max(accounts)}: {gained}."
    )


def paid(accounts: Mapping[int, SimpleNamespace], after: Mapping[int, float]) -> str:
    """Say what lag costs a step, and what it brings by the clock."""
    turns, lag = accounts[0].ended, max(accounts)
    taken = sum(end <= accounts[lag].seconds for end in turns)
    oldest = " and ".join(f"{found.oldest} (`max_lag` {lag})" for lag, found in accounts.items() if lag)
    ends = ", ".join(f"{share:.0%} {f'at lag {lag}' if lag else 'in turns'}" for lag, share in after.items())
    return (
        f"Lag costs age: the oldest group was {oldest} versions old. When the run at lag {lag} was over, the one in turns "
        f"had taken {taken} of its {len(turns)} steps. At the end of each run, of the held-out tasks {ends} are right."
    )


async def train_and_kill(
    run: Config, folder: RunFolder, kill: Callable[[Controller], Coroutine[Any, Any, None]]
) -> tuple[RunLog, dict[str, int]]:
    """Train while ``kill`` has its way. Returns the log and the replay buffer's counters."""
    log = RunLog(folder)
    async with Controller.assemble(run, log) as controller:
        await controller.begin()
        await run_together(train_async(controller), kill(controller))
        await controller.finish()
        books = (await controller.replay_buffer.state.route())["counters"]
    return log, books


@contextmanager
def quietly() -> Iterator[list[str]]:
    """Keep warnings and native code's output off the page. Yields its lines at the end."""
    log = logging.getLogger("zorplex_rl")
    # The death on this page is intended, and the page says more about it than a warning would.
    level = log.level
    log.setLevel(logging.ERROR)
    with captured(2) as lines:
        try:
            yield lines
        finally:
            log.setLevel(level)


def books_of(log: RunLog, books: dict[str, int]) -> dict[str, Any]:
    """Return what became of the groups of a run in which a generator was killed."""
    numbers = [number for span in log.timeline.spans if span.kind == "train" for number, *_ in span.args["groups"]]
    return {
        "processes replaced": sum(row["event"] == "restart" for row in log.folder.metrics()),
        "groups started": books["started"],
        LOST: books["abandoned"],
        "groups trained on": books["trained"],
        "groups thrown away as too old": books["stale"],
        "unaccounted for": books["started"] - books["trained"] - books["abandoned"] - books["stale"],
        "numbers found in the trainer's steps": "each once"
        if sorted(numbers) == list(range(books["trained"]))
        else f"{len(set(numbers))} different ones",
    }


def around_the_kill(timeline: Timeline) -> tuple[str, float, float]:
    """Draw the seconds around the kill. Returns it, and when it was noticed and mended."""
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
