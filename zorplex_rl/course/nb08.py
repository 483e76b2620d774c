"""Drive notebook 08: settings of a run, accounts of it, a killed generator.

run_config  real_run      the page's settings ──► the package's Config; the same for SmolLM2
start  stop_all           an actor in a process of its own, and the end of all that run
create                    the folder of a run; notebook 11 replays the one that is kept
account  side_by_side     a run ──► seconds of its phases; runs on one axis
faster  paid              what was measured, in words
answer                    what a run's policy writes for the first question of all cards
small  examiner  learned  three_things  what the runs learned: per step, and per second
train_and_kill  a run of the package, in which a generator is killed
books_of  around_the_kill       what became of every group, and the moments around the kill
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from zorplex_rl.config import Config, LearnerConfig, ServicesConfig
from zorplex_rl.course.figures.spans import paired_timelines
from zorplex_rl.course.figures.tokens import Written
from zorplex_rl.course.kept_file import kept
from zorplex_rl.course.nb02 import captured
from zorplex_rl.course.nb05 import real_model
from zorplex_rl.course.nb09 import compared, first_question, uncertain, usual
from zorplex_rl.course.staleness import Conditions, held_out_accuracy
from zorplex_rl.policy.auto import resolved
from zorplex_rl.policy.load import load_policy
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.services.runtime import Actor, run_together, start_monarch, this_host
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score
from zorplex_rl.training.controller import Controller
from zorplex_rl.training.loop import train_async
from zorplex_rl.training.run_log import RunLog

KEPT = Path("runs") / "notebook_08"
"""Where the run with the kill stays, in the folder above the notebooks, for notebook 11 to replay."""
SMALL = {"task": "compositional", "shots": 0, "prompts": 8, "max_tokens": 96, "learning_rate": 4e-4}
REAL = {"task": "simple", "shots": 2, "prompts": 2, "max_tokens": 26, "learning_rate": 2e-5}
"""Settings for the small policy, and for a pre-trained one, which sees worked examples."""
PROCESSES = list[Any]()
"""What runs: a cell that runs again stops what it had left."""
SCRATCH = tempfile.TemporaryDirectory(prefix="zorplex_rl_08_")


def create(run: Config, beside: str | None = None) -> RunFolder:
    """Create the folder of a run: a temporary one, or ``KEPT`` for the notebook ``beside`` it, where
    it takes the place of the one before."""
    path = kept(beside, KEPT) if beside else Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
    shutil.rmtree(path, ignore_errors=True)
    return RunFolder.create(path, run)


def start(actor_class: type[Actor], *arguments: Any) -> Any:
    """Start an actor in a process of its own."""
    start_monarch()
    procs = this_host().spawn_procs(per_host={"procs": 1})
    PROCESSES.append(procs)
    return procs.spawn(actor_class.__name__, actor_class, *arguments)


async def stop_all() -> None:
    """Stop what is running, and forget it."""
    running = list(PROCESSES)
    PROCESSES.clear()
    await asyncio.gather(*(procs.stop() for procs in running))


def run_config(config: SimpleNamespace, **changes: Any) -> Config:
    """Return the checked settings of a run: the page's, with ``changes``."""
    wanted: dict[str, Any] = {"generators": 1, "spares": 0, "max_lag": 1, "eval_tasks": 50}
    wanted |= SMALL | vars(config) | changes
    alike = "policy task shots max_lag steps max_tokens eval_tasks seed device threads tool_latency".split()
    made = Config(
        prompts_per_step=wanted["prompts"],
        group_size=wanted["samples"],
        learner=LearnerConfig(learning_rate=wanted["learning_rate"]),
        eval_every=wanted["steps"],
        checkpoint_every=wanted["steps"],
        services=ServicesConfig(generators=wanted["generators"], spares=wanted["spares"]),
        **{name: wanted[name] for name in alike if name in wanted},
    )
    made.check()
    return resolved(made)


def real_run(config: SimpleNamespace) -> Config:
    """Return a run with tools that answer at once, of SmolLM2 if it is there."""
    real = real_model()
    changes = {**REAL, "policy": real, "prompts": 1} if real else {}
    return run_config(config, **changes, steps=config.real_steps)


def account(timeline: Timeline) -> SimpleNamespace:
    """Return the mean seconds of a step and of its phases, and when each step ended."""
    trained = sorted(
        (span for span in timeline.spans if span.kind == "train"), key=lambda span: span.end
    )
    ended = [span.end - timeline.start for span in trained]
    train = fmean(span.end - span.start for span in trained)
    sampling = sum(span.end - span.start for span in timeline.spans if span.kind == "generate")
    return SimpleNamespace(
        step=ended[-1] / len(ended),
        between=ended[-1] / len(ended) - train,
        train=train,
        generate=sampling / len(ended),
        ended=ended,
    )


def side_by_side(runs: Mapping[int, Timeline]) -> str:
    """Draw the same seconds of each run on one axis, from the middle of the run and the beginning of a
    step: as many as the shortest run trains. Early steps are longer than most: hardly an episode of theirs is
    as good as the others."""
    begun = {
        lag: sorted(span.start for span in timeline.spans if span.kind == "train")
        for lag, timeline in runs.items()
    }
    seconds = min(starts[-1] - starts[0] for starts in begun.values())
    windows = {}
    for lag, starts in begun.items():
        middle = (starts[0] + starts[-1] - seconds) / 2
        first = max((start for start in starts if start <= middle), default=starts[0])
        windows[name_of(lag)] = runs[lag].between(first, first + seconds)
    return paired_timelines(windows, seconds, ["generator_0", "trainer"])


