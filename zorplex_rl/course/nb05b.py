"""What notebook 05b needs and does not show.

as_episode              what a learner's sampler returns ──► a scored Episode
beside_the_engine       the learner's sampler against the package's, episode by episode
foreseen                how well tokens are foreseen, the policy's and the tool's
chances_after           the next-token probabilities where an answer begins
push  mass_chart        these after one push; over the steps of a run
Card  example  varied   episodes before training and after each step, with a slider; one is on all pages
RecordedCard            the same, which shows a recording until a reader's own run has begun
counted                 a sampler that counts its episodes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import traitlets

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.figures.tokens import Written, written, written_card
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.course.widgets.what_if import Answer, Bar, Knob, Panel, WhatIf
from zorplex_rl.course.widgets.widget import pack
from zorplex_rl.learning.learner import response_logprobs
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
from zorplex_rl.task.environment import ZORPLEX, Zorplex
from zorplex_rl.task.episode import OUTCOMES, Episode, Finish, Task, Turn
from zorplex_rl.task.parser import find_answer, find_call
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import TASK_SPECS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sampler = Callable[..., tuple[list[int], list[bool]]]
ANSWERS, TALKS = "[ANSWER", "So"
"""The tokens between which the embedded policy chooses where an answer should begin."""


def as_episode(
    policy: Policy, task: Task, ids: Sequence[int], sampled: Sequence[bool], group: int = 0
) -> Episode:
    """Return the scored episode of a response: its ``ids``, and which the policy drew."""
    turns, start = list[Turn](), 0
    for own, run in groupby(sampled):
        end = start + len(list(run))
        text = policy.tokenizer.decode(list(ids[start:end]), skip_special_tokens=True)
        if own:
            call = find_call(text)
            turns.append(Turn(text, start, end, str(call) if call else None))
        elif turns:
            turns[-1] = replace(turns[-1], result=text)
        start = end
    finished = turns and find_answer(turns[-1].text.rpartition("\n")[0]) is not None
    finish: Finish = (
        "eos" if ids and ids[-1] in policy.eos_ids else "answer" if finished else "tokens"
    )
    prompt = encode_prompt(policy.tokenizer, task)
    episode = Episode(
        task, prompt, list(ids), list(sampled), [0.0] * len(ids), turns, finish, group=group
    )
    episode.score = score(episode)
    return episode


def beside_the_engine(
    policy: Policy, environment: Zorplex, sampler: Sampler, sampling: Sampling
) -> tuple[list[Episode], list[bool]]:
    """Sample eight tasks both ways. Returns the engine's episodes, and which of the sampler's are equal."""
    tasks = environment.tasks(tuple(TASK_SPECS), 8)
    engine = rollout(
        policy,
        [RolloutRequest(task, seed) for seed, task in enumerate(tasks)],
        environment.execute,
        sampling,
    )
    with torch.inference_mode():
        found = [
            sampler(policy, task, environment.execute, sampling, seed)
            for seed, task in enumerate(tasks)
        ]
    equal = [
        exercise.same(one, (other.token_ids, other.sampled))
        for one, other in zip(found, engine, strict=True)
    ]
    return engine, equal


def foreseen(policy: Policy, episodes: Sequence[Episode]) -> dict[bool, float]:
    """Return the mean probability of the tokens that the policy drew, and of the tool's."""
    everything = [replace(episode, sampled=[True] * len(episode.sampled)) for episode in episodes]
    chances: dict[bool, list[float]] = {True: [], False: []}
    for episode, logprobs in zip(episodes, response_logprobs(policy, everything), strict=True):
        for own, logprob in zip(episode.sampled, logprobs, strict=True):
            chances[own].append(math.exp(logprob))
    return {own: fmean(found) for own, found in chances.items()}


