"""An environment without tools: word problems of your own, one a line in a JSON-lines file, whose
answers end with ``#### n``.

    zorplex-rl env check examples/word_problems.py --task-data examples/word_problems.jsonl
    zorplex-rl train --task examples/word_problems.py --task-data YOUR.jsonl --policy PATH_OR_HUB_ID --max-tokens 256

Each line is an object with a ``question`` and an ``answer``: an integer, or a text whose last line
is ``#### n``, as in GSM8K. A fifth of the problems is held out. The embedded policy knows no
English beyond its own tasks, so it learns nothing here: give an instruction-tuned policy.
"""

import json
import random
from functools import cache

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import find_answer
from zorplex_rl.task.specs import Split

SYSTEM = "Think step by step. End with a line that holds #### and the integer, for example: #### 12"
HELD_OUT_EVERY = 5


class WordProblems(Environment):
    """The problems of ``--task-data``. Those of a split take turns, in another order each time."""

    answer_tag = "####"

    def __init__(self, seed: int = 0, data: str = "") -> None:
        super().__init__(seed, data)
        answers = {}  # a question that comes twice counts once, or both splits could have it
        for line in data.splitlines():
            problem = json.loads(line)
            if problem:
                answers[problem["question"]] = integer(problem["answer"])
        if len(answers) < HELD_OUT_EVERY:
            count = f"there are {len(answers)} problems, and {HELD_OUT_EVERY} are needed"
            raise ValueError(f"{count}; give a file with --task-data")

        self.problems: dict[str, list[tuple[str, int]]] = {"train": [], "held_out": []}
        for number, problem in enumerate(answers.items()):
            split = "train" if number % HELD_OUT_EVERY else "held_out"
            self.problems[split].append(problem)
        self.order = cache(self.shuffled)

    def task(self, index: int, split: Split) -> Task:
        problems = self.problems[split]
        turn, position = divmod(index, len(problems))
        order = self.order(split, turn)
        number = order[position]
        question, answer = problems[number]
        return Task(
            kind="word_problem",
            question=question,
            answer=answer,
            min_tool_calls=0,
            system=SYSTEM,
        )

    def shuffled(self, split: Split, turn: int) -> list[int]:
        """Return the order of the problems in a turn."""
        rng = random.Random(f"{self.seed}:{split}:{turn}")
        count = len(self.problems[split])
        return rng.sample(range(count), count)


def integer(answer: int | str) -> int:
    """Return the integer of a problem's answer. Raises ValueError if there is none."""
    number = answer
    if isinstance(answer, str):
        number = find_answer(answer.replace(",", ""), "####")
    if number is None:
        raise ValueError(f"no '#### n' in the answer {answer!r}")
    return number
