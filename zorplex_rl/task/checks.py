"""Check a user's task against what a run relies on, on a sample of its tasks: a line a check.

ok   splits         none of 200 held-out tasks is among 200 training tasks
no   right answers  '[ANSWER] 8' answers 'Double 4?', but scores wrong_format; …
"""

import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from typing import get_args

from zorplex_rl.errors import ConfigError
from zorplex_rl.task.episode import Score, Task
from zorplex_rl.task.own_task import MODULE, EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import Split

SAMPLE, FEW = 200, 25
"""Tasks of each split, and those of which calls and scores are tried."""
CONSTANT_LIMIT = 0.25
"""Largest share of held-out tasks for which one constant answer may be right."""
ODD_ARGUMENTS = ("", "no such thing", "-1", "1e999", "9" * 5000, "1/0", "'", "⁷", "a,b")
"""What a learning policy writes between the brackets."""


class Broken(ConfigError):
    """What is wrong, with an example."""


class Sample:
    """The first tasks of both splits. Raises TaskError if they cannot be drawn."""

    def __init__(self, source: EnvironmentSource) -> None:
        self.source, self.environment = source, source.make()
        self.tasks: dict[Split, list[Task]] = {
            split: [self.environment.task(index, split) for index in range(SAMPLE)] for split in get_args(Split)
        }
        self.few = self.tasks["held_out"][:FEW]

    def score(self, task: Task, text: str) -> Score:
        """Score ``text`` after as many calls as a perfect solver makes."""
        calls = task.min_tool_calls
        return self.environment.score(task, [""] * calls + [text], calls, "eos")


Check = Callable[[Sample], str]
"""Returns what holds. Raises ConfigError for what does not."""


def _draw_again(sample: Sample) -> str:
    fresh = sample.source.make()
    for split, index in product(sample.tasks, reversed(range(SAMPLE))):
        task, again = sample.tasks[split][index], fresh.task(index, split)
        if task != again:
            raise Broken(
                f"task({index}, {split!r}) is {task.question!r:.40}, and {again.question!r:.40} when others come first; "
                "draw it from seed, split and index alone"
            )
        if MODULE.encode() in pickle.dumps(task):
            raise Broken(
                f"task({index}, {split!r}) holds an object of a class in the file; use numbers, texts, lists, dicts"
            )
    return "the same from a new environment, in the reverse order"


def _compare_splits(sample: Sample) -> str:
    training, held_out = ([repr(asdict(replace(t, split=""))) for t in tasks] for tasks in sample.tasks.values())
    if both := {*training} & {*held_out}:
        raise Broken(f"{len(both)} of {SAMPLE} held-out tasks are in training, such as {both.pop():.200}")
    return f"none of {SAMPLE} held-out tasks is among {SAMPLE} training tasks"


def _answer_constantly(sample: Sample) -> str:
    ((answer, count),) = Counter(task.answer for task in sample.tasks["held_out"]).most_common(1)
    said = f"the constant answer {answer!r:.40} is right in {count / SAMPLE:.1%}"
    if count > CONSTANT_LIMIT * SAMPLE:
        raise Broken(f"{said}, so a policy may say only that; at most {CONSTANT_LIMIT:.0%} are allowed")
    return said


def _call_tools(sample: Sample) -> str:
    fresh, calls, raised = sample.source.make(), 0, []
    for task, name in product(sample.few, sample.environment.tools):
        for argument in (*ODD_ARGUMENTS, *task.question.split()):
            call = ToolCall(name, argument, 0)
            said, elsewhere = sample.environment.execute(task, call), fresh.execute(task, call)
            shown = f"{name}[{argument!r:.30}] answers {said!r:.60}"
            if not isinstance(said, str) or said.startswith("ERROR: timed out"):
                raise Broken(f"{shown}; expected text, at once")
            if said != elsewhere:
                raise Broken(f"{shown}, and {elsewhere!r:.60} where no task was drawn; put what it needs into the task")
            calls += 1
            raised += [shown] if re.match(r"ERROR: \w+: ", said) else []
    if calls and len(raised) == calls:
        raise Broken(f"each of {calls} calls raises an exception: {raised[-1]}")
    return f"text for each of {calls} calls" + (f"; {len(raised)} raise, as {raised[-1]}" if raised else "")


def _score_right(sample: Sample) -> str:
    for task in sample.few:
        text = sample.environment.reference(task)
        found = sample.score(task, text)
        if found.outcome != "success" or found.correct != 1:
            raise Broken(f"{text!r:.60} answers {task.question!r:.40}, but scores {found.outcome}, {found.reward:g}")
    return f"{sample.environment.reference(sample.few[0])!r:.40} and {FEW - 1} more are right"


def _score_wrong(sample: Sample) -> str:
    for task in sample.few:
        right, answer = sample.environment.reference(task), str(task.answer)
        many = " ".join([answer, *map(str, range(30))])
        wrong = ["", "\n", task.question, "9" * 5000, many, right.replace(answer, many)]
        if isinstance(task.answer, int):
            wrong += [right.replace(answer, f"{answer}{more}") for more in ("1", ".5", " or 7")]
        for text in wrong:
            found = sample.score(task, text)
            if found.outcome == "success" or not found.correct < 1:
                raise Broken(
                    f"{text!r:.60} does not answer {task.question!r:.40}, but scores {found.outcome}, {found.reward:g}"
                )
    return "wrong and meaningless texts are not right"


CHECKS: dict[str, Check] = {
    "same tasks": _draw_again,
    "splits": _compare_splits,
    "answers": _answer_constantly,
    "tools": _call_tools,
    "right answers": _score_right,
    "wrong answers": _score_wrong,
}