@torch.inference_mode()
def chances_after(policy: Policy, environment: Zorplex, tasks: Sequence[Task]) -> dict[str, float]:
    """Return the mean probability of each token that may begin the answer."""
    total = torch.zeros(policy.model.config.vocab_size)
    for task in tasks:
        spec = environment.spec(task.kind)
        text = "".join(f"{call} -> {spec.run(task, call)}\n" for call in spec.calls_needed(task))
        one, other = (task.table[word] for word in task.words[:2])
        text += f"{one}{'+' if one + other == task.answer else '-'}{other}={task.answer}\n"
        ids = encode_prompt(policy.tokenizer, task) + encode_text(policy.tokenizer, text)
        inputs = torch.tensor([ids], device=policy.model.device)
        total += policy.model(inputs).logits[0, -1].float().softmax(-1).cpu() / len(tasks)
    likely = total.topk(4)
    return {
        policy.tokenizer.decode([token]): chance
        for token, chance in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    }


def push(chances: Mapping[str, float], token: str, advantage: float, rate: float = 2.0) -> Answer:
    """Return ``chances`` before and after one ascent step on advantage · log p(token)."""
    before = {name: chance for name, chance in chances.items() if chance >= 0.01 or name == token}
    before["all others"] = max(0.0, 1 - sum(before.values()))
    logits = torch.tensor(
        [math.log(max(chance, 1e-9)) for chance in before.values()], requires_grad=True
    )
    logp = logits.log_softmax(-1)[list(before).index(token)]
    (gradient,) = torch.autograd.grad(advantage * logp, logits)
    after = dict(zip(before, (logits + rate * gradient).softmax(-1).tolist(), strict=True))

    def bar(name: str, chance: float) -> Bar:
        return Bar(
            quote(name).strip("`"), chance, f"{chance:.0%}", "green" if name == token else "grey"
        )

    drawn = {"Before the push": before, "After it": after}
    panels = [
        Panel(title, [bar(*pair) for pair in found.items()], 1.0) for title, found in drawn.items()
    ]
    moved = after[token] - before[token]
    way = "gained were taken from" if moved > 0 else "lost went to"
    said = f"The {100 * abs(moved):.0f} points that “{token}” {way} the other tokens."
    return Answer(
        panels,
        said
        if abs(moved) > 0.004
        else "Nothing moves: with advantage 0 an episode teaches nothing.",
    )


def mass_chart(history: Sequence[Mapping[str, float]]) -> str:
    """Draw where the probability of the next token lies, step by step; each column adds up to 1."""
    steps = range(len(history))
    tagged, talking = ([found.get(token, 0.0) for found in history] for token in (ANSWERS, TALKS))

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        rest = [max(0.0, 1 - one - other) for one, other in zip(tagged, talking, strict=True)]
        axes.stackplot(
            steps, tagged, talking, rest, colors=(style.GREEN, style.ORANGE, style.GREY), alpha=0.85
        )
        middle = len(history) - 1
        look: dict[str, Any] = {"va": "center", "fontsize": 20, "color": style.TEXT_ON_COLOUR}
        axes.text(0.97 * middle, tagged[-1] / 2, "[ANSWER …", ha="right", **look)
        axes.text(0.03 * middle, tagged[0] + talking[0] / 2, "So …", **look)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(
            xlim=(0, middle),
            ylim=(0, 1),
            xlabel="training step",
            ylabel="probability of the next token",
        )
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, keep=("left", "bottom"))

    said = f"[ANSWER goes from {tagged[0]:.0%} to {tagged[-1]:.0%}, So from {talking[0]:.0%} to {talking[-1]:.0%}"
    return render(draw, 420, "Probability mass that moves", said)


