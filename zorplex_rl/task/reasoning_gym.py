"""Environments of the library `reasoning-gym` as they are: ``--task reasoning-gym:chain_sum``.

    stream of the library's entries   0  1  2  3  4  …           entry 500·k + i is item i of a dataset with 500·k added to its seed
                                      │  │  │  │  │
    a hash of its question            t  h  h  t  h  …           training or held out: no question is in both
                                      └─────┐  └─────► task(index, split): the first of entries index, index + STRIDE, … in its split

    entry ──► Task: the library's question and answer; the rest of the entry goes into its table, for the score
    text  ──► <answer>…</answer> ──► the library's ``score_answer``, 0 to 1; from 1 on it is right

Without tools an episode is one turn. ``--task-data`` names a file with the library's settings for
this environment, in JSON: ``{"max_terms": 3}``. The library, an extra, is imported when asked for.
"""

import hashlib
import json
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from zorplex_rl.errors import TaskError
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Finish, Score, Task
from zorplex_rl.task.rewards import FORMAT_REWARD, classify, final_answer
from zorplex_rl.task.specs import Split

CHUNK = 500
"""Entries of one of the library's datasets. Some make all of them at once."""
KEPT = 16
"""Datasets kept: neighbouring tasks of both splits come from a few."""
STRIDE, ATTEMPTS = 10_000_000, 64
"""No run has so many tasks. That 64 questions in a row fall into the other split does not happen
unless there are but a few."""


class ReasoningGym(Environment):
    """One of the library's environments; ``of`` says which."""

    name: str

    def __init__(self, seed: int = 0, data: str = "") -> None:
        super().__init__(seed, data)
        self._start = int.from_bytes(_hash(f"{self.name}:{seed}")[:3])
        self._dataset(0)

    def task(self, index: int, split: Split) -> Task:
        """Return the library's entry as a task. Raises TaskError if it has too few questions."""
        from reasoning_gym.utils import SYSTEM_PROMPTS

        for number in range(index, index + STRIDE * ATTEMPTS, STRIDE):
            entry = self._dataset(number // CHUNK)[number % CHUNK]
            if _hash(entry["question"])[0] % 2 == (split == "held_out"):
                # Two entries with one question are one task, wherever they stand.
                metadata = {key: value for key, value in entry["metadata"].items() if key != "source_index"}
                table = entry | {"metadata": metadata}
                return Task(self.name, entry["question"], entry["answer"], 0, SYSTEM_PROMPTS["default"], table=table)
        raise TaskError(f"'reasoning-gym:{self.name}' has too few questions for two splits; give it other settings")

    def find_answer(self, text: str) -> str | None:
        """Return what the last ``<answer>…</answer>`` holds, or None."""
        from reasoning_gym.utils import extract_answer

        return extract_answer(text)

    def reference(self, task: Task) -> str:
        return f"<answer>{task.answer}</answer>"

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        """Score by the library, which may give a part of 1 for a part of the answer."""
        answer = final_answer(turns, self.find_answer)
        correct = 0.0 if answer is None else float(self._dataset(0).score_answer(answer, task.table))
        outcome = "success" if correct >= 1 else classify(answer, f"not {answer}", finish)
        return Score(outcome, answer, correct, FORMAT_REWARD * (answer is not None), 0.0)

    def _dataset(self, chunk: int) -> Any:
        return _dataset(self.name, self.data, self._start + CHUNK * chunk)


@lru_cache(KEPT)
def _dataset(name: str, settings: str, seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=CHUNK, **json.loads(settings or "{}"))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def __getattr__(name: str) -> type[ReasoningGym]:
    """Return the class of the library's environment ``name``: ``source.py`` loads it as an entry
    point. Raises AttributeError if there is none."""
    # Whoever looks at every module of the package, as pytest does, need not have the library.
    if not name.startswith("_") and find_spec("reasoning_gym"):
        from reasoning_gym.factory import DATASETS

        if name in DATASETS:
            return type(name, (ReasoningGym,), {"name": name})
    raise AttributeError(f"reasoning-gym has no environment {name!r}")
