"""Check a user's task against what a run relies on, on a sample of its tasks: a line a check.

ok   splits      none of 200 held-out tasks is among 200 training tasks
no   answers     '[ANSWER] 8' is right for 'Double 4?', but scores wrong_format, 0
"""

import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from typing import get_args

from zorplex_rl.errors import TaskError
from zorplex_rl.task.episode import Task
from zorplex_rl.task.own_task import MODULE, EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import Split

SAMPLE, FEW = 200, 25
"""Tasks of each split, and those of which calls and scores are tried."""
CONSTANT_LIMIT = 0.25
"""Largest share of held-out tasks for which one constant answer may be right."""
ODD_ARGUMENTS = ("", "no such thing", "-1", "1e999", "9" * 5000, "1/0", "'", "⁷", "a,b")
"""What a learning policy writes between the brackets."""


class Sample:
    """The first tasks of both splits. Raises TaskError if they cannot be drawn."""

    def __init__(self, source: EnvironmentSource) -> None:
        self.source, self.environment = source, source.make()
        self.tasks: dict[Split, list[Task]] = {
            split: [self.environment.task(index, split) for index in range(SAMPLE)]
            for split in get_args(Split)
        }
        self.few = self.tasks["held_out"][:FEW]


def draw_again(sample: Sample) -> str:
    """Draw the tasks from a new environment, in the reverse order."""
    fresh = sample.source.make()
    for split, index in product(sample.tasks, reversed(range(SAMPLE))):
        task, again, name = (
            sample.tasks[split][index],
            fresh.task(index, split),
            f"task({index}, {split!r})",
        )
        if task != again:
            said = f"{name} is {task.question!r:.40}, and {again.question!r:.40} when others come first"
            raise TaskError(f"{said}; draw it from seed, split and index alone")
        if MODULE.encode() in pickle.dumps(task):
            raise TaskError(
                f"{name} holds an object of a class in the file; use numbers, texts, lists and dicts"
            )
    return "the same from a new environment, in the reverse order"


def compare_splits(sample: Sample) -> str:
    """Look for held-out tasks that are in training, too."""
    training, held_out = (
        [repr(asdict(replace(t, split=""))) for t in tasks] for tasks in sample.tasks.values()
    )
    if both := {*training} & {*held_out}:
        raise TaskError(
            f"{len(both)} of {SAMPLE} held-out tasks are in training, such as {both.pop():.200}"
        )
    return f"none of {SAMPLE} held-out tasks is among {SAMPLE} training tasks"


def answer_constantly(sample: Sample) -> str:
    """Count how often the most frequent answer is right."""
    ((answer, count),) = Counter(task.answer for task in sample.tasks["held_out"]).most_common(1)
    said = f"the best constant answer, {answer!r:.40}, is right in {count / SAMPLE:.1%}"
    if count > CONSTANT_LIMIT * SAMPLE:
        raise TaskError(f"{said} of the held-out tasks; at most {CONSTANT_LIMIT:.0%} are allowed")
    return said


def call_tools(sample: Sample) -> str:
    """Call the tools with odd arguments and the question's words, also where no task was drawn."""
    fresh, answers = sample.source.make(), []
    for task, name in product(sample.few, sample.environment.tools):
        for argument in (*ODD_ARGUMENTS, *task.question.split()):
            call = ToolCall(name, argument, 0)
            said, elsewhere = sample.environment.execute(task, call), fresh.execute(task, call)
            shown = f"{name}[{argument!r:.30}] answers {said!r:.60}"
            if not isinstance(said, str) or said.startswith("ERROR: timed out"):
                raise TaskError(f"{shown}; expected text, at once")
            if said != elsewhere:
                raise TaskError(
                    f"{shown}, and {elsewhere!r:.60} where no task was drawn; put all into the task"
                )
            answers.append(said)
    raised = [said for said in answers if re.match(r"ERROR: \w+: ", said)]
    if answers and len(raised) == len(answers):
        raise TaskError(f"every call raises an exception, such as {raised[0]!r:.100}")
    return f"text for each of {len(answers)} calls; {len(raised)} raise an exception"


def score_answers(sample: Sample) -> str:
    """Score right answers, and what is wrong or has no answer."""
    for task in sample.few:
        right, answer = sample.environment.reference(task), str(task.answer)
        many = " ".join([answer, *map(str, range(30))])
        wrong = ["", "\n", task.question, "9" * 5000, many, right.replace(answer, many)]
        if isinstance(task.answer, int):
            wrong += [right.replace(answer, f"{answer}{more}") for more in ("1", ".5", " or 7")]
        for text in (right, *wrong):
            is_right, turns = text == right, [""] * task.min_tool_calls + [text]
            found = sample.environment.score(task, turns, task.min_tool_calls, "eos")
            if (found.outcome == "success", found.correct >= 1) != (is_right, is_right):
                said = f"{text!r:.60} is {'right' if is_right else 'no answer'} for {task.question!r:.40}"
                raise TaskError(f"{said}, but scores {found.outcome}, {found.correct:g}")
    return f"{right!r:.40} is right, and wrong and meaningless texts are not"


CHECKS: dict[str, Callable[[Sample], str]] = {
    "same tasks": draw_again,
    "splits": compare_splits,
    "constant": answer_constantly,
    "tools": call_tools,
    "answers": score_answers,
}
"""Each returns what it has found. Raises TaskError."""
