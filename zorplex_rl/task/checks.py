"""Check a user's task against what a run relies on, on a sample of its tasks: a line a check.

ok   splits      none of 200 held-out tasks is among 200 training tasks
no   answers     '[ANSWER] 8' is right for 'Double 4?', but scores wrong_format, 0
"""

import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import get_args

from zorplex_rl.errors import TaskError
from zorplex_rl.task.episode import Task
from zorplex_rl.task.own_task import MODULE, EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import Split

SAMPLE = 200
"""Tasks drawn from each split."""
FEW = 25
"""Held-out tasks whose tools and scores are tried."""
CONSTANT_LIMIT = 0.25
"""Largest share of held-out tasks for which one constant answer may be right."""
ODD_ARGUMENTS = ("", "no such thing", "-1", "1e999", "9" * 5000, "1/0", "'", "⁷", "a,b")
"""What a learning policy writes between the brackets."""


class Sample:
    """The first tasks of both splits. Raises TaskError if they cannot be drawn."""

    def __init__(self, source: EnvironmentSource) -> None:
        self.source = source
        self.environment = source.make()
        self.tasks: dict[Split, list[Task]] = {}
        for split in get_args(Split):
            self.tasks[split] = [self.environment.task(index, split) for index in range(SAMPLE)]
        self.few = self.tasks["held_out"][:FEW]


def draw_again(sample: Sample) -> str:
    """Draw the tasks again, from a new environment and in the reverse order."""
    fresh = sample.source.make()
    for split, index in product(sample.tasks, reversed(range(SAMPLE))):
        name = f"task({index}, {split!r})"
        task = sample.tasks[split][index]
        again = fresh.task(index, split)
        if task != again:
            raise TaskError(
                f"{name} is {task.question!r:.40}, and {again.question!r:.40} when others come first; "
                "draw it from seed, split and index alone"
            )
        if MODULE.encode() in pickle.dumps(task):
            raise TaskError(
                f"{name} holds an object of a class in the file; "
                "use numbers, texts, lists and dicts"
            )
    return "the same from a new environment, in the reverse order"


def compare_splits(sample: Sample) -> str:
    """Look for held-out tasks that are also training tasks."""
    texts = {}
    for split, tasks in sample.tasks.items():
        texts[split] = {repr(asdict(task)) for task in tasks}
    if both := texts["train"] & texts["held_out"]:
        raise TaskError(
            f"{len(both)} of {SAMPLE} held-out tasks are in training, such as {both.pop():.200}"
        )
    return f"none of {SAMPLE} held-out tasks is among {SAMPLE} training tasks"


def answer_constantly(sample: Sample) -> str:
    """Count how often the most frequent answer is right."""
    answers = Counter(task.answer for task in sample.tasks["held_out"])
    ((answer, count),) = answers.most_common(1)
    result = f"the best constant answer, {answer!r:.40}, is right in {count / SAMPLE:.1%}"
    if count > CONSTANT_LIMIT * SAMPLE:
        raise TaskError(f"{result} of the held-out tasks; at most {CONSTANT_LIMIT:.0%} are allowed")
    return result


def call_tools(sample: Sample) -> str:
    """Call the tools with odd arguments and the question's words; also in an environment that has
    drawn no task."""
    fresh = sample.source.make()
    results = []
    for task, name in product(sample.few, sample.environment.tools):
        for argument in (*ODD_ARGUMENTS, *task.question.split()):
            call = ToolCall(name, argument, 0)
            result = sample.environment.execute(task, call)
            elsewhere = fresh.execute(task, call)
            shown = f"{name}[{argument!r:.30}] answers {result!r:.60}"
            if not isinstance(result, str) or result.startswith("ERROR: timed out"):
                raise TaskError(f"{shown}; expected text, at once")
            if result != elsewhere:
                raise TaskError(
                    f"{shown}, and {elsewhere!r:.60} where no task was drawn; put all into the task"
                )
            results.append(result)
    errors = [result for result in results if re.match(r"ERROR: \w+: ", result)]
    if results and len(errors) == len(results):
        raise TaskError(f"every call raises an exception, such as {errors[0]!r:.100}")
    return f"text for each of {len(results)} calls; {len(errors)} raise an exception"


def score_answers(sample: Sample) -> str:
    """Score right answers, wrong ones, and texts without any."""
    for task in sample.few:
        right = sample.environment.reference(task)
        for text in (right, *wrong_texts(task, right)):
            is_right = text == right
            turns = [""] * task.min_tool_calls + [text]
            score = sample.environment.score(task, turns, task.min_tool_calls, "eos")
            if (score.outcome == "success") != is_right or (score.correct >= 1) != is_right:
                kind = "right" if is_right else "no answer"
                raise TaskError(
                    f"{text!r:.60} is {kind} for {task.question!r:.40}, "
                    f"but scores {score.outcome}, {score.correct:g}"
                )
    return f"{right!r:.40} is right, and wrong and meaningless texts are not"


def wrong_texts(task: Task, right: str) -> list[str]:
    """Return texts that are wrong where ``right`` is right."""
    answer = str(task.answer)
    many = " ".join([answer, *map(str, range(30))])
    texts = ["", "\n", task.question, "9" * 5000, many, right.replace(answer, many)]
    if isinstance(task.answer, int):
        for more in ("1", ".5", " or 7"):
            texts.append(right.replace(answer, answer + more))
    return texts


CHECKS: dict[str, Callable[[Sample], str]] = {
    "same tasks": draw_again,
    "splits": compare_splits,
    "constant": answer_constantly,
    "tools": call_tools,
    "answers": score_answers,
}
"""Each returns its result in a sentence. Raises TaskError if it fails."""
