"""What notebook 05 needs and does not show.

leave_a_core                to the browser, while SmolLM2 computes
fetch_button  pretrained    SmolLM2: a button that gets it, and the policy, if it is there
four_kinds                  a task of each kind, side by side
rollout                     an episode of each task
accuracy_chart  gallery_of  the benchmark's accuracies with intervals; an episode of each ending
real_answers                SmolLM2's answers without and with examples, and a result that it invented
prices                      what each ending earns
batch_chart                 a batch on its slots
generate  advantages_of     the scored episodes of a training step, in groups; their advantages
new_trainer  mean_seconds   what trains the small policy; what a clock measured
straggler_by_lag            what the simulator finds for one straggler
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import marimo as mo
import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.bars import outcome_chart
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.figures.loop_drawing import ROLES
from zorplex_rl.course.figures.tokens import episode_card, invents, written
from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.sync_and_async import compare as simulate
from zorplex_rl.course.widgets.timeline_simulator import GRID, ONE_STRAGGLER
from zorplex_rl.devices import cores
from zorplex_rl.errors import PolicyError
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.train_simple import compare, play
from zorplex_rl.policy import smollm2
from zorplex_rl.policy.evaluate import Report, summarise
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, Sampling
from zorplex_rl.run.timeline import SpanRecorder
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import OUTCOMES, Episode, Task
from zorplex_rl.task.specs import TASK_SPECS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = dict(zip(TASK_SPECS, style.SERIES, strict=True))


def real_model() -> str | None:
    """Return the folder of SmolLM2, if it is in the cache."""
    folder = smollm2.cached()
    return str(folder) if (folder / "config.json").is_file() else None


def leave_a_core() -> None:
    """Let torch compute on all cores but one. The browser that shows the page needs that one: if a thread of
    torch has to wait for it, all others wait, too."""
    torch.set_num_threads(max(1, cores() - 1))


def fetch_button() -> Any:
    """Return a button that gets SmolLM2; nothing where it is there, or nobody can press one."""
    if real_model() or lesson.unattended():
        return None
    return mo.ui.run_button(label="Fetch SmolLM2 (93 MB, half a minute)", kind="success")


def pretrained(button: Any) -> tuple[Policy | None, str]:
    """Get SmolLM2 if ``button`` was pressed. Returns the policy if it is there, and a sentence."""
    try:
        if button is not None and button.value:
            smollm2.get()
    except PolicyError as error:
        return None, f"SmolLM2 could not be fetched: {error}."
    if folder := real_model():
        return load_policy(folder), ""
    return (
        None,
        "SmolLM2 is not on this machine, so this section has no numbers; the button further up fetches it.",
    )


def four_kinds(environment: Zorplex) -> str:
    """Return instruction and question of a held-out task of each kind, and a perfect answer to it, side by side."""
    cards = ""
    for kind in TASK_SPECS:
        spec = environment.spec(kind)
        # `recursive` tasks may need a single call: take one that needs most.
        task = max(
            (spec.task(number, "held_out") for number in range(20)),
            key=lambda task: task.min_tool_calls,
        )
        asked = html.escape(f"{task.system}\n\n{task.question}")
        parts = f"<p><b>{kind}</b></p><pre>{asked}</pre><pre><b>{html.escape(spec.solve(task))}</b></pre>"
        cards += f"<div>{parts}</div>"
    return f'<div class="lesson-side-by-side">{cards}</div>'


def rollout(
    policy: Policy,
    environment: Zorplex,
    tasks: Sequence[Task],
    sampling: Sampling,
    one_more: Callable[..., None],
) -> list[Episode]:
    """Return an episode of each of ``tasks``; ``one_more`` counts them."""
    engine = RolloutEngine(policy, environment.execute, sampling)
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
    return engine.run(requests, lambda episode: one_more())


def accuracy_chart(reports: Sequence[Report]) -> str:
    """Draw each accuracy as a bar from zero, with its interval."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            low, high = report.interval
            axes.barh(row, report.accuracy, height=0.6, color=COLOURS[report.name.split()[-1]])
            axes.plot([low, high], [row, row], color=style.TEXT, linewidth=2)
        style.name_rows(axes, [report.name for report in reports])
        axes.set(xlim=(0, 1), xlabel="right answers; the line is the 95 % interval")
        style.show_percent(axes.xaxis)
        style.bare_axes(axes, grid="x")

    said = "; ".join(
        f"{r.name} {r.accuracy:.0%}, {r.interval[0]:.0%} to {r.interval[1]:.0%}" for r in reports
    )
    return render(draw, 70 + 30 * len(reports), "Right answers by kind", said)


def gallery_of(sorted_by: Sequence[tuple[str, Episode]], policy: Policy) -> str:
    """Draw the first episode of each ending, a success last."""
    first = dict(reversed(sorted_by))
    endings = [ending for ending in (*OUTCOMES[1:], OUTCOMES[0]) if ending in first]
    return episode_card(policy, [first[ending] for ending in endings])


