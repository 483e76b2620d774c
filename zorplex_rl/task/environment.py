"""What a run learns: an environment draws tasks, runs their tools, and scores the policy.

    class Doubling(Environment):                                       a whole environment; ``examples/`` has two more
        tools = ("DOUBLE",)

        def task(self, index, split):
            number = 2 * random.Random(f"{self.seed}:{split}:{index}").randrange(10**6) + (split == "train")
            return Task("doubling", f"Double {number}?", 2 * number, 1, "DOUBLE[n] doubles. End with [ANSWER] and the integer.")

        def execute(self, task, call):
            is_number = call.argument.isdecimal() and len(call.argument) < 20
            return str(2 * int(call.argument)) if is_number else "ERROR: no number"

``zorplex-rl env check FILE`` says what is wrong with one, and ``zorplex-rl train --task FILE``
trains on it. Every process of a run makes its own from the file's source, and asks it in its own
order. So an environment keeps nothing about a task; what a tool has to know goes into the task.

>>> Zorplex(seed=0).task(("simple:easy", "recursive:easy"), index=1).kind
'recursive'
"""

from functools import cache
from typing import Protocol

from zorplex_rl.task.curriculum import Tier, tier_of
from zorplex_rl.task.episode import Finish, Score, Task
from zorplex_rl.task.parser import ANSWER_TAG, TOOL_NAMES, Answer, ToolCall, find_answer
from zorplex_rl.task.rewards import score_turns
from zorplex_rl.task.specs import Split, TaskSpec, get_spec, run_tool


class Environment(Protocol):
    """Tasks with tools and a score. It must have ``task``, and ``execute`` if it names ``tools``.
    ``data`` is the text of the file that ``--task-data`` names."""

    tools: tuple[str, ...] = ()
    """The names that make a call, as in ``NAME[argument]``. Without any, an episode is one turn."""
    seed: int
    data: str
    answer_tag: str = ANSWER_TAG
    """What stands before the integer that is the answer."""

    def __init__(self, seed: int = 0, data: str = "") -> None:
        self.seed, self.data = seed, data

    def task(self, index: int, split: Split) -> Task:
        """Return task ``index`` of ``split``, always the same; the splits have none in common."""
        raise NotImplementedError

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` for ``task``. Returns text; for a bad argument, what is wrong with it."""
        return f"ERROR: no tool {call.name}"

    def find_answer(self, text: str) -> Answer | None:
        """Return the answer in ``text``, or None. Sampling stops at the end of its line."""
        return find_answer(text, self.answer_tag)

    def reference(self, task: Task) -> str:
        """Return the text with which a perfect solver ends, for ``zorplex-rl env check`` only."""
        return f"{self.answer_tag} {task.answer}"

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        """Score the policy's turns by ``rewards.py``; a score of your own puts it into ``correct``."""
        return score_turns(task, turns, tool_calls, finish, self.find_answer)


class Zorplex:
    """Draws tasks and runs their tools. It has no task's state: calls of episodes may mix."""

    def __init__(self, seed: int = 0, hints: bool = False) -> None:
        self.seed, self.hints = seed, hints
        self._spec = cache(lambda kind, difficulty: get_spec(kind, seed, difficulty, hints))

    def at(self, tier: Tier) -> "ZorplexTier":
        """Return the environment that draws the tasks of ``tier``."""
        return ZorplexTier(self, tier)

    def spec(self, name: str) -> TaskSpec:
        """Return the spec of ``kind:difficulty``, or of ``kind`` at its easiest."""
        kind, _, difficulty = name.partition(":")
        return self._spec(kind, difficulty or "easy")

    def task(self, tier: Tier, index: int, split: Split = "train") -> Task:
        """Return task number ``index`` of ``tier``. The names in the tier take turns."""
        return self.spec(tier[index % len(tier)]).task(index // len(tier), split)

    def tasks(self, tier: Tier, count: int, split: Split = "train", start: int = 0) -> list[Task]:
        """Return ``count`` tasks of ``tier``, from number ``start`` on."""
        return [self.task(tier, start + offset, split) for offset in range(count)]

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` with the tools and the table of ``task``. Returns the result as text."""
        return run_tool(task, call)


class ZorplexTier(Environment):
    """One tier of Zorplex tasks as a run's environment, made of the functions beside this file."""

    tools = TOOL_NAMES
    execute, find_answer, score = staticmethod(run_tool), staticmethod(find_answer), staticmethod(score_turns)

    def __init__(self, zorplex: Zorplex, tier: Tier) -> None:
        super().__init__(zorplex.seed)
        self.zorplex, self.tier = zorplex, tier

    def task(self, index: int, split: Split) -> Task:
        return self.zorplex.task(self.tier, index, split)


ZORPLEX = Zorplex().at(tier_of("mix"))
"""Runs the tools of every Zorplex task, and scores it: neither depends on seed or tier."""
