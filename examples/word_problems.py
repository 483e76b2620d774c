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
        # A question that comes twice counts once, or both splits could have it.
        problems = {line["question"]: integer(line["answer"]) for line in map(json.loads, data.splitlines()) if line}
        if len(problems) < HELD_OUT_EVERY:
            raise ValueError(
                f"there are {len(problems)} problems, and {HELD_OUT_EVERY} are needed; give a file with --task-data"
            )
        numbered = list(enumerate(problems.items()))
        self.problems = {
            "train": [problem for number, problem in numbered if number % HELD_OUT_EVERY],
            "held_out": [problem for number, problem in numbered if number % HELD_OUT_EVERY == 0],
        }
        self._order = cache(self._shuffled)

    def task(self, index: int, split: Split) -> Task:
        problems = self.problems[split]
        turn, position = divmod(index, len(problems))
        question, answer = problems[self._order(split, turn)[position]]
        return Task("word_problem", question, answer, 0, SYSTEM)

    def _shuffled(self, split: Split, turn: int) -> list[int]:
        count = len(self.problems[split])
        return random.Random(f"{self.seed}:{split}:{turn}").sample(range(count), count)


def integer(answer: int | str) -> int:
    """Return the integer of a problem's answer. Raises ValueError if there is none."""
    found = find_answer(answer.replace(",", ""), "####") if isinstance(answer, str) else answer
    if found is None:
        raise ValueError(f"no '#### n' in the answer {answer!r}")
    return found
