"""What a run learns: an environment draws tasks, runs their tools, and scores the policy.

Every process of a run makes its own environment, and they draw tasks in different orders. So an
environment keeps nothing about a task: what a tool has to know is in the task. Your own task is such
a class in a file (docs/OWN_TASK.md).
"""

from collections.abc import Sequence
from dataclasses import replace

from zorplex_rl.task.episode import Finish, Score, Task
from zorplex_rl.task.parser import (
    ANSWER_TAG,
    TOOL_NAMES,
    Answer,
    ToolCall,
    find_answer,
)
from zorplex_rl.task.rewards import score_turns
from zorplex_rl.task.specs import (
    TASK_SPECS,
    Split,
    TaskSpec,
    get_spec,
    run_tool,
)


class Environment:
    """Tasks with tools and a score. It must have ``task``, and ``execute`` if it names ``tools``."""

    tools: tuple[str, ...] = ()
    """The names that make a call, as in ``NAME[argument]``. Without tools an episode is one turn."""
    answer_tag: str = ANSWER_TAG
    """What stands before the integer that is the answer."""

    def __init__(self, seed: int = 0, data: str = "") -> None:
        """``data`` is the text of the file that ``--task-data`` names."""
        self.seed = seed
        self.data = data

    def task(self, index: int, split: Split) -> Task:
        """Return task ``index`` of ``split``, always the same. The splits share no task."""
        raise NotImplementedError

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` for ``task``. Returns its result; for a bad argument, what is wrong with it."""
        return f"ERROR: no tool {call.name}"

    def find_answer(self, text: str) -> Answer | None:
        """Return the answer in ``text``, or None. Sampling stops at the end of its line."""
        return find_answer(text, self.answer_tag)

    def reference(self, task: Task) -> str:
        """Return how a perfect solver ends its text. Only ``zorplex-rl env check`` asks for it."""
        return f"{self.answer_tag} {task.answer}"

    def examples(self, count: int) -> Sequence[tuple[str, str]]:
        """Return up to ``count`` worked examples for ``--shots``: a question and a right text each."""
        return ()

    def score(
        self,
        task: Task,
        turns: list[str],
        tool_calls: int,
        finish: Finish,
    ) -> Score:
        """Score the policy's turns by ``rewards.py``. A score of your own goes into ``correct``."""
        return score_turns(task, turns, tool_calls, finish, self.find_answer)


def kinds_of(task: str, difficulty: str = "easy") -> tuple[str, ...]:
    """Return the kinds that ``--task task --difficulty difficulty`` draws from, in turn.

    >>> kinds_of("mix", "hard")
    ('simple:easy', 'compositional:hard', 'multi_step:easy', 'recursive:easy')
    """
    kinds = []
    for kind in TASK_SPECS if task == "mix" else (task,):
        level = difficulty if kind == "compositional" else "easy"
        kinds.append(f"{kind}:{level}")
    return tuple(kinds)


class Zorplex(Environment):
    """The Zorplex tasks. ``kinds`` take turns: each is a kind like ``simple``, or ``kind:difficulty``."""

    tools = TOOL_NAMES
    execute = staticmethod(run_tool)
    find_answer = staticmethod(find_answer)
    score = staticmethod(score_turns)

    def __init__(
        self,
        seed: int = 0,
        kinds: tuple[str, ...] = kinds_of("mix"),
        shots: int = 0,
    ) -> None:
        super().__init__(seed)
        self.kinds = kinds
        self.shots = shots

    def spec(self, name: str) -> TaskSpec:
        """Return the spec of ``kind:difficulty``, or of ``kind`` at its easiest."""
        kind, _, difficulty = name.partition(":")
        return get_spec(kind, self.seed, difficulty or "easy")

    def task(self, index: int, split: Split = "train") -> Task:
        number, turn = divmod(index, len(self.kinds))
        spec = self.spec(self.kinds[turn])
        task = spec.task(number, split)
        return replace(task, examples=spec.examples(self.shots))

    def examples(self, count: int) -> Sequence[tuple[str, str]]:
        return self.spec(self.kinds[0]).examples(count)

    def tasks(
        self,
        kinds: tuple[str, ...],
        count: int,
        split: Split = "train",
        start: int = 0,
    ) -> list[Task]:
        """Return ``count`` tasks of ``kinds`` in turn, from number ``start`` on."""
        environment = Zorplex(self.seed, kinds, self.shots)
        return [environment.task(index, split) for index in range(start, start + count)]


ZORPLEX = Zorplex()
"""Runs the tools of every Zorplex task, and scores its episodes: neither depends on seed or kinds."""