class Card(WhatIf):
    """Show what a policy writes for the same few tasks, at a slider's training step 0 to ``steps``.

    It has no script of its own. ``play`` samples the tasks after one more step and shows them;
    ``seal`` makes the table of a static page, which begins at step 0.
    """

    source = ""
    """A sentence on where the texts come from."""

    def __init__(
        self,
        title: str,
        policy: Policy,
        steps: int,
        sampling: Sampling,
        shown: Sequence[Episode],
        lines: int = 2,
    ) -> None:
        self.requests = [RolloutRequest(episode.task, episode.seed) for episode in shown]
        self.recorded: list[list[Episode]] = [list(shown)]
        self._open(title, steps, sampling, lines, [[written(policy, one) for one in shown]])

    def _open(
        self, title: str, steps: int, sampling: Sampling, lines: int, texts: list[list[Written]]
    ) -> None:
        self.sampling = sampling
        self.lines = lines
        self.texts = texts
        knob = Knob("step", "Training step", list(range(steps + 1)))
        WhatIf.__init__(self, title, [knob], self.at, {"step": 0})

    @traitlets.default("kind")
    def _drawn_as(self) -> str:
        return "WhatIf"

    def at(self, step: int) -> Answer:
        """Return the texts of ``step``, or of the newest one before it."""
        newest = len(self.texts) - 1
        shown = self.texts[min(step, newest)]
        right = sum(one["outcome"] == "success" for one in shown)
        reward = fmean(one["reward"] for one in shown)
        said = f"Step {step}: {right} of {len(shown)} right, mean reward {reward:.2f}."
        if step > newest:
            said = f"This is still step {newest}: the training further down this page has not come so far."
        return Answer(
            figure=written_card(shown, lines=self.lines), said=f"{said} {self.source}".strip()
        )

    def play(self, policy: Policy, step: int) -> None:
        """Sample the tasks with ``policy``, which has taken ``step`` steps, and show the episodes."""
        sampled = rollout(policy, self.requests, ZORPLEX.execute, self.sampling)
        episodes = [self.scored(episode) for episode in sampled]
        self.recorded[step:] = [episodes]
        self.show([*self.texts[:step], [written(policy, one) for one in episodes]], step)

    def scored(self, episode: Episode) -> Episode:
        """Return an episode with its score."""
        return replace(episode, score=score(episode))

    def show(self, texts: list[list[Written]], step: int) -> None:
        """Show ``texts``, what was written after each step, at one of them."""
        self.texts = texts
        self.result = self.answer({"step": step}) | {"params": self.params}

    def seal(self) -> None:
        self.result = self.answer(self.params) | {"params": self.params}
        self.table = pack(self.make_table())


class RecordedCard(Card):
    """Show the recorded run ``name`` until the reader's own begins, with step 0, and then that."""

    def __init__(self, title: str, name: str, sampling: Sampling, lines: int) -> None:
        self.recording = recorded_steps(name)
        self.source = self.recording["source"]
        self.recorded = []
        self.requests = []
        for kind, number, seed, shots in self.recording["asked"]:
            tasks = Zorplex(0, shots=shots).tasks((kind,), number + 1, "held_out")
            self.requests.append(RolloutRequest(tasks[number], seed))
        texts = self.recording["steps"]
        self._open(title, len(texts) - 1, sampling, lines, texts)

    def show(self, texts: list[list[Written]], step: int) -> None:
        self.source = "By the run on this page."
        super().show(texts, step)


def example(policy: Policy, sampling: Sampling, shots: int = 0) -> Episode:
    """Return what ``policy`` writes for the question that stands first in the cards of all pages, scored."""
    (task,) = Zorplex(0, shots=shots).tasks(("compositional",), 1, "held_out")
    (episode,) = rollout(policy, [RolloutRequest(task, 7)], ZORPLEX.execute, sampling)
    return replace(episode, score=score(episode))


def varied(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Return ``count`` scored episodes that end in as many ways as there are: the first one, failures, a success."""
    first = episodes[0]
    order = (first.scored.outcome, *OUTCOMES[1:4], OUTCOMES[0], *OUTCOMES[4:])
    unlike = {outcome: list[Episode]() for outcome in order}
    for episode in episodes:
        if episode is first or episode.task.question != first.task.question:
            unlike[episode.scored.outcome].append(episode)
    turns = [
        episode for row in zip_longest(*unlike.values()) for episode in row if episode is not None
    ]
    return turns[:count]


def counted(sampler: Sampler, one_more: Callable[..., None]) -> Sampler:
    """Return ``sampler``, which then counts one more at each episode."""

    def sample(*given: Any) -> tuple[list[int], list[bool]]:
        found = sampler(*given)
        one_more()
        return found

    return sample