def real_answers(policy: Policy, real: Mapping[int, list[Episode]]) -> mo.Html:
    """Return how answers behind 0 and 2 examples end, and an episode whose result the policy invented."""
    plain = summarise("plain", real[0])
    shown = summarise("two examples", real[2])
    made_up = [
        episode
        for episode in real[2]
        if not episode.tool_calls and invents(written(policy, episode))
    ]
    said = f"""
    Asked plainly, SmolLM2 answers {plain.accuracy:.0%} right.
    With two examples {shown.accuracy * shown.episodes:.0f} of {shown.episodes} sampled answers are right.
    {"RL can begin with that." if shown.accuracy else "If it is never right, RL has nothing to pay for."}
    {shown.episodes} questions about a few words are too few for an exact share: the interval is {shown.interval[0]:.0%} to {shown.interval[1]:.0%}.
    """
    if made_up:
        said += f"""
    **In {len(made_up)} of {len(real[2])} texts it wrote the arrow and a number itself.** It made no complete call that the tool knows, so
    no tool ran; then it *invented the tool's reply*. Look for an arrow in a solid box:
    """
    parts = [
        lesson.md(said),
        lesson.figure(episode_card(policy, made_up[:1]) + outcome_chart([plain, shown])),
    ]
    return mo.vstack(parts)


def prices(
    answered: Mapping[str, Sequence[Episode]],
    places: Sequence[str | None],
    pay: Callable[[str, int], float],
) -> list[dict[str, str]]:
    """Return the rows of a table: what each ending earns in the mean, by ``pay`` and by a lenient checker."""
    episodes = [episode for some in answered.values() for episode in some]
    table = []
    for ending in OUTCOMES:
        rewards, lenient = list[float](), list[bool]()
        for episode, place in zip(episodes, places, strict=True):
            if episode.scored.outcome == ending:
                needless = max(0, episode.tool_calls - episode.task.min_tool_calls)
                rewards.append(pay(ending, needless))
                lenient.append(place is not None)
        if rewards:
            row = {"ending": ending, "episodes": f"{len(rewards)}"}
            row["mean reward"] = f"{fmean(rewards):.2f}"
            table.append(row | {"paid by a lenient checker": f"{fmean(lenient):.0%}"})
    return table


def batch_chart(seconds: Sequence[float], plan: Sequence[tuple[int, float]]) -> str:
    """Draw a batch on its slots by ``plan``, (slot, start) of each episode; the last to end in orange."""
    ends = [start + took for (_, start), took in zip(plan, seconds, strict=True)]
    slots = 1 + max(slot for slot, _ in plan)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (slot, start), took, end in zip(plan, seconds, ends, strict=True):
            colour = style.VERMILION if end == max(ends) else ROLES["generator"]
            axes.barh(
                slot,
                took,
                left=start,
                height=0.7,
                color=colour,
                edgecolor=style.TEXT_ON_COLOUR,
                linewidth=0.6,
            )
        axes.axvline(max(ends), color=style.VERMILION, linewidth=1.2, linestyle="--")
        style.name_rows(axes, [f"slot {slot}" for slot in range(slots)])
        axes.set(
            xlim=(0, 1.04 * max(ends)), xlabel="seconds; the trainer starts at the dashed line"
        )
        style.bare_axes(axes, grid="x")

    said = f"{len(seconds)} episodes on {slots} slots; the last ends after {max(ends):.2f} s"
    return render(draw, 70 + 26 * slots, "A batch waits for its slowest episode", said)


def generate(
    policy: Policy,
    environment: Zorplex,
    step: int,
    sampling: Sampling,
    prompts: int = 8,
    samples: int = 4,
    seeds: int = 1000,
) -> list[Episode]:
    """Return ``samples`` scored episodes of each of the ``prompts`` tasks of ``step``, which has ``seeds`` of its own."""
    tasks = []
    for task in environment.tasks(("compositional",), prompts, start=prompts * step):
        tasks.extend([task] * samples)
    return play(policy, environment, tasks, seeds * step, sampling)


def advantages_of(rewards: list[float], samples: int = 4) -> list[float]:
    """Return the advantages of ``rewards``, each within its group of ``samples``."""
    advantages = []
    for first in range(0, len(rewards), samples):
        advantages += compare(rewards[first : first + samples])
    return advantages


def straggler_by_lag() -> dict[int, float]:
    """Return the simulated seconds of a run with one straggler, by its ``max_lag``."""
    return {
        n: simulate(replace(ONE_STRAGGLER, max_lag=n)).asynchronous.seconds for n in GRID["max_lag"]
    }


def new_trainer() -> Learner:
    """Return a trainer of a copy of the small policy."""
    return Learner(load_policy("embedded"), LearnerConfig(learning_rate=3e-4, warmup_steps=0))


def mean_seconds(clock: SpanRecorder) -> dict[str, float]:
    """Return the mean seconds of each phase that ``clock`` has recorded."""
    spans = clock.drain()
    return {
        kind: fmean(span.end - span.start for span in spans if span.kind == kind)
        for kind in ("generate", "train", "weights")
    }
