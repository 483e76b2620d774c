"""What notebook 05 needs and does not show.

fetch_button  pretrained    SmolLM2: a button that gets it, and the policy, if it is there
word_problem                a question that stands in no table, and what a policy writes to it
injection                   an episode that grows token by token, for a slider
four_kinds                  a task of each kind, side by side
rows  rows_of               the rows of a table: from text, and of the benchmark
accuracy_chart  gallery_of  its accuracies with intervals; an episode of each ending, and how often each comes
density_chart  batch_chart  the times of episodes: their density by kind, and a batch on its slots
generate                    the scored episodes of a training step, in groups of four
compare_within_groups       their advantages
straggler_by_lag            what the simulator finds for one straggler
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import marimo as mo
import numpy as np

from zorplex_rl.course.figures.bars import outcome_chart
from zorplex_rl.course.figures.loop_drawing import ROLES
from zorplex_rl.course.figures.tokens import episode_card
from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.widgets.timeline_simulator import GRID, ONE_STRAGGLER
from zorplex_rl.course.widgets.what_if import Answer
from zorplex_rl.errors import PolicyError
from zorplex_rl.learning.train_simple import compare, play
from zorplex_rl.policy import smollm2
from zorplex_rl.policy.evaluate import Report
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import render
from zorplex_rl.simulation.simulate import compare as simulate
from zorplex_rl.task.environment import Environment, Zorplex
from zorplex_rl.task.episode import OUTCOMES, Episode, Task
from zorplex_rl.task.specs import TASK_SPECS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORD_PROBLEM = Task(
    kind="word problem",
    question="Tom has 7 pencils. He buys 5 more and gives 4 to Ann. How many pencils does Tom have?",
    answer=7 + 5 - 4,
    min_tool_calls=0,
    system="You are a helpful assistant. Solve the problem step by step, in a few words.",
)
COLOURS = dict(zip(TASK_SPECS, style.SERIES, strict=True))


def real_model() -> str | None:
    """Return the folder of SmolLM2, if it is in the cache."""
    folder = smollm2.cached()
    return str(folder) if (folder / "config.json").is_file() else None


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
        return load_policy(
            folder
        ), "This page was computed on SmolLM2, and beside it on the small policy."
    return (
        None,
        "SmolLM2 is not on this machine, so this page was computed on the small policy alone.",
    )


def word_problem(policy: Policy) -> str:
    """Return what ``policy`` writes to the word problem, greedily, in up to 96 tokens."""
    no_tools = Environment()
    request, greedy = RolloutRequest(WORD_PROBLEM), Sampling(temperature=0.0, max_tokens=96)
    (episode,) = rollout(policy, [request], no_tools.execute, greedy, environment=no_tools)
    return "\n".join(line for part in episode.text.strip().splitlines() for line in wrap(part, 76))


def injection(policy: Policy, episode: Episode, tokens: int) -> Answer:
    """Return the first ``tokens`` of an episode as boxes, and who writes the next one."""
    cut = replace(episode, token_ids=episode.token_ids[:tokens], sampled=episode.sampled[:tokens])
    said = {
        None: "It ended its text, or a line with an answer: the episode is over.",
        True: "Next: the model reads all of these tokens, and draws one more.",
        False: "Next: the text holds a complete call, so the tool's result is appended. The model reads it, and did not draw it.",
    }[next(iter(episode.sampled[tokens:]), None)]
    return Answer(figure=episode_card(policy, [cut], reward=False, lines=4), said=said)


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


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a table: the first line of ``text`` names the columns, with | between them."""
    names, *lines = (
        [cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()
    )
    return [dict(zip(names, line, strict=True)) for line in lines]


def rows_of(reports: Sequence[Report]) -> list[dict[str, str]]:
    """Return the rows of the benchmark's table."""
    return [
        {
            "policy, kind": report.name,
            "right": f"{report.accuracy:.0%}",
            "95 % interval": "{:.0%} to {:.0%}".format(*report.interval),
            "turns": f"{report.turns:.1f}",
            "calls": f"{report.tool_calls:.1f}",
            "tokens": f"{report.tokens:.0f}",
            "seconds, median": f"{report.seconds_median:.2f}",
        }
        for report in reports
    ]


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


def gallery_of(
    sorted_by: Mapping[str, Sequence[tuple[str, Episode]]], policies: Sequence[Policy | None]
) -> str:
    """Draw the first episode of each ending, a success last, of each policy, and how often each ending comes."""
    cards, bars = "", list[Any]()
    for policy, (name, found) in zip(policies, sorted_by.items(), strict=True):
        if policy is not None:
            first, count = dict(reversed(found)), Counter(ending for ending, _ in found)
            cards += f"<p><strong>{'The small policy' if name == 'small' else name}</strong></p>"
            cards += episode_card(
                policy,
                [first[ending] for ending in (*OUTCOMES[1:], OUTCOMES[0]) if ending in first],
            )
            shares = {ending: count[ending] / len(found) for ending in OUTCOMES}
            bars.append(SimpleNamespace(name=f"{name}, {len(found)} episodes", outcomes=shares))
    return cards + outcome_chart(bars)


def density_chart(seconds: Mapping[str, Sequence[float]]) -> str:
    """Draw how dense the times of episodes lie, by kind, each as high as the others."""
    from scipy.stats import gaussian_kde

    longest = max(max(found) for found in seconds.values())
    at = np.linspace(0, 1.4 * longest, 200)  # so far the density reaches beyond the last

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (kind, found) in enumerate(seconds.items()):
            # Equal times have no density: a thousandth of noise keeps the estimate alive.
            height = gaussian_kde(np.asarray(found) + np.linspace(0, 1e-3 * longest, len(found)))(
                at
            )
            axes.fill_between(
                at,
                row,
                row - 0.85 * height / height.max(),
                color=COLOURS[kind],
                alpha=0.7,
                linewidth=0,
            )
            axes.plot(found, [row + 0.08] * len(found), "|", color=style.TEXT, markersize=7)
        style.name_rows(axes, list(seconds), margin=1.0)
        axes.set(
            xlim=(0, 1.4 * longest),
            xlabel="seconds from an episode's first to its last token; a mark for each",
        )
        style.bare_axes(axes, grid="x")

    said = "; ".join(
        f"{kind} {min(found):.2f} to {max(found):.2f} s" for kind, found in seconds.items()
    )
    return render(draw, 300, "The times of episodes, by kind", said)


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


def generate(policy: Policy, environment: Zorplex, step: int, sampling: Sampling) -> list[Episode]:
    """Return four scored episodes of each of the eight training tasks of ``step``."""
    tasks = [
        task for task in environment.tasks(("compositional",), 8, start=8 * step) for _ in range(4)
    ]
    episodes = play(policy, environment, tasks, 1000 * step, sampling)
    for number, episode in enumerate(episodes):
        episode.group = number // 4
    return episodes


def compare_within_groups(episodes: Sequence[Episode]) -> list[float]:
    """Return the advantage of each of ``episodes``, in groups of four."""
    rewards = [episode.scored.reward for episode in episodes]
    return [
        advantage
        for first in range(0, len(rewards), 4)
        for advantage in compare(rewards[first : first + 4])
    ]


def straggler_by_lag() -> dict[int, float]:
    """Return the simulated seconds of a run with one straggler, by its ``max_lag``."""
    return {
        n: simulate(replace(ONE_STRAGGLER, max_lag=n)).asynchronous.seconds for n in GRID["max_lag"]
    }
