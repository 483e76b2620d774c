"""The environments of the library `reasoning-gym`, as they are. ``--task-data`` names a file with the
name of one, and its settings:

    pip install 'reasoning-gym>=0.1.25,<0.2'                    10 MB, needs a C compiler
    echo '{"environment": "chain_sum", "max_terms": 3}' > chain_sum.json
    zorplex-rl env check examples/reasoning_gym_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID
    zorplex-rl train --task examples/reasoning_gym_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID

    stream of the library's entries   0  1  2  3  4  …           entry 500·k + i is item i of a dataset with 500·k added to its seed
                                      │  │  │  │  │
    a hash of its question            t  h  h  t  h  …           training or held out: no question is in both
                                      └─────┐  └─────► task(index, split): the first of entries index, index + STRIDE, … in its split

Question, answer and score are the library's; the rest of an entry goes into the task's table, for
the score. Without tools an episode is one turn.
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
"""Entries of one of the library's datasets. Some make all of them at once."""
STRIDE, ATTEMPTS = 10_000_000, 64
"""No run has so many tasks. Half of all questions are in a split, so one of 64 is."""


class ReasoningGym(Environment):
    """One of the library's environments."""

    def __init__(self, seed: int = 0, data: str = "") -> None:
        super().__init__(seed, data)
        self.settings = json.loads(data or "{}")
        if "environment" not in self.settings:
            raise ValueError('name an environment in the file of --task-data, as {"environment": "chain_sum"}')
        self.name = self.settings.pop("environment")
        self.start = int.from_bytes(digest(f"{self.name}:{seed}")[:3])
        # Neighbouring tasks of both splits come from a few datasets.
        self.dataset = lru_cache(16)(self._dataset)
        self.scorer = self.dataset(0)

    def _dataset(self, chunk: int):
        return reasoning_gym.create_dataset(self.name, seed=self.start + CHUNK * chunk, size=CHUNK, **self.settings)

    def task(self, index: int, split: Split) -> Task:
        for number in range(index, index + STRIDE * ATTEMPTS, STRIDE):
            entry = self.dataset(number // CHUNK)[number % CHUNK]
            if digest(entry["question"])[0] % 2 == (split == "held_out"):
                # Two entries with one question are one task, wherever they stand.
                metadata = {key: value for key, value in entry["metadata"].items() if key != "source_index"}
                table = entry | {"metadata": metadata}
                return Task(self.name, entry["question"], entry["answer"], 0, SYSTEM_PROMPTS["default"], table=table)
        raise ValueError(f"{self.name} has too few questions for two splits; give it other settings")

    def find_answer(self, text: str) -> str | None:
        return extract_answer(text)

    def reference(self, task: Task) -> str:
        return f"<answer>{task.answer}</answer>"

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        """Score by the library, which may give a part of 1 for a part of the answer."""
        answer = final_answer(turns, self.find_answer)
        correct = 0.0 if answer is None else float(self.scorer.score_answer(answer, task.table))
        outcome = "success" if correct >= 1 else classify(answer, f"not {answer}", finish)
        return Score(outcome, answer, correct, FORMAT_REWARD * (answer is not None), 0.0)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