def name_of(lag: int) -> str:
    """Return what the page calls a run with ``max_lag`` ``lag``."""
    return f"max_lag {lag}" if lag else "in turns"


def faster(turns: float, other: float) -> str:
    """Say how many times as fast a step of ``other`` seconds is as one in ``turns``.

    >>> faster(3.0, 1.5), faster(1.0, 1.25), faster(1.0, 0.98)
    ('2.0 times as fast', '1.2 times as long', 'just as fast')
    """
    if turns > 1.1 * other:
        return f"{turns / other:.1f} times as fast"
    return f"{other / turns:.1f} times as long" if other > 1.1 * turns else "just as fast"


async def answer(actors: SimpleNamespace, run: Config) -> Written:
    """Ask the generator, with the newest weights, the first question of all cards. Returns what ``nb09.usual`` does."""
    await actors.generator.pull.call_one()
    tasks = first_question(run.shots)[: run.group_size]
    episodes = (await actors.generator.evaluate.call_one(tasks))[1::2]  # the sampled ones
    for episode in episodes:
        episode.score = score(episode)
    return usual(load_policy(run.policy), episodes)


def small(config: SimpleNamespace) -> SimpleNamespace:
    """Return the page's settings for the small policy, whichever it runs: every version of it is kept."""
    if config.policy == "embedded":
        return config
    return SimpleNamespace(**vars(config) | SMALL | {"policy": "embedded"})


def examiner(config: SimpleNamespace, versions: Path) -> Callable[[int, int], float]:
    """Return what examines a version of the run at a lag: its accuracy on held-out tasks. Version 0 is the
    page's policy."""
    shown = Conditions(
        task=config.task, max_tokens=config.max_tokens, held_out_tasks=config.held_out
    )
    environment = Zorplex(config.seed, shots=config.shots)

    def accuracy(lag: int, version: int) -> float:
        folder = str(versions / name_of(lag) / str(version)) if version else config.policy
        return held_out_accuracy(load_policy(folder, config.device), environment, shown)

    return accuracy


def learned(
    runs: Mapping[int, Timeline], accuracy: Callable[[int, int], float]
) -> tuple[float, dict[int, SimpleNamespace]]:
    """Return when the fastest run was over, and for each run: the seconds of a step, how many steps it had
    taken by then, its ``accuracy`` then and after all steps, and the points that a step taught."""
    ended = {lag: account(timeline).ended for lag, timeline in runs.items()}
    over = min(times[-1] for times in ended.values())
    before = accuracy(0, 0)
    found = {}
    for lag, times in ended.items():
        taken = sum(end <= over for end in times)
        at_end = accuracy(lag, len(times))
        found[lag] = SimpleNamespace(
            step=times[-1] / len(times),
            taken=taken,
            at_end=at_end,
            by_then=at_end if taken == len(times) else accuracy(lag, taken),
            teaches=100 * (at_end - before) / len(times),
        )
    return over, found


def three_things(
    over: float, found: Mapping[int, SimpleNamespace], tasks: int
) -> list[dict[str, str]]:
    """Return a row for each run: step time, what a step taught, and what the run had learned by ``over``."""
    return [
        {
            "run": name_of(lag),
            "seconds a step": f"{run.step:.2f}",
            "after all steps": uncertain(run.at_end, tasks),
            "points a step": f"{run.teaches:.1f}",
            f"steps in {over:.0f} s": f"{run.taken}",
            f"after {over:.0f} s": uncertain(run.by_then, tasks),
        }
        for lag, run in found.items()
    ]


def paid(over: float, found: Mapping[int, SimpleNamespace], tasks: int) -> tuple[int, str]:
    """Return as ``compared`` does, and in words, whether the run in turns had learned more than the one with most lag
    when the fastest was over."""
    turns, most = found[0], found[max(found)]
    apart = compared(turns.by_then, most.by_then, tasks)
    verdict = ("made no clear difference", "did not pay", "paid")[apart]
    return apart, (
        f"In this one run asynchrony {verdict}: after {over:.0f} s, {uncertain(turns.by_then, tasks)} of the held-out tasks were right in turns, "
        f"and {uncertain(most.by_then, tasks)} at lag {max(found)}."
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
        books = (await controller.roles.replay_buffer.state.route())["counters"]
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


def books_of(log: RunLog, books: dict[str, int]) -> SimpleNamespace:
    """Return the counters of a run's groups, and whether each number was trained on once."""
    numbers = [
        number
        for span in log.timeline.spans
        if span.kind == "train"
        for number, *_ in span.args["groups"]
    ]
    once = sorted(numbers) == list(range(books["trained"]))
    return SimpleNamespace(**books, each_once=once)


def around_the_kill(timeline: Timeline) -> tuple[str, float]:
    """Draw the seconds around the kill. Returns it, and after how many seconds it was mended."""
    kill, restart = (
        next(span for span in timeline.spans if span.kind == kind) for kind in ("kill", "restart")
    )
    around = timeline.between(kill.start - 1.0, restart.end + 4.0)
    mark = (around.end - around.start) / 150  # a kill takes no time: its mark is widened
    kinds = ("generate", "train", "kill", "restart")
    spans = [span for span in around.spans if span.kind in kinds]
    spans.sort(key=lambda span: span.start - span.end)  # the longest first, so marks are on top
    shown = Timeline([replace(span, end=max(span.end, span.start + mark)) for span in spans])
    seconds = shown.end - shown.start
    figure = paired_timelines({"around the kill": shown}, seconds, sorted(shown.actors))
    return figure, restart.end - kill.start
