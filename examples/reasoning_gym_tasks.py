"""The environments of the library `reasoning-gym`, as they are. ``--task-data`` names a file with the
name of one, and its settings:

    pip install 'reasoning-gym>=0.1.25,<0.2'                    10 MB, needs a C compiler
    echo '{"environment": "chain_sum", "max_terms": 3}' > chain_sum.json
    zorplex-rl env check examples/reasoning_gym_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID
    zorplex-rl train --task examples/reasoning_gym_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID

    entries of the library      0  1  2  3  4  …    entry 500·k + i is item i of the dataset with seed + 500·k
    split of the entry          t  h  h  t  h  …    training or held out, by a hash of its question

``task(index, split)`` is the first of the entries index, index + STRIDE, … in its split. So no question is
in both. Question, answer and score are the library's; the rest of an entry goes into the task's table,
for the score. Without tools an episode is one turn.
"""

import hashlib
import json
from functools import lru_cache

import reasoning_gym
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Finish, Score, Task
from zorplex_rl.task.rewards import FORMAT_REWARD, classify, final_answer
from zorplex_rl.task.specs import Split

CHUNK = 500
"""Entries of a dataset. Some datasets make all of them at once."""
STRIDE = 10_000_000
"""No run has so many tasks."""
ATTEMPTS = 64
"""Half of all questions are in a split, so one of 64 is."""


class ReasoningGym(Environment):
    """One of the library's environments."""

    def __init__(self, seed: int = 0, data: str = "") -> None:
        super().__init__(seed, data)
        self.settings = json.loads(data or "{}")
        if "environment" not in self.settings:
            example = '{"environment": "chain_sum"}'
            raise ValueError(f"name an environment in the file of --task-data, as {example}")
        self.name = self.settings.pop("environment")
        first_bytes = digest(f"{self.name}:{seed}")[:3]
        self.first_seed = int.from_bytes(first_bytes)
        # Neighbouring tasks of both splits come from a few datasets.
        self.dataset = lru_cache(16)(self.create_dataset)
        self.scorer = self.dataset(0)

    def create_dataset(self, chunk: int):
        return reasoning_gym.create_dataset(
            self.name,
            seed=self.first_seed + CHUNK * chunk,
            size=CHUNK,
            **self.settings,
        )

    def task(self, index: int, split: Split) -> Task:
        for attempt in range(ATTEMPTS):
            entry = self.entry(index + attempt * STRIDE)
            if split_of(entry["question"]) == split:
                return Task(
                    kind=self.name,
                    question=entry["question"],
                    answer=entry["answer"],
                    min_tool_calls=0,
                    system=SYSTEM_PROMPTS["default"],
                    table=entry,
                )
        raise ValueError(
            f"{self.name} has too few questions for two splits; give it other settings"
        )

    def entry(self, number: int) -> dict:
        """Return the library's entry of this number, without its place: the same question twice is one task."""
        chunk, place = divmod(number, CHUNK)
        entry = dict(self.dataset(chunk)[place])
        metadata = dict(entry["metadata"])
        metadata.pop("source_index", None)
        entry["metadata"] = metadata
        return entry

    def find_answer(self, text: str) -> str | None:
        return extract_answer(text)

    def reference(self, task: Task) -> str:
        return f"<answer>{task.answer}</answer>"

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        """Score by the library, which may give a part of 1 for a part of the answer."""
        answer = final_answer(turns, self.find_answer)
        correct = 0.0
        if answer is not None:
            correct = float(self.scorer.score_answer(answer, task.table))
        outcome = "success"
        if correct < 1:
            outcome = classify(answer, f"not {answer}", finish)
        return Score(
            outcome=outcome,
            answer=answer,
            correct=correct,
            format=0.0 if answer is None else FORMAT_REWARD,
            extra_calls=0.0,
        )


def split_of(question: str) -> Split:
    return "held_out" if digest(question)[0] % 2 else "train"


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
