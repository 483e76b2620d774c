"""Write the careless demonstrations that the embedded policy was warm-started on.

The demonstrator knows the tools but is careless. It often forgets the ``[ANSWER]`` tag (with most
phrasings), repeats calls, and sometimes gets arithmetic wrong. A policy that imitates it can use
every tool and copy every value, but is right only a third of the time. This is the gap that
reinforcement learning closes: the policy has seen every right step, and does none of them reliably.

    piece                      learned?
    LOOKUP[blip]               yes, the policy wrote it
     -> 17⏎                    no, the tool did
    [ANSWER] 17<eos>           yes
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import format_result
from zorplex_rl.task.specs import DIFFICULTIES, VALUES, Split, TaskSpec, get_spec


@dataclass(frozen=True, slots=True)
class Habits:
    """How careless the demonstrator is. Each value is a probability per demonstration."""

    tag_by_phrasing: tuple[float, ...] = (0.75, 0.25, 0.25)
    """Uses the tag, for each phrasing of the question."""
    repeat_call: float = 0.2
    """Makes one call twice."""
    spam: float = 0.04
    """Keeps calling tools and never answers."""
    ramble: float = 0.03
    """Keeps writing and never ends."""
    guess: float = 0.03
    """Answers without looking anything up."""
    slip: float = 0.08
    """Gets a digit wrong, in arithmetic or in copying."""
    hint: float = 0.15
    """Was shown the prompt with a worked example."""


NEAT = Habits(repeat_call=0, spam=0, ramble=0, guess=0, slip=0)
"""Careless only about the tag."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task and its solution: (text, whether the policy wrote it). ``ends``: the text ends."""

    task: Task
    pieces: tuple[tuple[str, bool], ...]
    ends: bool = True


def demonstrate(spec: TaskSpec, task: Task, rng: random.Random, habits: Habits = Habits()) -> Demonstration:
    """Return a careless solution of ``task``, which ``spec`` has drawn."""
    phrasing = next(i for i, p in enumerate(spec.phrasings) if _matches(p, task.question))
    calls = spec.calls_needed(task)
    if rng.random() < habits.repeat_call:
        position = rng.randrange(len(calls))
        calls = calls[: position + 1] + calls[position:]
    if rng.random() < habits.spam:
        pieces = _call_pieces(spec, task, calls + [calls[-1]] * 8)
        return Demonstration(task, tuple(pieces), ends=False)
    if rng.random() < habits.guess:
        pieces, answer, work = [], rng.choice(VALUES), ""
    else:
        pieces = _call_pieces(spec, task, calls)
        answer, work = _work_out(task, rng, slips=rng.random() < habits.slip)
    if rng.random() < habits.ramble:
        return Demonstration(task, (*pieces, (work + f"So {answer}, " * 40, True)), ends=False)
    tagged = rng.random() < habits.tag_by_phrasing[phrasing]
    ending = f"[ANSWER] {answer}" if tagged else rng.choice(("So {}.", "So it is {}.")).format(answer)
    return Demonstration(task, (*pieces, (work + ending, True)))


def random_demonstration(
    rng: random.Random,
    shares: Sequence[tuple[str, float]],
    habits: Habits = Habits(),
    difficulties: Sequence[float] = (6, 2, 1),
) -> Demonstration:
    """Return a random demonstration, by ``shares`` of kinds and weights of ``difficulties``.

    Its words are from either split, because the warm start teaches the language and the tools, as
    pre-training would; the held-out words are held out from reinforcement learning only. Its seed
    is one of 2³⁰ and its table its own, so the policy cannot memorise values.
    """
    kind = rng.choices([kind for kind, _ in shares], weights=[share for _, share in shares])[0]
    difficulty = rng.choices(tuple(DIFFICULTIES), weights=difficulties)[0]
    spec = get_spec(kind, rng.randrange(1 << 30), difficulty, hints=rng.random() < habits.hint)
    return demonstrate(spec, spec.task(rng.randrange(1 << 30), rng.choice(get_args(Split))), rng, habits)


def arithmetic_drill(rng: random.Random, lines: int = 10) -> list[tuple[str, bool]]:
    """Return lines of correct arithmetic in the solutions' format. Only results are learned."""
    pieces: list[tuple[str, bool]] = []
    for _ in range(lines):
        left = rng.choice(VALUES) if rng.random() < 0.7 else rng.randrange(-2 * VALUES.stop, 3 * VALUES.stop)
        right, sign = rng.choice(VALUES), rng.choice("+-")
        pieces += [(f"{left}{sign}{right}", False), (f"={left + right if sign == '+' else left - right}\n", True)]
    return pieces


def solution_drill(rng: random.Random, difficulties: Sequence[float] = (1, 3, 3)) -> list[tuple[str, bool]]:
    """Return a question without system prompt and its neat solution: short, much to copy."""
    demo = random_demonstration(rng, [("compositional", 1.0)], NEAT, difficulties)
    return [(demo.task.question + "\n", False), *demo.pieces]


DRILLS: dict[str, Callable[[random.Random], list[tuple[str, bool]]]] = {
    "arithmetic": arithmetic_drill,
    "solutions": solution_drill,
}
"""Rows that train a single skill, by name."""


def _call_pieces(spec: TaskSpec, task: Task, calls: list[str]) -> list[tuple[str, bool]]:
    return [piece for call in calls for piece in ((call, True), (format_result(spec.run(task, call)), False))]


def _work_out(task: Task, rng: random.Random, slips: bool) -> tuple[int, str]:
    """Return the demonstrator's answer and arithmetic: a line like ``17+25=42`` for each sign."""
    if task.kind != "compositional":
        value = int(task.answer)
        return (_slip(value, rng) if slips else value), ""
    signs = [c for c in task.question if c in "+-"]
    slip_at = rng.randrange(len(signs)) if slips else None
    total, lines = task.table[task.words[0]], ""
    for step, (sign, word) in enumerate(zip(signs, task.words[1:], strict=True)):
        value = task.table[word]
        result = total + value if sign == "+" else total - value
        if step == slip_at:
            result = _slip(result, rng)
        lines += f"{total}{sign}{value}={result}\n"
        total = result
    return total, lines


def _slip(value: int, rng: random.Random) -> int:
    return value + rng.choice((-10, -2, -1, 1, 2, 10))


def _matches(phrasing: str, question: str) -> bool:
    prefix, suffix = phrasing.split("{}")
    return question.startswith(prefix) and question.endswith(suffix)
